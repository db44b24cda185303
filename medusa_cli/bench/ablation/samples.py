"""From single answers to the figures of a row."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from medusa_cli.bench.ablation.rows import Row
from medusa_cli.bench.protocol import Outcome

TAIL = 0.025
"""Chance that a median lies beyond one end of its interval."""


@dataclass(frozen=True)
class Sample:
    """An answer, and plain decoding's of the same prompt right before and after it."""

    answer: Outcome
    plain: tuple[Outcome, Outcome]

    @property
    def plain_speed(self) -> float:
        return statistics.mean(answer.speed for answer in self.plain)

    @property
    def speedup(self) -> float:
        return self.answer.speed / self.plain_speed

    @property
    def overhead(self) -> float:
        """Time of a step in plain steps."""
        return self.answer.step_ms / statistics.mean(answer.step_ms for answer in self.plain)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """At least 95% certain to hold the median of what `values` are drawn from, whatever that is; None below six.

    By order statistics: how many of n values lie below the median is binomial with one half.
    """
    ordered, n = sorted(values), len(values)
    below, cut = 0.0, 0
    while cut < n // 2 and (below := below + math.comb(n, cut) / 2**n) <= TAIL:
        cut += 1
    return (ordered[cut - 1], ordered[n - cut]) if cut else None


def figures(row: Row, samples: Sequence[Sample]) -> dict[str, Any]:
    """The row as it stands in the JSON; None for what cannot be known without samples.

    Speeds and costs are medians over the prompts, which a slow spell of the machine moves little.
    """
    answers = [sample.answer for sample in samples]
    steps = sum(answer.steps for answer in answers)
    ratios = [sample.speedup for sample in samples]
    interval = median_interval(ratios)
    return {
        "name": row.name,
        "tables": row.labels,
        "heads_file": row.heads_file,
        "nodes": max((answer.tree_nodes for answer in answers), default=len(row.tree or []) + 1),
        "tree": row.tree,
        "rule": row.rule,
        "temperature": row.temperature,
        "heads": row.heads,
        "prompts": len(samples),
        "tokens_per_step": sum(answer.committed for answer in answers) / steps if steps else None,
        "tokens_per_second": statistics.median(answer.speed for answer in answers) if answers else None,
        "speedup_vs_plain": statistics.median(ratios) if ratios else None,
        "speedup_vs_plain_ci95": list(interval) if interval else None,
        "overhead": statistics.median(sample.overhead for sample in samples) if samples else None,
        "same_text": sum(sample.answer.tokens == sample.plain[0].tokens for sample in samples) if samples else None,
    }


def outside_ms(samples: Sequence[Sample]) -> tuple[float, float] | None:
    """Milliseconds of a step beside its forward pass: of these answers, and of plain decoding's; None without any."""
    if not samples:
        return None

    def outside(answers: Sequence[Outcome]) -> float:
        return sum(a.decode_ms - a.timings_ms["verify"] for a in answers) / sum(a.steps for a in answers)

    return outside([sample.answer for sample in samples]), outside([one for s in samples for one in s.plain])
