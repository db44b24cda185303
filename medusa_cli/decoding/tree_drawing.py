"""Trees as text: on their side, one column a depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from medusa_cli.decoding.trees import Choices, probabilities

WIDTH = 60
"""Columns that a drawing keeps to, if need be by leaving out the chances."""


@dataclass
class _Node:
    """A drafted token, or siblings of consecutive ranks below which nothing hangs. chance: of any of them."""

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
    """One line a leaf."""
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
    """One line a node, its depth before its rank: for trees too deep to lie on their side."""
    return [line for node in nodes for line in (f"depth {depth}: {node.label(True)}", *_outline(node.below, depth + 1))]
