"""Trees by a rule instead of a list: Cartesian products of the heads' best tokens, and random ones of those.

widths: how many tokens of head 1, 2, ... a Cartesian tree takes. All sizes count the root.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from medusa_cli.support.errors import MedusaError

Choices = list[list[int]]
MAX_NODES = 256
"""Most nodes that the engine takes."""
CARTESIAN = "cartesian"
RANDOM = "random"
SPELLING = f"{CARTESIAN}:N,N,... and {RANDOM}:NODES[:SEED]"
MAX_RANDOM_RANK = 10
"""Random trees take as many tokens of a head at most: published ones take no more."""
MIN_SHARE = 0.5
"""A random tree fills more than this share of the nodes that it may have."""

_WIDTHS = re.compile(r"[0-9]{1,6}(,[0-9]{1,6})*")
_RANDOM = re.compile(r"([0-9]{1,6})(?::([0-9]{1,9}))?")


def cartesian_size(widths: Sequence[int]) -> int:
    """Nodes of the Cartesian tree."""
    return 1 + sum(itertools.accumulate(widths, lambda level, width: level * width))


def cartesian(widths: Sequence[int]) -> Choices:
    """The widths[0] best tokens of head 1, below each the widths[1] best of head 2, and so on (Medusa 2.1.2)."""
    ranks = [range(width) for width in widths]
    return [list(path) for depth in range(1, len(widths) + 1) for path in itertools.product(*ranks[:depth])]


def cartesian_name(widths: Sequence[int]) -> str:
    """The --tree argument that gives this tree."""
    return f"{CARTESIAN}:{','.join(map(str, widths))}"


def parse_cartesian(argument: str) -> Choices:
    """ "cartesian:3,2,2" -> its choices. MedusaError for what names no tree, or one of too many nodes."""
    text = argument.removeprefix(f"{CARTESIAN}:")
    widths = [int(part) for part in text.split(",")] if _WIDTHS.fullmatch(text) else []
    if not widths or min(widths) < 1:
        raise MedusaError(f"{argument}: give the number of tokens of each head, from 1, such as {CARTESIAN}:3,2,2")
    size = cartesian_size(widths)
    if size > MAX_NODES:
        raise MedusaError(f"{argument} has {size} nodes, at most {MAX_NODES} are possible: give smaller numbers")
    return cartesian(widths)


@dataclass(frozen=True)
class RandomTree:
    """A Cartesian tree of about `nodes` nodes, drawn once it is known how many heads and ranks can fill it."""

    name: str
    nodes: int
    seed: int

    def widths(self, heads: int, ranks: int) -> list[int]:
        """Drawn evenly from all that fit. MedusaError where none does."""
        shapes = list(dense_shapes(self.nodes, heads, ranks))
        if not shapes:
            raise MedusaError(
                f"{self.name}: {heads} heads with {min(ranks, MAX_RANDOM_RANK)} tokens each cannot fill such a tree: "
                "give a smaller number"
            )
        return list(random.Random(self.seed).choice(shapes))


def dense_shapes(nodes: int, heads: int, ranks: int) -> Iterator[tuple[int, ...]]:
    """The widths of all Cartesian trees of at most `nodes` nodes that fill more than MIN_SHARE of them."""

    def below(start: tuple[int, ...], level: int, size: int) -> Iterator[tuple[int, ...]]:
        if start and size > MIN_SHARE * nodes:
            yield start
        if len(start) < heads:
            for width in range(1, min(ranks, MAX_RANDOM_RANK, (nodes - size) // level) + 1):
                yield from below((*start, width), level * width, size + level * width)

    return below((), 1, 1)


def parse_random(argument: str) -> RandomTree:
    """ "random:64" or "random:64:7" -> the tree to draw. MedusaError for what names none."""
    match = _RANDOM.fullmatch(argument.removeprefix(f"{RANDOM}:"))
    if match is None or not 2 <= int(match[1]) <= MAX_NODES:
        raise MedusaError(
            f"{argument}: give the number of nodes, from 2 to {MAX_NODES}, and optionally a seed, such as {RANDOM}:64:1"
        )
    return RandomTree(argument, int(match[1]), int(match[2] or 0))
