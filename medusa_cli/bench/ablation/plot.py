"""Draws an ablation as pictures, one per table. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medusa_cli.bench.ablation import report
from medusa_cli.bench.ablation.rows import SIZES, SPARSE, TABLES
from medusa_cli.support import plots
from medusa_cli.support.errors import MedusaError

COST_MODEL = "cost-model"
SUFFIX = ".svg"


def prepare(folder: Path) -> None:
    """Makes the folder. MedusaError, before anything is measured, if pictures could not be written to it."""
    from medusa_cli.support.files import check_writable

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MedusaError(f"{folder}: {error.strerror or error}: give --figures another folder") from error
    path = folder / f"{TABLES[0]}{SUFFIX}"
    plots.check(path, "--figures")
    check_writable(path)


def write(document: dict[str, Any], folder: Path) -> list[Path]:
    """Draws all that was measured; returns the files."""
    found = {name: _measured(document, name) for name in TABLES} | {COST_MODEL: document["cost_model"]["rows"]}
    written = []
    for name, rows in found.items():
        if rows:
            title = f"{document['model']['name']}: {report.TITLES.get(name, 'Predicted and real')}"
            written.append(folder / f"{name}{SUFFIX}")
            with plots.panels(written[-1], title, width=10) as (left, right):
                if name == SIZES:
                    _sizes(rows, left, right)
                elif name == COST_MODEL:
                    _cost_model(rows, left, right)
                else:
                    _bars(rows, name, left, right)
    return written


def _measured(document: dict[str, Any], table: str) -> list[dict[str, Any]]:
    return [row for row in report.rows_of(document, table) if row["speedup_vs_plain"] is not None]


def _bars(rows: list[dict[str, Any]], table: str, left: Any, right: Any) -> None:
    """Speedup with its interval, and tokens per step beside the cost of a step."""
    names = [row["tables"][table] for row in rows]
    at = range(len(rows))
    speeds = [row["speedup_vs_plain"] for row in rows]
    intervals = [row["speedup_vs_plain_ci95"] or (speed, speed) for row, speed in zip(rows, speeds, strict=True)]
    below = [speed - low for speed, (low, _) in zip(speeds, intervals, strict=True)]
    above = [high - speed for speed, (_, high) in zip(speeds, intervals, strict=True)]
    left.barh(at, speeds, xerr=[below, above], capsize=2)
    left.axvline(1, color="gray", linewidth=0.8, linestyle="--")
    left.set_yticks(at, names)
    left.set_xlabel("speed, times plain decoding")
    right.barh([y - 0.2 for y in at], [row["tokens_per_step"] for row in rows], 0.4, label="tokens per step")
    right.barh([y + 0.2 for y in at], [row["overhead"] for row in rows], 0.4, label="time of a step, in plain steps")
    right.set_yticks(at, [""] * len(rows))
    right.legend()
    for axes in (left, right):
        axes.invert_yaxis()


def _sizes(rows: list[dict[str, Any]], left: Any, right: Any) -> None:
    """Tokens per step and speed by size, with sparse trees as a line and all others as points."""
    sparse = [row for row in rows if row["tables"][SIZES].startswith(SPARSE)]
    others = [row for row in rows if row not in sparse]
    for axes, key in ((left, "tokens_per_step"), (right, "speedup_vs_plain")):
        axes.plot([row["nodes"] for row in sparse], [row[key] for row in sparse], "r*-", label="sparse")
        axes.plot([row["nodes"] for row in others], [row[key] for row in others], "bo", label="dense")
        for row in others:
            axes.annotate(
                row["tables"][SIZES], (row["nodes"], row[key]), xytext=(5, -3), textcoords="offset points", fontsize=7
            )
        axes.set_xlabel("nodes of the tree")
        axes.legend()
    left.set_ylabel("tokens per step")
    right.set_ylabel("speed, times plain decoding")


def _cost_model(rows: list[dict[str, Any]], left: Any, right: Any) -> None:
    """Predicted and real tokens per step and speed, by size."""
    for axes, key in ((left, "tokens_per_step"), (right, "speedup")):
        for name, style in (("accuracies", "b--"), ("log", "g:"), ("measured", "r*-")):
            points = [(row["nodes"], row[key][name]) for row in rows if row[key][name] is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], style, label=name)
        axes.set_xlabel("nodes of the tree")
        axes.legend()
    left.set_ylabel("tokens per step")
    right.set_ylabel("speed, times plain decoding")
