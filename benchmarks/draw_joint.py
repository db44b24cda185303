"""The pictures of docs/measurements/joint.md and streaming.md: tokens per step of several drafts.

    python benchmarks/draw_joint.py NAME=FILE.json ... [--output docs/measurements/joint.svg]

FILE: what `tokens_per_step.py --json` wrote for one model; NAME: what the picture calls it. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib import rcParams
from matplotlib.figure import Figure

COLOURS = ("#9aa0a6", "#1f6fb2", "#e8b27a", "#c25a00")
DOCS = Path(__file__).parent.parent / "docs"


def named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=named, nargs="+", metavar="NAME=FILE.json")
    parser.add_argument("--output", type=Path, default=DOCS / "measurements" / "joint.svg")
    arguments = parser.parse_args()
    draw({name: json.loads(path.read_text("utf-8")) for name, path in arguments.files}, arguments.output)


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """One panel for each rule of acceptance, side by side; in each a group of bars for each size of the tree."""
    rcParams["svg.hashsalt"] = "joint"
    first = next(iter(found.values()))
    rules = list(dict.fromkeys(row["rule"] for row in first))
    sizes = sorted({row["nodes"] for row in first})
    highest = max(row["tokens_per_step"] for rows in found.values() for row in rows)
    figure = Figure(figsize=(3.6 * len(rules), 3.2), layout="constrained")
    panels = figure.subplots(1, len(rules), sharey=True, squeeze=False)[0]
    width = 0.8 / len(found)
    for axes, rule in zip(panels, rules, strict=True):
        for place, ((name, rows), colour) in enumerate(zip(found.items(), COLOURS, strict=False)):
            values = [
                next((row["tokens_per_step"] for row in rows if (row["rule"], row["nodes"]) == (rule, size)), 0.0)
                for size in sizes
            ]
            at = [group + (place + 0.5) * width - 0.4 for group in range(len(sizes))]
            bars = axes.bar(at, values, width, color=colour, label=name)
            axes.bar_label(bars, [f"{value:.2f}" if value else "" for value in values], fontsize=6, padding=2)
        axes.set_xticks(range(len(sizes)), [f"{size} nodes" for size in sizes], fontsize=9)
        axes.set_title(rule, loc="left", fontsize=10, fontweight="bold")
        axes.set_ylim(1.0, highest + 0.1)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("tokens per step", fontsize=9)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(found), frameon=False)
    figure.savefig(path, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
