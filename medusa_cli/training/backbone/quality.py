"""How far a trained base is from what it was, and how well its heads draft: during training in torch, on held-out
texts; after it in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native

from ..heads.fit import rank_texts, tokens_per_step
from ..heads.layers import Heads
from ..heads.loss import compare
from ..heads.rows import PickedRows, TextRows
from .states import TextData, WholeText, native_states

FOREIGN_TOKENS = 4000


@dataclass(frozen=True)
class Distance:
    """Over `tokens` tokens: mean KL(base || new), share of places with the same likeliest token, both perplexities."""

    tokens: int
    kl: float
    top1: float
    base_perplexity: float
    perplexity: float

    @staticmethod
    def of(rows: Tensor) -> Distance:
        """rows [R, 4]: from loss.compare()."""
        kl, same, ours, theirs = rows.double().mean(dim=0).tolist()
        return Distance(len(rows), kl, same, float(np.exp(ours)), float(np.exp(theirs)))


def answer_states(
    model: native.Model, texts: Sequence[WholeText], threads: int, on_rows: Callable[[int], None]
) -> tuple[NDArray[np.int64], Tensor]:
    """(rows [N] of the corpus, ascending; [N, h] float16): what `model` computes at the answers of `texts`."""
    read = native_states(model, max(len(text.fed) for text in texts), threads)
    rows, parts = [], []
    for text in sorted(texts, key=lambda text: text.span.start):
        parts.append(read(text.fed.tolist())[text.answer_at :].half())
        rows.append(np.arange(text.span.start, text.span.start + text.span.length))
        on_rows(sum(map(len, rows)))
    return np.concatenate(rows), torch.cat(parts)


def foreign_distance(
    base: native.Model, new: native.Model, texts: Sequence[str], output: Tensor, threads: int
) -> Distance:
    """The distance on text that neither model wrote, FOREIGN_TOKENS tokens of it."""
    tokenized = [base.tokenize(text) for text in texts]
    longest = max(map(len, tokenized))
    readers = [native_states(model, longest, threads) for model in (base, new)]
    rows: list[Tensor] = []
    for tokens in tokenized:
        if sum(map(len, rows)) < FOREIGN_TOKENS and len(tokens) > 1:
            ours, theirs = (read(tokens[:-1]).to(output.device) for read in readers)
            rows.append(compare(ours, theirs, output, torch.tensor(tokens[1:], device=output.device)))
    return Distance.of(torch.cat(rows))


# --- while it is trained ---------------------------------------------------------------------------

Through = Callable[[Tensor, list[int]], Tensor]
"""(what the lowest trained layer reads [R, h], rows of each text) -> states [R, h] after the final norm."""


@dataclass(frozen=True)
class HeldOut:
    """After `step` steps: the heads' tokens per step, mean KL(base || layers), perplexities of both."""

    step: int
    tokens_per_step: float
    kl: float
    base_perplexity: float
    perplexity: float


@dataclass(frozen=True)
class HeldOutTexts:
    """numbers: of texts in `data`; t2d [n_vocab]: draft rows of all tokens; nodes: size of the tree for tokens per
    step."""

    data: TextData
    numbers: Sequence[int]
    t2d: NDArray[np.int32]
    nodes: int

    @torch.no_grad()
    def measure(self, step: int, through: Through, heads: Heads, before: Through) -> HeldOut:
        """before: the layers as they were. Takes half of the time that training on these texts once takes."""
        data, base = self.data, self.data.base
        assert base is not None
        texts = {number: data.states.texts[number] for number in self.numbers}
        order = sorted(texts, key=lambda number: texts[number].span.start)
        rows, states, former, prompts = [], [], [], {}
        for number in order:
            text = texts[number]
            entered = torch.from_numpy(np.array(data.states.read(number))).to(data.output.device).float()
            normed = through(entered, [len(text.fed)]).half()
            rows.append(np.arange(text.span.start, text.span.start + text.span.length))
            states.append(normed[text.answer_at :])
            former.append(before(entered, [len(text.fed)]).half()[text.answer_at :])
            prompts[text.span.start] = normed[: text.answer_at]
        at, new = np.concatenate(rows), torch.cat(states)
        said = torch.from_numpy(base.tokens[at]).long().to(data.output.device)
        far = Distance.of(compare(torch.cat(former), new, base.output, said))
        source = TextRows(PickedRows(at, new), data.source.embeddings, contexts=prompts.__getitem__)
        spans = [texts[number].span for number in order]
        ranks = rank_texts(heads, source, base.tokens, spans, self.t2d, data.output)
        return HeldOut(step, tokens_per_step(ranks, self.nodes), far.kl, far.base_perplexity, far.perplexity)
