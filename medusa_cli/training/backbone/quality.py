"""How far a jointly trained model is from its base: the same texts through both, natively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native

from .loss import compare
from .states import WholeText

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
        """rows [R, 4] as of loss.compare()."""
        kl, same, ours, theirs = rows.double().mean(dim=0).tolist()
        return Distance(len(rows), kl, same, float(np.exp(ours)), float(np.exp(theirs)))


class NativeStates:
    """States after the final norm, from the engine itself."""

    def __init__(self, model: native.Model, longest: int, threads: int) -> None:
        self._reader = native.StatesReader(model, longest, outputs=True, n_threads=threads)

    def read(self, tokens: Sequence[int]) -> Tensor:
        """[T, h]"""
        states = self._reader.read(tokens).post_norm
        assert states is not None
        return torch.from_numpy(states)


def answer_states(
    model: native.Model, texts: Sequence[WholeText], threads: int, on_rows: Callable[[int], None]
) -> tuple[NDArray[np.int64], Tensor]:
    """(rows [N] of the corpus, ascending; [N, h] float16): what `model` computes at the answers of `texts`."""
    reader = NativeStates(model, max(len(text.fed) for text in texts), threads)
    rows, parts = [], []
    for text in sorted(texts, key=lambda text: text.span.start):
        parts.append(reader.read(text.fed.tolist())[text.answer_at :].half())
        rows.append(np.arange(text.span.start, text.span.start + text.span.length))
        on_rows(sum(map(len, rows)))
    return np.concatenate(rows), torch.cat(parts)


def foreign_distance(
    base: native.Model, new: native.Model, texts: Sequence[str], output: Tensor, threads: int
) -> Distance:
    """On text that neither model wrote, FOREIGN_TOKENS tokens of it."""
    tokenized = [base.tokenize(text) for text in texts]
    longest = max(map(len, tokenized))
    readers = [NativeStates(model, longest, threads) for model in (base, new)]
    rows: list[Tensor] = []
    for tokens in tokenized:
        if sum(map(len, rows)) < FOREIGN_TOKENS and len(tokens) > 1:
            ours, theirs = (reader.read(tokens[:-1]).to(output.device) for reader in readers)
            rows.append(compare(ours, theirs, output, torch.tensor(tokens[1:], device=output.device)))
    return Distance.of(torch.cat(rows))
