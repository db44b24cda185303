"""From accuracies and costs to a tree. Pure functions: no model, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from medusa_cli.decoding import tree_search
from medusa_cli.decoding.devices import Tile
from medusa_cli.decoding.drafting import FixedTree
from medusa_cli.decoding.trees import DYNAMIC, TreeMethod

PLAIN, TREE, CHAIN = "plain", "tree", "chain"
"""Ways to decode besides trees.DYNAMIC: without drafts; with a fixed tree, one that branches or one that does not."""
WITH_LOOKUP, WITH_RECYCLING = f"{DYNAMIC}+lookup", f"{DYNAMIC}+lookup+recycling"
"""Dynamic trees together with prompt lookup, as in chats, without and with recycled tokens."""


@dataclass(frozen=True)
class Calibration:
    """What a real step takes beyond a bare forward pass: a factor on the pass, and the time of everything else."""

    plain_factor: float = 1.0
    plain_rest_ms: float = 0.0
    draft_factor: float = 1.0
    draft_rest_ms: float = 0.0


@dataclass(frozen=True)
class CostCurve:
    """verify_ms: milliseconds of a forward pass by its number of tokens, after `position` tokens. Always includes 1."""

    position: int
    verify_ms: Mapping[int, float]

    def step_ms(self, nodes: int, calibration: Calibration) -> float:
        """Milliseconds of a whole step with a tree of `nodes`; 1: of plain decoding."""
        if nodes == 1:
            return self.verify_ms[1] * calibration.plain_factor + calibration.plain_rest_ms
        return self.verify_ms[nodes] * calibration.draft_factor + calibration.draft_rest_ms


@dataclass(frozen=True)
class Candidate:
    """A tree, what a step with it brings, and what it costs in plain steps at each position."""

    choices: Sequence[tree_search.Choice]
    tokens_per_step: float
    costs: Sequence[float] = field(default_factory=tuple)

    @property
    def nodes(self) -> int:
        """Number of nodes, with the root."""
        return len(self.choices) + 1

    @property
    def tree(self) -> FixedTree:
        """The tree for a session."""
        return FixedTree([list(choice) for choice in self.choices])

    @property
    def kind(self) -> str:
        """TREE or CHAIN."""
        return TREE if any(any(choice) for choice in self.choices) else CHAIN

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.kind} of {self.nodes}"

    @property
    def speedups(self) -> list[float]:
        """Expected speed over plain decoding at each position."""
        return [self.tokens_per_step / cost for cost in self.costs]

    @property
    def speedup(self) -> float:
        """Geometric mean over the positions."""
        return math.exp(sum(math.log(value) for value in self.speedups) / len(self.costs))


def halves(texts: Sequence[NDArray[np.integer]]) -> tuple[list[NDArray[np.integer]], list[NDArray[np.integer]]]:
    """Every other text to build trees on, the rest to score them on. Needs two texts with positions."""
    usable = [text for text in texts if len(text)]
    return usable[0::2], usable[1::2]


def trees_by_size(
    method: TreeMethod,
    accuracy: NDArray[np.floating],
    built_on: Sequence[NDArray[np.integer]],
    sizes: Sequence[int],
) -> dict[int, list[tree_search.Choice]]:
    """The tree of each size (root included) by `method`. For a size that cannot be filled, the tree is smaller."""
    if method is TreeMethod.accuracies:
        return {size: tree_search.greedy_tree(accuracy, size) for size in sizes}
    grown = tree_search.grow_by_simulation(built_on, max(sizes))
    return {size: sorted(grown[: size - 1], key=lambda choice: (len(choice), choice)) for size in sizes}


def fixed_trees(
    trees: Mapping[int, Sequence[tree_search.Choice]], heads: int, held_out: Sequence[NDArray[np.integer]]
) -> list[Candidate]:
    """The tree of each size above 1, and the chains of up to `heads` drafts, without costs; sorted by size.

    Trees smaller than their size are left out.
    """
    found: dict[tuple[tree_search.Choice, ...], Candidate] = {}
    chains = [[(0,) * depth for depth in range(1, length + 1)] for length in range(1, heads + 1)]
    for size, tree in sorted(trees.items()):
        for choices in (tree, *chains):
            if size > 1 and len(choices) + 1 == size:
                found.setdefault(tuple(choices), Candidate(choices, tree_search.simulate(held_out, choices)[0]))
    return list(found.values())


def priced(candidates: Sequence[Candidate], curves: Sequence[CostCurve], calibration: Calibration) -> list[Candidate]:
    """The candidates whose cost is known at every position, with that cost."""
    result = []
    for candidate in candidates:
        if all(candidate.nodes in curve.verify_ms for curve in curves):
            costs = [curve.step_ms(candidate.nodes, calibration) / curve.step_ms(1, calibration) for curve in curves]
            result.append(Candidate(candidate.choices, candidate.tokens_per_step, costs))
    return result


def shortlist(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The likeliest tree with the highest expected speed, its neighbours in size, and the best chain."""
    trees: dict[int, Candidate] = {}
    for candidate in candidates:
        known = trees.get(candidate.nodes)
        if known is None or candidate.tokens_per_step > known.tokens_per_step:
            trees[candidate.nodes] = candidate
    if not trees:
        return []
    ordered = [trees[nodes] for nodes in sorted(trees)]
    best = max(range(len(ordered)), key=lambda index: ordered[index].speedup)
    found = ordered[max(0, best - 1) : best + 2]
    chains = [candidate for candidate in candidates if candidate.kind == CHAIN]
    chain = max(chains, key=lambda candidate: candidate.speedup, default=None)
    return found if chain is None or chain in found else [*found, chain]


@dataclass(frozen=True)
class Verdict:
    """How to decode from now on, and why.

    candidate: the best fixed tree; None: plain decoding is faster. dynamic: dynamic trees are even faster. recycling:
    and they are fastest with recycled tokens in them.
    """

    candidate: Candidate | None
    dynamic: bool
    reason: str
    recycling: bool = False


def verdict(candidates: Sequence[Candidate], measured: Mapping[str, float]) -> Verdict:
    """The best by measurement, and why.

    measured: speed over plain decoding, by name, of some of the candidates, of DYNAMIC, WITH_LOOKUP and WITH_RECYCLING,
    at the first position.
    """
    tried = [candidate for candidate in candidates if candidate.name in measured]
    if not tried:
        return Verdict(None, False, "drafting does not pay: the heads are never right")
    best = max(tried, key=lambda candidate: measured[candidate.name])
    speed, dynamic = measured[best.name], measured.get(DYNAMIC, 0.0)
    bargain = (
        f"a {best.name} nodes brings {best.tokens_per_step:.2f} tokens per step at the cost of {best.costs[0]:.2f} "
        f"plain steps; real decoding ran at {speed:.2f} of plain speed"
    )
    if DYNAMIC in measured:
        bargain += f", and at {dynamic:.2f} with a tree grown in each step"
    if max(speed, dynamic) <= 1:
        return Verdict(None, False, f"drafting does not pay on this machine: {bargain}")
    if dynamic < speed:
        return Verdict(best, False, f"drafting pays: {bargain}")
    beside, recycled = measured.get(WITH_LOOKUP, 0.0), measured.get(WITH_RECYCLING, 0.0)
    if recycled > beside:
        bargain += f"; together with lookup, recycling raises that from {beside:.2f} to {recycled:.2f}"
    reason = f"drafting pays most with dynamic trees: {bargain}"
    return Verdict(best if speed > 1 else None, True, reason, recycled > beside)


def relative_costs(curves: Sequence[CostCurve], tile: Tile | None = None) -> list[tuple[int, float]]:
    """(nodes, cost of a pass in plain passes) for the sizes known at every position; geometric means over positions.

    tile: the sizes at its edges are filled in, for whoever interpolates between two sizes.
    """
    if not curves:
        return []
    sizes = sorted(set.intersection(*(set(curve.verify_ms) for curve in curves)))
    found = {
        size: math.exp(sum(math.log(curve.verify_ms[size] / curve.verify_ms[1]) for curve in curves) / len(curves))
        for size in sizes
    }
    below = [size for size in sizes if tile and size < tile.first]
    if tile and tile.last in found and len(below) > 1:
        slope = (found[below[-1]] - found[below[-2]]) / (below[-1] - below[-2])
        found.setdefault(tile.first - 1, found[below[-1]] + slope * (tile.first - 1 - below[-1]))
        found.setdefault(tile.first, found[tile.last])
    return sorted(found.items())
