"""How good heads are, and which tree suits them. NumPy only: `tune` uses the same functions.

All functions work on *ranks*: for one text, an integer array [positions, heads] that holds, for each position, the rank
at which head k (column k - 1) put the token that really came, RANKS if it is not among the first RANKS. Row i
belongs to the hidden state the root tokens[i] was sampled from; consecutive rows are consecutive tokens.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RANKS = 10

CANDIDATES = 32
"""Nodes tried in each round of grow_by_simulation()."""

Choice = tuple[int, ...]


def accuracy_table(texts: Sequence[NDArray[np.integer]], ranks: int = RANKS) -> NDArray[np.float64]:
    """[head][rank]: P(rank i of head k is right | its parent path is right), over all positions of all texts.

    The parent path counts as right when heads 1..k-1 all had the real token among their first `ranks`. Zero if no
    position qualifies.
    """
    table = np.concatenate(texts)
    heads = table.shape[1]
    accuracy = np.zeros((heads, ranks))
    alive = np.ones(len(table), dtype=bool)
    for k in range(heads):
        column = table[alive, k]
        hits = np.bincount(column[column < ranks], minlength=ranks)
        accuracy[k] = hits / max(1, len(column))
        alive &= table[:, k] < ranks
    return accuracy


def greedy_tree(accuracy: NDArray[np.floating] | Sequence[Sequence[float]], nodes: int) -> list[Choice]:
    """The tree of at most `nodes` nodes (root included) with the most expected tokens (Medusa 2.3.3).

    Built greedily: always the likeliest path whose parent is in the tree; ties go to the shorter, then to the lower
    ranks. Paths of probability 0 are never added. Returns choices sorted by depth, then by ranks.
    """
    heads = len(accuracy)
    chosen: list[Choice] = []
    heap: list[tuple[float, int, Choice]] = []

    def push_children(parent: Choice, probability: float) -> None:
        if len(parent) < heads:
            for rank, share in enumerate(accuracy[len(parent)]):
                if share > 0:
                    heapq.heappush(heap, (-probability * float(share), len(parent) + 1, (*parent, rank)))

    push_children((), 1.0)
    while heap and len(chosen) < nodes - 1:
        negative, _, choice = heapq.heappop(heap)
        chosen.append(choice)
        push_children(choice, -negative)
    return sorted(chosen, key=lambda choice: (len(choice), choice))


def grow_by_simulation(texts: Sequence[NDArray[np.integer]], nodes: int) -> list[Choice]:
    """Choices in the order in which simulated decoding of the texts adds them, at most `nodes` - 1 (Hydra 4).

    Each next node is the one with which walking all texts takes the fewest steps; among equals, the one that is right
    most often. It tries the CANDIDATES below the tree so far that are right most often. Ends early if no node is ever
    right.
    """
    heads, lengths = texts[0].shape[1], np.array([len(text) for text in texts])
    ranks = np.full((heads, len(texts), int(lengths.max())), RANKS)  # texts side by side, padded to one length
    for row, text in enumerate(texts):
        ranks[:, row, : len(text)] = text.T
    positions = np.arange(ranks.shape[2]) < lengths[:, None]
    depths = np.zeros(positions.shape, dtype=np.int64)  # how deep the tree is right so far, at each position
    chosen: list[Choice] = []
    right: dict[Choice, NDArray[np.bool_]] = {}

    def add_children(parent: Choice, reached: NDArray[np.bool_]) -> None:
        if len(parent) < heads:
            for rank in range(RANKS):
                child, mask = (*parent, rank), reached & (ranks[len(parent)] == rank)
                if mask.any():
                    right[child] = mask

    add_children((), positions)
    while right and len(chosen) < nodes - 1:
        likeliest = sorted(right, key=lambda choice: (-right[choice].sum(), len(choice), choice))[:CANDIDATES]
        deeper = np.stack([len(choice) * right[choice] for choice in likeliest])
        best = likeliest[int(np.argmin(_steps(1 + np.maximum(depths, deeper), lengths)))]
        mask = right.pop(best)
        depths[mask] = np.maximum(depths[mask], len(best))
        chosen.append(best)
        add_children(best, mask)
    return chosen


def _steps(advance: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[candidates]: steps over all texts. advance: [candidates, texts, positions], tokens of a step from a position."""
    at = np.zeros(advance.shape[:2], dtype=np.int64)
    steps = np.zeros(len(advance), dtype=np.int64)
    while (active := at < lengths).any():
        steps += active.sum(axis=1)
        last = np.minimum(at, advance.shape[2] - 1)
        at = np.where(active, at + np.take_along_axis(advance, last[:, :, None], axis=2)[:, :, 0], at)
    return steps


def predicted_tokens_per_step(
    accuracy: NDArray[np.floating] | Sequence[Sequence[float]], choices: Sequence[Sequence[int]]
) -> float:
    """1 (the root) + the probability of each node: the product of the accuracies along its path."""
    return 1.0 + sum(math.prod(float(accuracy[head][rank]) for head, rank in enumerate(choice)) for choice in choices)


def simulate(texts: Sequence[NDArray[np.integer]], choices: Sequence[Sequence[int]]) -> tuple[float, list[float]]:
    """Walks each text with the tree as the engine would.

    Returns tokens per step and acceptance per depth (share of steps that accepted at least that many tokens).
    """
    steps = 0
    reached = np.zeros(max((len(choice) for choice in choices), default=0), dtype=np.int64)
    for ranks in texts:
        depths = np.zeros(len(ranks), dtype=np.int64)  # drafted tokens that would be right, at each position
        for choice in choices:
            right = (ranks[:, : len(choice)] == np.asarray(choice)).all(axis=1)
            depths[right] = np.maximum(depths[right], len(choice))
        at, accepted = 0, depths.tolist()
        while at < len(accepted):
            steps += 1
            reached[: accepted[at]] += 1
            at += 1 + accepted[at]
    acceptance = [float(count) / max(1, steps) for count in reached]
    return 1.0 + sum(acceptance), acceptance
