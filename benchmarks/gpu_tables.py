"""The rows that gpu_measure.py has found, as tables, with what was aimed at."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_steps import BENCH_KEYS, Row
from rich.table import Table

GOAL_SHARE, GOALS_BEYOND = 0.92, (0.06, 0.12)
"""Of the speedup that is promised; most that a step takes beyond its pass, with the smaller tree and the larger."""


def passes(rows: Sequence[Row]) -> Table:
    contexts = sorted({row["context"] for row in rows})
    ms = {(row["context"], row["nodes"]): row["ms"] for row in rows}
    table = Table("n", *(f"at {context}" for context in contexts), title="Passes over n tokens: ms, and T(n)/T(1)")
    for n in sorted({row["nodes"] for row in rows}):
        cells = [(ms.get((context, n)), ms.get((context, 1))) for context in contexts]
        table.add_row(str(n), *("" if t is None or one is None else f"{t:.2f}  {t / one:.2f}" for t, one in cells))
    return table


def overhead(rows: Sequence[Row]) -> Table:
    title = "Steps: ms; beyond the pass, in T(1)"
    table = Table("nodes", "at", "heads", "T(1)", "T(n)", "step", "beyond", "heads alone", "goal", title=title)
    largest = max(row["nodes"] for row in rows)
    for row in rows:
        goal = GOALS_BEYOND[row["nodes"] == largest]
        times = (f"{row[key]:.2f}" for key in ("pass_1_ms", "pass_ms", "step_ms"))
        shares = f"{row['beyond']:.1%}", f"{row['drafting']:.1%}"
        table.add_row(
            str(row["nodes"]), str(row["context"]), row["heads"], *times, *shares,
            f"{goal:.0%} {verdict(row['beyond'] <= goal)}",
        )  # fmt: skip
    return table


def speed(rows: Sequence[Row]) -> Table:
    title = f"Speed over plain; share: of tokens per step / (T(n)/T(1)), goal {GOAL_SHARE}"
    table = Table("at", "heads", "nodes", "tok/step", "T(n)/T(1)", "plain tok/s", "speedup", "share", title=title)
    for row in rows:
        place = str(row["context"]), row["heads"], str(row["nodes"])
        figures = row["tokens_per_step"], row["pass_cost"], row["plain_tokens_per_second"], row["speedup"]
        share = f"{row['share']:.2f} {verdict(row['share'] >= GOAL_SHARE)}"
        table.add_row(*place, *(f"{figure:.2f}" for figure in figures), share)
    return table


def texts(rows: Sequence[Row]) -> Table:
    table = Table("tree", "texts", "identical", "explained", "wrong", "tok/step", "speedup", title="Greedy texts")
    for tree in dict.fromkeys(row["tree"] for row in rows):
        mine = [row for row in rows if row["tree"] == tree]
        differing = [row for row in mine if row["first_difference"] is not None]
        wrong = sum(not row["explained"] for row in differing)
        means = (f"{sum(row[key] for row in mine) / len(mine):.2f}" for key in ("tokens_per_step", "speedup"))
        counts = len(mine), len(mine) - len(differing), len(differing) - wrong, wrong
        table.add_row(tree, *map(str, counts), *means)
    return table


def methods(rows: Sequence[Row]) -> Table:
    table = Table("method", "tok/s", "of stock", "of plain", "tok/step", title="Methods")
    for row in rows:
        figures = (row[key] for key in BENCH_KEYS[:4])
        table.add_row(row["method"], *("" if figure is None else f"{figure:.2f}" for figure in figures))
    return table


def tests(rows: Sequence[Row]) -> Table:
    counts = rows[-1]["counts"]
    table = Table(*counts, title="Tests")
    table.add_row(*map(str, counts.values()))
    return table


def verdict(met: bool) -> str:
    return "met" if met else "missed"


TABLES = {
    "passes": passes, "overhead": overhead, "speed": speed, "texts": texts, "methods": methods, "tests": tests,
}  # fmt: skip
