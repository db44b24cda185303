"""From single answers to the figures of a row, next to what was expected."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medusa_cli.bench.ablation.rows import Row, interpolated
from medusa_cli.bench.protocol import Outcome
from medusa_cli.decoding import trees

TAIL = 0.025
"""Chance that a median lies beyond one end of its interval."""


@dataclass(frozen=True)
class Sample:
    """An answer, and plain decoding's answers to the same prompt right before and after it."""

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

    By order statistics: the number of n values below the median is binomial with one half.
    """
    ordered, n = sorted(values), len(values)
    below, cut = 0.0, 0
    while cut < n // 2 and (below := below + math.comb(n, cut) / 2**n) <= TAIL:
        cut += 1
    return (ordered[cut - 1], ordered[n - cut]) if cut else None


def figures(row: Row, samples: Sequence[Sample]) -> dict[str, Any]:
    """The row as it appears in the JSON; None for what cannot be known without samples.

    Speeds and costs are medians over the prompts, which a slow spell of the machine hardly affects.
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
    """Milliseconds of a step outside its forward pass: in these answers, and in plain decoding's; None without any."""
    if not samples:
        return None

    def outside(answers: Sequence[Outcome]) -> float:
        return sum(a.decode_ms - a.timings_ms["verify"] for a in answers) / sum(a.steps for a in answers)

    return outside([sample.answer for sample in samples]), outside([one for s in samples for one in s.plain])


# --- speed before decoding -------------------------------------------------------------------------
# Tokens per step from accuracies or a logarithm, cost from bare passes (Medusa appendix G).


def fit_log(points: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """a, b of tokens per step = a ln(nodes) + b, by least squares; None for fewer than two sizes."""
    if len({nodes for nodes, _ in points}) < 2:
        return None
    nodes, values = zip(*points, strict=True)
    line = statistics.linear_regression([math.log(count) for count in nodes], values)
    return line.slope, line.intercept


def predicted_overhead(nodes: int, passes_ms: Mapping[int, float], outside: tuple[float, float] | None) -> float | None:
    """Time of a step in plain steps: bare passes and what steps take besides (in the row, in plain decoding)."""
    if outside is None or nodes > max(passes_ms, default=0):
        return None
    return (interpolated(passes_ms, nodes) + outside[0]) / (interpolated(passes_ms, 1) + outside[1])


def cost_model(
    measured: Sequence[dict[str, Any]],
    accuracy: Sequence[Sequence[float]],
    passes_ms: Mapping[int, float],
    outsides: Sequence[tuple[float, float] | None],
) -> dict[str, Any]:
    """The cost model of one heads file. measured: rows of sparse trees (figures()), outsides: outside_ms() of each."""
    rows = [row for row in measured if row["tokens_per_step"] is not None]
    line = fit_log([(1, 1.0), *((row["nodes"], row["tokens_per_step"]) for row in rows)])
    found = []
    for row, outside in zip(measured, outsides, strict=True):
        expected = trees.expected_tokens(row["tree"], accuracy)
        logarithm = None if line is None else line[0] * math.log(row["nodes"]) + line[1]
        overhead = predicted_overhead(row["nodes"], passes_ms, outside)
        found.append(
            {
                "name": row["name"],
                "nodes": row["nodes"],
                "tokens_per_step": {"accuracies": expected, "log": logarithm, "measured": row["tokens_per_step"]},
                "overhead": {"predicted": overhead, "measured": row["overhead"]},
                "speedup": {
                    "accuracies": expected / overhead if expected and overhead else None,
                    "log": logarithm / overhead if logarithm and overhead else None,
                    "measured": row["speedup_vs_plain"],
                },
            }
        )
    return {"a": line and line[0], "b": line and line[1], "passes_ms": dict(passes_ms), "rows": found}
