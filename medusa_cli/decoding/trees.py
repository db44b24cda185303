"""Draft trees by name, rule or file, and drawn as text. A tree is a list of choices, each a path of ranks.

The rules: Cartesian products of the heads' best tokens, and random ones of those. widths: how many tokens of head 1,
2, ... a Cartesian tree takes. All sizes count the root.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from medusa_cli.support.errors import MedusaError

Choices = list[list[int]]
BUILT_IN_FILE = Path(__file__).parent.parent / "data" / "trees.json"
DEFAULT_CPU = "cpu_4"
DEFAULT_GPU = "mc_sim_7b_63"
DYNAMIC = "dynamic"
"""Names not one tree but making a new one in each step: a dynamic tree."""
STATIC = "static"
"""Names whichever tree is the default, as long as it is the same in each step."""
EXAMPLE = "[[0], [0, 0], [1]]"
MAX_NODES = 256
"""Most nodes that the engine takes."""
CARTESIAN = "cartesian"
RANDOM = "random"
SPELLING = f"{CARTESIAN}:N,N,... and {RANDOM}:NODES[:SEED]"
MAX_RANDOM_RANK = 10
"""Random trees take at most this many tokens of a head: published ones take no more."""
MIN_SHARE = 0.5
"""A random tree fills more than this share of the nodes it may have."""

_WIDTHS = re.compile(r"[0-9]{1,6}(,[0-9]{1,6})*")
_RANDOM = re.compile(r"([0-9]{1,6})(?::([0-9]{1,9}))?")


class TreeMethod(str, Enum):
    """How `tune` finds the trees that it weighs.

    accuracies: the likeliest paths (Medusa 2.3.3). simulate: each next node by simulated decoding (Hydra 4).
    """

    accuracies = "accuracies"
    simulate = "simulate"


@dataclass(frozen=True)
class DynamicStart:
    """What is known about dynamic trees before the first step; empty: learned while decoding.

    calibration: [head][bin], as in native.DynamicTree. costs: (nodes, cost in plain steps).
    """

    calibration: list[list[float]] = field(default_factory=list)
    costs: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class NamedTree:
    """Choices and where they come from. strict: the person wrote them, so they are never clipped silently."""

    name: str
    choices: Choices
    strict: bool = False


@dataclass(frozen=True)
class RandomTree:
    """A Cartesian tree of about `nodes` nodes, drawn once the number of heads and ranks to fill it is known."""

    name: str
    nodes: int
    seed: int

    def widths(self, heads: int, ranks: int) -> list[int]:
        """Drawn evenly from all that fit. MedusaError if none does."""
        shapes = list(dense_shapes(self.nodes, heads, ranks))
        if not shapes:
            raise MedusaError(
                f"{self.name}: {heads} heads with {min(ranks, MAX_RANDOM_RANK)} tokens each cannot fill such a tree: "
                "give a smaller number"
            )
        return list(random.Random(self.seed).choice(shapes))


AskedTree = NamedTree | RandomTree
"""What a --tree argument names."""


@functools.cache
def built_in() -> dict[str, Choices]:
    """The trees shipped with medusa, by name."""
    return dict(json.loads(BUILT_IN_FILE.read_text(encoding="utf-8")))


def named(name: str) -> NamedTree:
    """A built-in tree. MedusaError lists the names."""
    try:
        return NamedTree(name, built_in()[name])
    except KeyError:
        names = ", ".join(sorted([*built_in(), DYNAMIC, STATIC]))
        raise MedusaError(f"no tree named {name!r}: there are {names}, {SPELLING}, or give a JSON file") from None


def resolve(argument: str) -> AskedTree:
    """A `--tree` argument but DYNAMIC and STATIC: a NAME, a rule, a FILE, or FILE:NAME. MedusaError for any other."""
    if argument in built_in():
        return named(argument)
    if argument.startswith(f"{CARTESIAN}:"):
        return NamedTree(argument, parse_cartesian(argument), strict=True)
    if argument.startswith(f"{RANDOM}:"):
        return parse_random(argument)
    path, name = Path(argument), ""
    if not path.exists() and ":" in argument:
        before, _, after = argument.rpartition(":")
        if Path(before).exists():
            path, name = Path(before), after
    if not path.exists():
        looks_like_file = path.suffix or len(path.parts) > 1
        if looks_like_file:
            raise MedusaError(f"no such tree file: {argument}")
        return named(argument)
    return _from_file(path, name)


def fixed(argument: str) -> AskedTree:
    """resolve() for places that do not take DYNAMIC and STATIC. MedusaError for those, too."""
    if argument in (DYNAMIC, STATIC):
        raise MedusaError(f"{argument} is not a tree but a way to choose one: give a name, {SPELLING}, a file")
    return resolve(argument)


def _from_file(path: Path, name: str) -> NamedTree:
    if path.is_dir():
        raise MedusaError(f"{path} is a directory: give a JSON file of choices such as {EXAMPLE}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise MedusaError(f"{path}: not JSON: give a list of choices such as {EXAMPLE}") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise MedusaError(f"{path}: not JSON ({error}): give a list of choices such as {EXAMPLE}") from error
    if isinstance(content, dict):
        content, name = _pick(path, content, name)
    elif name:
        raise MedusaError(f"{path} holds one unnamed tree: leave out ':{name}'")
    label = f"{path}:{name}" if name else str(path)
    return NamedTree(label, checked(content, label), strict=True)


def _pick(path: Path, content: dict[str, Any], name: str) -> tuple[Any, str]:
    if not name and len(content) == 1:
        name = next(iter(content))
    if name not in content:
        wanted = f"no tree {name!r}" if name else f"{len(content)} trees"
        raise MedusaError(f"{path} holds {wanted}: choose one with {path}:NAME ({', '.join(content) or 'it is empty'})")
    return content[name], name


def checked(content: Any, label: str) -> Choices:
    """`content` as choices that form a tree. MedusaError, starting with `label`, otherwise."""
    from medusa_cli import native

    def is_rank(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31

    if not isinstance(content, list):
        raise MedusaError(f"{label}: a tree is a list of choices such as {EXAMPLE}, not {type(content).__name__}")
    for choice in content:
        if not isinstance(choice, list) or not choice or not all(is_rank(rank) for rank in choice):
            raise MedusaError(f"{label}: {json.dumps(choice)} is not a choice: give ranks from 0, as in {EXAMPLE}")
    try:
        native.Tree(content)
    except native.NativeError as error:
        raise MedusaError(f"{label}: {error}") from error
    return [list(choice) for choice in content]


# --- rules -----------------------------------------------------------------------------------------


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
    """ "cartesian:3,2,2" -> its choices. MedusaError if it names no tree, or one of too many nodes."""
    text = argument.removeprefix(f"{CARTESIAN}:")
    widths = [int(part) for part in text.split(",")] if _WIDTHS.fullmatch(text) else []
    if not widths or min(widths) < 1:
        raise MedusaError(f"{argument}: give the number of tokens of each head, from 1, such as {CARTESIAN}:3,2,2")
    size = cartesian_size(widths)
    if size > MAX_NODES:
        raise MedusaError(f"{argument} has {size} nodes, at most {MAX_NODES} are possible: give smaller numbers")
    return cartesian(widths)


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
    """ "random:64" or "random:64:7" -> the tree to draw. MedusaError if it names none."""
    match = _RANDOM.fullmatch(argument.removeprefix(f"{RANDOM}:"))
    if match is None or not 2 <= int(match[1]) <= MAX_NODES:
        raise MedusaError(
            f"{argument}: give the number of nodes, from 2 to {MAX_NODES}, and optionally a seed, such as {RANDOM}:64:1"
        )
    return RandomTree(argument, int(match[1]), int(match[2] or 0))


def probabilities(choices: Choices, accuracy: Sequence[Sequence[float]]) -> list[float | None]:
    """P(choice is accepted) for each choice: the product of accuracy[depth][rank] on its path; None when unknown."""
    result: list[float | None] = []
    for choice in choices:
        product: float | None = 1.0
        for depth, rank in enumerate(choice):
            known = depth < len(accuracy) and rank < len(accuracy[depth])
            product = product * accuracy[depth][rank] if known and product is not None else None
        result.append(product)
    return result


def expected_tokens(choices: Choices, accuracy: Sequence[Sequence[float]]) -> float | None:
    """Tokens per step that the accuracies promise: 1 + the chance of each. None if one is unknown or there is none."""
    known = [chance for chance in probabilities(choices, accuracy) if chance is not None]
    return 1.0 + sum(known) if known and len(known) == len(choices) else None


# --- as text ---------------------------------------------------------------------------------------

WIDTH = 60
"""Columns that a drawing fits into, leaving out the chances if need be."""


@dataclass
class _Node:
    """A drafted token, or siblings of consecutive ranks with nothing below them. chance: that any of them is right."""

    first: int
    last: int
    chance: float | None
    below: list[_Node] = field(default_factory=list)

    def label(self, chances: bool) -> str:
        ranks = str(self.first) if self.first == self.last else f"{self.first}..{self.last}"
        if self.chance is None or not chances:
            return ranks
        return f"{ranks} {100 * self.chance:.0f}%" if self.chance >= 0.01 else f"{ranks} <1%"


def draw(choices: Choices, accuracy: Sequence[Sequence[float]] = ()) -> list[str]:
    """The tree's lines: each node its rank and, if known, P(accepted); leaves side by side share a line ("2..5")."""
    top = _nested(choices, accuracy)
    for chances in (True, False):
        lines = _sideways(top, chances)
        if max(map(len, lines)) <= WIDTH:
            return lines
    return ["root", *_outline(top, 1)]


def _nested(choices: Choices, accuracy: Sequence[Sequence[float]]) -> list[_Node]:
    """The nodes below the root."""
    chances = {tuple(choice): p for choice, p in zip(choices, probabilities(choices, accuracy), strict=True)}
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for path in sorted(chances):
        children.setdefault(path[:-1], []).append(path)

    def below(parent: tuple[int, ...]) -> list[_Node]:
        found: list[_Node] = []
        for path in children.get(parent, []):
            node = _Node(path[-1], path[-1], chances[path], below(path))
            before = found[-1] if found else None
            if before and not before.below and not node.below and before.last + 1 == node.first:
                before.last = node.last
                before.chance = None if before.chance is None or node.chance is None else before.chance + node.chance
            else:
                found.append(node)
        return found

    return below(())


def _sideways(top: list[_Node], chances: bool) -> list[str]:
    """One line per leaf."""
    widths: dict[int, int] = {0: len("root")}

    def measure(nodes: list[_Node], depth: int) -> None:
        for node in nodes:
            widths[depth] = max(widths.get(depth, 0), len(node.label(chances)))
            measure(node.below, depth + 1)

    def lines(label: str, below: list[_Node], depth: int) -> list[str]:
        if not below:
            return [label]
        result = []
        for index, child in enumerate(below):
            last = index == len(below) - 1
            joint = ("─" if last else "┬") if index == 0 else ("└" if last else "├")
            for row, text in enumerate(lines(child.label(chances), child.below, depth + 1)):
                start = (label if index == 0 and row == 0 else "").ljust(widths[depth])
                link = joint if row == 0 else " " if last else "│"
                result.append(f"{start} {link}{'─' if row == 0 else ' '} {text}")
        return result

    measure(top, 1)
    return lines("root", top, 0)


def _outline(nodes: list[_Node], depth: int) -> list[str]:
    """One line per node, its depth before its rank: for trees too deep to draw sideways."""
    return [line for node in nodes for line in (f"depth {depth}: {node.label(True)}", *_outline(node.below, depth + 1))]
