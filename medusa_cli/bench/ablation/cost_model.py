"""Speed before decoding: tokens per step from accuracies or a logarithm, cost from bare passes (Medusa appendix G)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from medusa_cli.bench.ablation.rows import interpolated
from medusa_cli.decoding import trees


def fit_log(points: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """a, b of tokens per step = a ln(nodes) + b, by least squares; None for fewer than two sizes."""
    if len({nodes for nodes, _ in points}) < 2:
        return None
    nodes, values = zip(*points, strict=True)
    line = statistics.linear_regression([math.log(count) for count in nodes], values)
    return line.slope, line.intercept


def predicted_overhead(nodes: int, passes_ms: Mapping[int, float], outside: tuple[float, float] | None) -> float | None:
    """Time of a step in plain steps: bare passes and what steps take beside them (of the row, of plain decoding)."""
    if outside is None or nodes > max(passes_ms, default=0):
        return None
    return (interpolated(passes_ms, nodes) + outside[0]) / (interpolated(passes_ms, 1) + outside[1])


def model(
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
