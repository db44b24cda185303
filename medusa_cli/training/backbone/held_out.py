"""Held-out texts through the layers and heads as they are at some step, in torch: what training judges itself by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..heads.layers import Heads
from ..heads.ranking import rank_texts, tokens_per_step
from ..heads.rows import PickedRows, TextRows
from .contexts import KnownContexts
from .loss import compare
from .quality import Distance
from .states import EnteredTexts

Through = Callable[[Tensor, list[int]], Tensor]
"""(what the lowest trained layer reads [R, h], rows of each text) -> states [R, h] after the final norm."""


@dataclass(frozen=True)
class HeldOut:
    """After `step` steps: tokens per step of the heads, mean KL(base || layers), perplexities of both."""

    step: int
    tokens_per_step: float
    kl: float
    base_perplexity: float
    perplexity: float


@dataclass(frozen=True)
class HeldOutTexts:
    """numbers: of the texts in `states`; source: the corpus's rows, by the base; tokens [N]: of the corpus; t2d
    [n_vocab]: their draft rows; output [V, h], draft_output [D, h]: on the device, in the dtype to multiply in; nodes:
    of the tree that tokens per step are of."""

    states: EnteredTexts
    numbers: Sequence[int]
    source: TextRows
    tokens: NDArray[np.int32]
    t2d: NDArray[np.int32]
    output: Tensor
    draft_output: Tensor
    nodes: int

    @torch.no_grad()
    def measure(self, step: int, through: Through, heads: Heads) -> HeldOut:
        """Takes a third of the time of training on these texts once."""
        texts = {number: self.states.texts[number] for number in self.numbers}
        order = sorted(texts, key=lambda number: texts[number].span.start)
        rows, states, prompts = [], [], {}
        for number in order:
            text = texts[number]
            entered = torch.from_numpy(np.array(self.states.read(number))).to(self.output.device).float()
            normed = through(entered, [len(text.fed)]).half()
            rows.append(np.arange(text.span.start, text.span.start + text.span.length))
            states.append(normed[text.answer_at :])
            prompts[text.span.start] = normed[: text.answer_at]
        at, new = np.concatenate(rows), torch.cat(states)
        old = self.source.states.gather(torch.from_numpy(at))
        said = torch.from_numpy(self.tokens[at]).long().to(self.output.device)
        far = Distance.of(compare(old, new, self.output, said))
        source = TextRows(PickedRows(at, new), self.source.embeddings, contexts=KnownContexts(prompts))
        spans = [texts[number].span for number in order]
        ranks = rank_texts(heads, source, self.tokens, spans, self.t2d, self.draft_output)
        return HeldOut(step, tokens_per_step(ranks, self.nodes), far.kl, far.base_perplexity, far.perplexity)
