"""States of the prompts before the texts: what a prefix layer sees of the context besides the answer (Hydra 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native

from ..text.dataset import Span
from .quality import NativeStates
from .states import LayerStates, WholeText


class PromptStates:
    """For each of `spans` the states after the final norm of its prompt's tokens but the last one, whose state is the
    first row of the answer; on disk, in a folder of their own."""

    def __init__(self, folder: Path, spans: Sequence[Span], prompts: dict[int, NDArray[np.int32]], hidden: int) -> None:
        """prompts: by first row of the answer; every one holds a token."""
        texts = [WholeText(span, prompts[span.start][:-1]) for span in spans if len(prompts[span.start]) > 1]
        self.states = LayerStates(folder, texts, None, hidden)
        self._places = {text.span.start: place for place, text in enumerate(texts)}
        self._none = torch.zeros(0, hidden, dtype=torch.float16)

    def write(self, model: native.Model, threads: int, on_rows: Callable[[int], None] = lambda rows: None) -> None:
        """As LayerStates.write()."""
        self.states.write(model, threads, on_rows)

    def before(self, row: int) -> Tensor:
        """[P - 1, h] float16 before the text of which `row` is the first one."""
        place = self._places.get(row)
        return self._none if place is None else torch.from_numpy(np.array(self.states.read(place)))


@dataclass(frozen=True)
class KnownContexts:
    """The same of few texts, in memory: states [P, h] by first row of the answer."""

    states: dict[int, Tensor]

    def before(self, row: int) -> Tensor:
        """As PromptStates.before()."""
        return self.states[row]


def prompts_read(model: native.Model, texts: Sequence[WholeText], threads: int) -> KnownContexts:
    """Of `texts`, by another model."""
    reader = NativeStates(model, max(len(text.fed) for text in texts), threads)
    none = torch.zeros(0, model.n_embd, dtype=torch.float16)
    return KnownContexts(
        {
            text.span.start: reader.read(text.fed[: text.answer_at].tolist()).half() if text.answer_at else none
            for text in texts
        }
    )
