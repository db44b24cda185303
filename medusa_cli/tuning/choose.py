"""From accuracies and costs to a tree. Pure functions: no model, no clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from medusa_cli.training import evaluate

SIZES = (*range(1, 17), 24, 32, 48, 64)
"""Nodes of the trees that are considered, root included; 1 is plain decoding."""


@dataclass(frozen=True)
class Calibration:
    """What a real step takes beyond a bare forward pass: a factor on the pass, and the time of everything else."""

    plain_factor: float = 1.0
    plain_rest_ms: float = 0.0
    draft_factor: float = 1.0
    draft_rest_ms: float = 0.0


@dataclass(frozen=True)
class CostCurve:
    """verify_ms: milliseconds of a forward pass by its number of tokens, behind `position` tokens. Always holds 1."""

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

    choices: Sequence[evaluate.Choice]
    tokens_per_step: float
    costs: Sequence[float] = field(default_factory=tuple)

    @property
    def nodes(self) -> int:
        """With the root."""
        return len(self.choices) + 1

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


def grow(
    accuracy: NDArray[np.floating], held_out: Sequence[NDArray[np.integer]], sizes: Sequence[int] = SIZES
) -> list[Candidate]:
    """The likeliest tree of each size above 1, without costs. Sizes that the accuracies cannot fill are left out."""
    found: dict[int, Candidate] = {}
    for size in sizes:
        choices = evaluate.grow_tree(accuracy, size)
        if size > 1 and len(choices) + 1 == size:
            found[size] = Candidate(choices, evaluate.simulate(held_out, choices)[0])
    return list(found.values())


def priced(candidates: Sequence[Candidate], curves: Sequence[CostCurve], calibration: Calibration) -> list[Candidate]:
    """The candidates whose cost is known at every position, with it."""
    result = []
    for candidate in candidates:
        if all(candidate.nodes in curve.verify_ms for curve in curves):
            costs = [curve.step_ms(candidate.nodes, calibration) / curve.step_ms(1, calibration) for curve in curves]
            result.append(Candidate(candidate.choices, candidate.tokens_per_step, costs))
    return result


def shortlist(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidate with the highest expected speed and its neighbours in size, ordered by size."""
    if not candidates:
        return []
    ordered = sorted(candidates, key=lambda candidate: candidate.nodes)
    best = max(range(len(ordered)), key=lambda index: ordered[index].speedup)
    return ordered[max(0, best - 1) : best + 2]


def verdict(candidates: Sequence[Candidate], measured: Mapping[int, float]) -> tuple[Candidate | None, str]:
    """The measured best and why; None: plain decoding.

    measured: speed over plain decoding by number of nodes, of some of the candidates, at the first position.
    """
    tried = [candidate for candidate in candidates if candidate.nodes in measured]
    if not tried:
        return None, "drafting does not pay: the heads are right about nothing"
    best = max(tried, key=lambda candidate: measured[candidate.nodes])
    speed = measured[best.nodes]
    bargain = (
        f"{best.nodes} nodes bring {best.tokens_per_step:.2f} tokens a step for the time of {best.costs[0]:.2f} plain "
        f"steps, real decoding ran at {speed:.2f} of plain speed"
    )
    if speed <= 1:
        return None, f"drafting does not pay on this machine: {bargain}"
    return best, f"drafting pays: {bargain}"
