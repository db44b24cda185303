"""From heads and held-out texts to the ranks that trees are grown from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.decoding.tree_search import RANKS, accuracy_table, greedy_tree, simulate

from ..text.dataset import Span, examples_of
from .layers import Heads
from .loss import target_ranks
from .rows import TextRows, text_batches

ROWS, ROWS_GPU = 512, 4096
"""Rows ranked at a time."""


@torch.no_grad()
def rank_texts(
    heads: Heads,
    source: TextRows,
    tokens: NDArray[np.integer],
    spans: Sequence[Span],
    t2d: NDArray[np.integer],
    output: Tensor,
) -> list[NDArray[np.int64]]:
    """For each text its [positions, heads] ranks (positions with all targets inside).

    The heads read the text's own tokens where they need drafted ones: accepted tokens are the text's tokens, so this is
    what the engine sees on every path it accepts. output [D, h] on the device, in the dtype to multiply in.
    """
    count = heads.shape.count
    kept = [span for span in spans if span.length > count]
    examples = examples_of(tokens, kept, t2d, count)
    parts = []
    for picked in text_batches(examples, ROWS_GPU if output.device.type == "cuda" else ROWS):
        rows = torch.from_numpy(examples.rows)[picked.index]
        wanted = torch.from_numpy(examples.target)[picked.index].long().to(output.device)
        z = heads(source.inputs(rows, count, picked.lengths), output.dtype)
        parts.append(target_ranks(z, wanted, heads.output(output), RANKS).cpu().numpy())
    ranks = np.concatenate(parts) if parts else np.zeros((0, count), np.int64)
    texts, at = [], 0
    for span in kept:
        texts.append(ranks[at : at + span.length - count])
        at += span.length - 1
    return texts


def tokens_per_step(texts: Sequence[NDArray[np.integer]], nodes: int) -> float:
    """Of the best tree of `nodes` nodes (root included) for these very texts: for comparing heads, not for boasting."""
    if sum(map(len, texts)) == 0:
        return 1.0
    return simulate(texts, greedy_tree(accuracy_table(texts), nodes))[0]
