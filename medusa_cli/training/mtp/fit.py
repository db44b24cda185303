"""Tunes an MTP layer: all depths at once, each fed with the layer's own states (FastMTP, arXiv:2509.18362)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from medusa_cli.decoding.tree_search import simulate

from ..heads.fit import DraftsFit, FitPlan
from .layer import MtpLayer

DRAFT_ROWS = 32768
"""In vocabularies of twice as many tokens and more, the engine's drafters choose from the first of them and from those
of the text (native/draft_model/output_rows.h)."""
ROWS_AT_ONCE = 512
"""Rows whose gradients are computed together: attention over whole texts takes memory."""


class MtpFit(DraftsFit):
    """Trains the layer. If nothing is better, it stays as it was. run()'s evaluate gets the layer."""

    measures_fresh = keeps_fresh = True
    at_once = ROWS_AT_ONCE

    def __init__(self, plan: FitPlan, layer: MtpLayer, device: torch.device) -> None:
        self.layer = layer
        super().__init__(plan, layer, layer, device)
        if plan.recipe.decay:
            self.start = [weight.detach().clone() for weight in self.weights]


def drafted_tokens(n_vocab: int, of_text: NDArray[np.int32]) -> NDArray[np.int32]:
    """The tokens that the layer chooses from, ascending. of_text: those that are frequent in the text."""
    if n_vocab < 2 * DRAFT_ROWS:
        return np.arange(n_vocab, dtype=np.int32)
    return np.union1d(np.arange(DRAFT_ROWS, dtype=np.int32), of_text)


def chain(length: int) -> list[tuple[int, ...]]:
    """The tree of the likeliest token after each."""
    return [(0,) * depth for depth in range(1, length + 1)]


def chain_tokens_per_step(texts: Sequence[NDArray[np.integer]], length: int) -> float:
    """Held-out tokens per step with a chain, root included. texts: ranks of each."""
    return simulate(texts, chain(length))[0] if sum(map(len, texts)) else 1.0
