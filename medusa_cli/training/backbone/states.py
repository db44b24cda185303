"""States of texts, from the engine: after the layer below the trained ones, or after the final norm."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native
from medusa_cli.support.atomic import atomic_file, explain_os_error
from medusa_cli.support.files import recall, remember

from ..heads.loss import base_loss
from ..heads.rows import DraftRows, TextRows
from ..loop import Picked
from ..text.dataset import Examples, Span


@dataclass(frozen=True)
class WholeText:
    """A prompt with its answer. span: the answer's place in the corpus; fed [rows]: all tokens but the last.

    After fed[answer_at + i] comes token i of the answer.
    """

    span: Span
    fed: NDArray[np.int32]

    @property
    def answer_at(self) -> int:
        return len(self.fed) - self.span.length


def whole_texts(
    spans: Sequence[Span], prompts: dict[int, NDArray[np.int32]], tokens: NDArray[np.int32]
) -> list[WholeText]:
    """The texts of `spans` with known prompts [by first row of the answer]."""
    return [
        WholeText(span, np.concatenate([prompts[span.start], tokens[span.start : span.start + span.length - 1]]))
        for span in spans
        if len(prompts[span.start]) and span.length > 1
    ]


class Embeddings:
    """If all layers are trained: the tokens' embeddings, which need no disk. key: tells them from others."""

    def __init__(self, texts: Sequence[WholeText], matrix: NDArray[np.float32]) -> None:
        """matrix [V, h]: as the first layer reads its rows."""
        self.texts, self._matrix = texts, matrix
        self.key: dict[str, Any] = _key(texts, None, matrix.shape[1])

    def read(self, text: int) -> NDArray[np.float32]:
        """[rows, hidden] of texts[text]."""
        return self._matrix[self.texts[text].fed]


class LayerStates:
    """States of `texts` after some layers in half precision, one file per text in their own folder.

    layers: none: after the final norm. key: tells them from others. With a model to read from, read() makes what is
    missing: a short run does not pay for texts that it never sees.
    """

    def __init__(
        self,
        folder: Path,
        texts: Sequence[WholeText],
        layers: Sequence[int],
        hidden: int,
        model: native.Model | None = None,
        threads: int = 0,
    ) -> None:
        """Opens or creates. Files of other texts are removed."""
        self.folder, self.texts, self.layers = folder, texts, list(layers)
        self.width = max(1, len(self.layers)) * hidden
        self.key: dict[str, Any] = _key(texts, self.layers, hidden)
        self._model, self._threads = model, threads
        self._reader: native.StatesReader | None = None
        try:
            if recall(self._marker) != self.key:
                shutil.rmtree(folder, ignore_errors=True)
                remember(self._marker, self.key)
        except OSError as error:
            raise explain_os_error(error, folder) from error

    @property
    def _marker(self) -> Path:
        return self.folder / "texts.json"

    @property
    def nbytes(self) -> int:
        """Bytes when complete."""
        return sum(len(text.fed) for text in self.texts) * self.width * 2

    @property
    def missing_rows(self) -> int:
        return sum(len(self.texts[text].fed) for text in self._missing())

    def write(self, model: native.Model, threads: int, on_rows: Callable[[int], None] = lambda rows: None) -> None:
        """Reads everything that is missing; on_rows(rows read so far) may raise: whole files stay."""
        self._model, self._threads = model, threads
        rows = 0
        for text in self._missing():
            self._make(text)
            rows += len(self.texts[text].fed)
            on_rows(rows)

    def read(self, text: int) -> NDArray[np.float16]:
        """[rows, layers * hidden] of texts[text]."""
        if not self._file(text).exists():
            self._make(text)
        return np.load(self._file(text), mmap_mode="r")

    def _make(self, text: int) -> None:
        assert self._model is not None
        last = not self.layers
        if self._reader is None:
            longest = max(len(whole.fed) for whole in self.texts)
            self._reader = native.StatesReader(
                self._model, longest, tap_layers=self.layers, outputs=last, n_threads=self._threads
            )
        found = self._reader.read(self.texts[text].fed.tolist())
        states = found.post_norm if last else found.after_layers
        assert states is not None
        with atomic_file(self._file(text)) as file:
            np.save(file, as_stored(states))

    def _file(self, text: int) -> Path:
        return self.folder / f"{text:06d}.npy"

    def _missing(self) -> list[int]:
        return [text for text in range(len(self.texts)) if not self._file(text).exists()]


def _key(texts: Sequence[WholeText], layers: Sequence[int] | None, hidden: int) -> dict[str, Any]:
    digest = hashlib.sha256(str(layers).encode())
    for text in texts:
        digest.update(text.fed.tobytes())
    return {"states": digest.hexdigest(), "hidden": hidden}


def as_stored(states: NDArray[np.float32]) -> NDArray[np.float16]:
    """[T, h] in half precision, as states are kept on disk."""
    largest = np.finfo(np.float16).max
    return np.clip(states, -largest, largest).astype(np.float16)


def native_states(model: native.Model, longest: int, threads: int) -> Callable[[Sequence[int]], Tensor]:
    """Gives the states [T, h] of tokens after the final norm, from the engine itself."""
    reader = native.StatesReader(model, longest, outputs=True, n_threads=threads)
    return lambda tokens: torch.from_numpy(reader.read(tokens).post_norm)


@dataclass(frozen=True)
class BaseRows:
    """What the base itself learns from. tokens [N]: the corpus's; output [V, h]: as TextData.output, of all tokens."""

    tokens: NDArray[np.int32]
    output: Tensor


@dataclass(frozen=True)
class TextData:
    """states: of the texts of `examples`, in their order, as the layers read them; source: the corpus's rows, with
    token embeddings as stored if streams see the root; output [D, h]: on the device, in the dtype to multiply in;
    base: given if the base learns, too."""

    states: Embeddings | LayerStates
    source: TextRows
    examples: Examples
    output: Tensor
    base: BaseRows | None = None

    @cached_property
    def drafts(self) -> DraftRows:
        return DraftRows(self.source, self.examples, self.output)

    def entered(self, picked: Picked) -> tuple[list[WholeText], Tensor]:
        """The texts of a batch, and [R, h], on the device: what the lowest layer reads at all their tokens."""
        numbers, _ = self._begin(picked)
        rows = np.concatenate([self.states.read(number) for number in numbers])
        return [self.states.texts[number] for number in numbers], torch.from_numpy(rows).to(self.output.device).float()

    def entered_up_to(self, picked: Picked) -> tuple[list[int], Tensor]:
        """For a batch of pieces: where each begins in its text, prompt included, and [R, h], on the device: what the
        lowest layer reads up to their ends."""
        assert picked.lengths is not None
        firsts, parts = [], []
        for number, row, rows in zip(*self._begin(picked), picked.lengths, strict=True):
            text = self.states.texts[number]
            firsts.append(text.answer_at + row - text.span.start)
            parts.append(self.states.read(number)[: firsts[-1] + rows])
        return firsts, torch.from_numpy(np.concatenate(parts)).to(self.output.device).float()

    def answer_rows(self, picked: Picked) -> Tensor:
        """[S] rows of the corpus: of all tokens of a batch of whole texts, also of those that end them."""
        spans = [self.states.texts[number].span for number in self._begin(picked)[0]]
        return torch.cat([torch.arange(span.start, span.start + span.length) for span in spans])

    def _begin(self, picked: Picked) -> tuple[list[int], list[int]]:
        """The texts that those of a batch are or are pieces of, and the rows of the corpus at which they begin."""
        rows = self.examples.rows[picked.firsts]
        starts, order = self._starts
        return order[np.searchsorted(starts, rows, side="right") - 1].tolist(), rows.tolist()

    @cached_property
    def _starts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First rows of the texts, ascending, and whose they are."""
        starts = np.array([text.span.start for text in self.states.texts])
        order = np.argsort(starts)
        return starts[order], order

    def base_loss(self, states: Tensor, rows: Tensor, distils: bool) -> Tensor:
        """Loss of the base's own states [R, h] at `rows` of the corpus, against the engine's, else against tokens."""
        assert self.base is not None
        teacher = self.source.states.gather(rows) if distils else None
        return base_loss(states, teacher, torch.from_numpy(self.base.tokens[rows.numpy()]), self.base.output)


# --- prompts, which a prefix layer sees besides the answer (Hydra 4) -------------------------------


class PromptStates(LayerStates):
    """For each of `spans`, the states after the final norm of its prompt's tokens but the last, whose state is the
    first row of the answer; on disk, in their own folder."""

    def __init__(self, folder: Path, spans: Sequence[Span], prompts: dict[int, NDArray[np.int32]], hidden: int) -> None:
        """prompts: by first row of the answer; each has at least one token."""
        texts = [WholeText(span, prompts[span.start][:-1]) for span in spans if len(prompts[span.start]) > 1]
        super().__init__(folder, texts, [], hidden)
        self._places = {text.span.start: place for place, text in enumerate(texts)}
        self._none = torch.zeros(0, hidden, dtype=torch.float16)

    def before(self, row: int) -> Tensor:
        """[P - 1, h] float16: states before the text that begins at `row`."""
        place = self._places.get(row)
        return self._none if place is None else torch.from_numpy(np.array(self.read(place)))


def prompts_read(model: native.Model, texts: Sequence[WholeText], threads: int) -> Callable[[int], Tensor]:
    """Like PromptStates.before(), for `texts`, by another model."""
    read = native_states(model, max(len(text.fed) for text in texts), threads)
    none = torch.zeros(0, model.n_embd, dtype=torch.float16)
    states = {
        text.span.start: read(text.fed[: text.answer_at].tolist()).half() if text.answer_at else none for text in texts
    }
    return states.__getitem__
