"""What comes from a device to the host in a step, in bytes, for models whose output matrix lies on a device.

Either the host samples, accepts and fills the tree, or the model's own graph accepts and drafts, or names the likeliest
tokens of each row (native/in_graph).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

FLOAT = 4
FOUND = 3
"""Numbers that acceptance in the graph brings: rows without NaN, the node, the token after it."""
RANKED = 41
"""Likeliest tokens of a row that the graph names where tokens are sampled: token and logit of each."""
LIKELIEST = 9
"""Numbers of a node from which recycled tokens are learned at temperature 0: its likeliest tokens, and their lead."""
GROWN_RANKS, GROWN_WIDTH = 8, 8
"""Of dynamic trees: tokens below a node, and nodes of a level that heads are asked below."""
MOST_GROWN, MOST_NODES = 1000, 48
"""Numbers that dynamic trees' candidates, and what is learned of so many nodes, come to at most: heads are asked below
fewer nodes where it takes that."""
EXACT_WIDTHS, WIDTH_STEP = 8, 8
"""Hydra's graphs are as wide as a level's nodes, above 8 rounded up to a multiple of 8 (native/heads)."""


@dataclass(frozen=True)
class Transfers:
    """logits, states: of each node. heads: rows of their output matrices, and the state that a prefix layer makes."""

    logits: int
    states: int
    heads: int

    @property
    def total(self) -> int:
        """All bytes."""
        return self.logits + self.states + self.heads


@dataclass(frozen=True)
class HeadRows:
    """Of draft heads: kind ("medusa", "hydra", "hydra++"), rows of an output matrix; has_prefix: a layer over all
    states comes before them."""

    kind: str
    rows: int
    has_prefix: bool


def of_step(parents: Sequence[int], n_vocab: int, n_embd: int, heads: HeadRows | None) -> Transfers:
    """Of a step whose tree has these parents (-1 for the root, first). Without heads no states are read."""
    nodes = len(parents)
    logits = nodes * n_vocab * FLOAT
    if heads is None:
        return Transfers(logits, 0, 0)
    columns = sum(_columns(parents, heads.kind))
    prefix = n_embd if heads.has_prefix else 0
    return Transfers(logits, nodes * n_embd * FLOAT, (columns * heads.rows + prefix) * FLOAT)


def of_step_in_graph(choices: Sequence[Sequence[int]], kind: str | None, recycled: int = 0) -> int:
    """Of a step whose tree the model's own graph accepts and heads of `kind` fill: what was found, and the candidates.

    Medusa's heads have one column each and all as many ranks, Hydra's a column below each parent. recycled: nodes that
    recycled tokens are learned from.
    """
    if kind is None:
        return FLOAT * (FOUND + LIKELIEST * recycled)
    depths = range(1, max((len(choice) for choice in choices), default=0) + 1)
    levels = [[choice for choice in choices if len(choice) == depth] for depth in depths]
    ranks = [max(choice[-1] for choice in level) + 1 for level in levels]
    if kind == "medusa":
        return FLOAT * (FOUND + len(levels) * max(ranks, default=0))
    columns = [len({tuple(choice[:-1]) for choice in level}) for level in levels]
    return FLOAT * (FOUND + sum(n * k for n, k in zip(columns, ranks, strict=True)))


def of_grown_step_in_graph(depth: int, ranks: int, kind: str, recycled: int = 0) -> int:
    """The same of dynamic trees: candidates with their probabilities and, of heads that read the path, the nodes that
    they were asked below. depth: heads. ranks: rows of their output matrix. recycled: as above, 0 without them.
    """
    ranks = min(GROWN_RANKS, ranks)
    most = MOST_GROWN - (LIKELIEST * MOST_NODES if recycled else 0)
    found = FOUND + LIKELIEST * recycled
    if kind == "medusa":
        return FLOAT * (found + 2 * depth * ranks)
    for width in range(GROWN_WIDTH, 0, -1):
        columns = [1]
        while len(columns) < depth:
            columns.append(min(width, columns[-1] * ranks))
        brought = 2 * ranks * sum(columns) + sum(columns[1:])
        if brought <= most:
            break
    return FLOAT * (found + brought)


def of_sampled_step_in_graph(nodes: int, n_vocab: int, drafts: int) -> int:
    """Of a step of so many nodes whose tokens are sampled. drafts: bytes of a greedy step, 0 where nothing drafts."""
    rows = nodes * (2 * min(RANKED, n_vocab) + 1)
    return FLOAT * rows + max(drafts - FLOAT * FOUND, 0)


def _columns(parents: Sequence[int], kind: str) -> list[int]:
    """Columns that the heads are evaluated for at each depth: one of Medusa's, of Hydra's one below each parent."""
    depths = [0] * len(parents)
    for node, parent in enumerate(parents):
        depths[node] = depths[parent] + 1 if parent >= 0 else 0
    widths = Counter(depths[parent] + 1 for parent in set(parents) if parent >= 0)
    if kind == "medusa":
        return [1] * len(widths)
    return [n if n <= EXACT_WIDTHS else -(-n // WIDTH_STEP) * WIDTH_STEP for n in widths.values()]
