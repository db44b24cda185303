"""What the trained layers read: states after the layer below them, of all tokens of all texts, on disk."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.support.atomic import atomic_file, explain_os_error

from ..memory import recall, remember
from ..text.dataset import Span
from .parity import as_stored


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


class EnteredTexts(Protocol):
    """What the lowest trained layer reads at each of `texts`. key: tells them from others."""

    texts: Sequence[WholeText]
    key: dict[str, Any]

    def read(self, text: int) -> NDArray[np.floating]:
        """[rows, hidden] of texts[text]."""
        ...


class Embeddings:
    """Where all layers are trained: the tokens' embeddings, which need no disk."""

    def __init__(self, texts: Sequence[WholeText], matrix: NDArray[np.float32]) -> None:
        """matrix [V, h]: as the first layer reads its rows."""
        self.texts, self._matrix = texts, matrix
        self.key: dict[str, Any] = _key(texts, -1, matrix.shape[1])

    def read(self, text: int) -> NDArray[np.float32]:
        """[rows, hidden] of texts[text]."""
        return self._matrix[self.texts[text].fed]


class LayerStates:
    """States of `texts` after one layer in half precision, a file for each text in a folder of their own.

    Read from the engine when they are first asked for: a short run does not pay for texts that it never sees.
    """

    def __init__(
        self, folder: Path, texts: Sequence[WholeText], layer: int, hidden: int, model: native.Model, threads: int
    ) -> None:
        """Opens or creates. Files of other texts go."""
        self.folder, self.texts, self.layer, self.hidden = folder, texts, layer, hidden
        self.key: dict[str, Any] = _key(texts, layer, hidden)
        self._model, self._threads = model, threads
        self._reader: native.StatesReader | None = None
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
    def missing_bytes(self) -> int:
        missing = (text for number, text in enumerate(self.texts) if not self._file(number).exists())
        return sum(len(text.fed) for text in missing) * self.hidden * 2

    def read(self, text: int) -> NDArray[np.float16]:
        """[rows, hidden] of texts[text]."""
        path = self._file(text)
        if not path.exists():
            if self._reader is None:
                longest = max(len(whole.fed) for whole in self.texts)
                self._reader = native.StatesReader(self._model, longest, tap_layer=self.layer, n_threads=self._threads)
            states = self._reader.read(self.texts[text].fed.tolist()).after_layer
            assert states is not None
            with atomic_file(path) as file:
                np.save(file, as_stored(states))
        stored: NDArray[np.float16] = np.load(path, mmap_mode="r")
        return stored

    def _file(self, text: int) -> Path:
        return self.folder / f"{text:06d}.npy"


def _key(texts: Sequence[WholeText], layer: int, hidden: int) -> dict[str, Any]:
    digest = hashlib.sha256(str(layer).encode())
    for text in texts:
        digest.update(text.fed.tobytes())
    return {"states": digest.hexdigest(), "hidden": hidden}
