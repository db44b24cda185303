"""States of all tokens of all texts, on disk: after the layer below the trained ones, or after the final norm."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.support.atomic import atomic_file, explain_os_error

from ..memory import recall, remember
from ..text.dataset import Span
from .parity import as_stored

SHARD_TEXTS = 64


@dataclass(frozen=True)
class WholeText:
    """A prompt with its answer. span: of the answer in the corpus; fed [rows]: all tokens but the last.

    Behind fed[answer_at + i] comes token i of the answer.
    """

    span: Span
    fed: NDArray[np.int32]

    @property
    def answer_at(self) -> int:
        return len(self.fed) - self.span.length


def whole_texts(
    spans: Sequence[Span], prompts: dict[int, NDArray[np.int32]], tokens: NDArray[np.int32]
) -> list[WholeText]:
    """The texts of `spans` whose prompts [by first row of the answer] are known."""
    return [
        WholeText(span, np.concatenate([prompts[span.start], tokens[span.start : span.start + span.length - 1]]))
        for span in spans
        if len(prompts[span.start]) and span.length > 1
    ]


class LayerStates:
    """States of `texts` after one layer in half precision, SHARD_TEXTS texts a file, in a folder of their own.

    layer: None: after the final norm.
    """

    def __init__(self, folder: Path, texts: Sequence[WholeText], layer: int | None, hidden: int) -> None:
        """Opens or creates. Files of other texts go."""
        self.folder, self.texts, self.layer, self.hidden = folder, texts, layer, hidden
        digest = hashlib.sha256(str(layer).encode())
        for text in texts:
            digest.update(text.fed.tobytes())
        self.key = {"states": digest.hexdigest(), "hidden": hidden}
        try:
            if recall(self._marker) != self.key:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True, exist_ok=True)
                remember(self._marker, self.key)
        except OSError as error:
            raise explain_os_error(error, folder) from error

    @property
    def _marker(self) -> Path:
        return self.folder / "texts.json"

    @property
    def nbytes(self) -> int:
        """When complete."""
        return sum(len(text.fed) for text in self.texts) * self.hidden * 2

    @property
    def missing_rows(self) -> int:
        return sum(len(text.fed) for shard in self._missing() for text in self._texts_of(shard))

    def write(self, model: native.Model, threads: int, on_rows: Callable[[int], None] = lambda rows: None) -> None:
        """Reads what is missing; on_rows(rows of that so far) may raise: whole files stay."""
        missing = self._missing()
        if not missing:
            return
        longest = max(len(text.fed) for text in self.texts)
        last = self.layer is None
        reader = native.StatesReader(model, longest, tap_layer=self.layer, outputs=last, n_threads=threads)
        rows = 0
        for shard in missing:
            parts = []
            for text in self._texts_of(shard):
                found = reader.read(text.fed.tolist())
                states = found.post_norm if last else found.after_layer
                assert states is not None
                parts.append(as_stored(states))
                rows += len(text.fed)
                on_rows(rows)
            with atomic_file(self._file(shard)) as file:
                np.save(file, np.concatenate(parts))

    def read(self, text: int) -> NDArray[np.float16]:
        """[rows, hidden] of texts[text]."""
        shard, within = divmod(text, SHARD_TEXTS)
        before = sum(len(other.fed) for other in self._texts_of(shard)[:within])
        stored: NDArray[np.float16] = np.load(self._file(shard), mmap_mode="r")
        return stored[before : before + len(self.texts[text].fed)]

    def _file(self, shard: int) -> Path:
        return self.folder / f"{shard:05d}.npy"

    def _texts_of(self, shard: int) -> Sequence[WholeText]:
        return self.texts[shard * SHARD_TEXTS : (shard + 1) * SHARD_TEXTS]

    def _missing(self) -> list[int]:
        return [shard for shard in range(-(-len(self.texts) // SHARD_TEXTS)) if not self._file(shard).exists()]
