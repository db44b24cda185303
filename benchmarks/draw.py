"""The pictures of README and docs. Needs matplotlib.

    python benchmarks/draw.py speed [--figures docs/speed.json] [--output docs/speed.png]
    python benchmarks/draw.py drafts NAME=FILE.json ... [--output docs/measurements/streaming.svg]

`COMMAND --help` says what each of them draws.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import common
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

DOCS = Path(__file__).parent.parent / "docs"
METHODS = {
    "stock": ("llama.cpp", "#9aa0a6"),
    "plain": ("medusa, no drafts", "#7fb2d9"),
    "drafts": ("medusa, with drafts", "#1f6fb2"),
}
"""Label and colour of the methods in the README's picture, from the top down."""
COLOURS = ("#9aa0a6", "#1f6fb2", "#e8b27a", "#c25a00")
"""Of the drafts."""


@dataclass
class Speed:
    """The README's picture, tokens per second of each method and model, drawn from docs/speed.json alone.

    To refresh it, run the `command` of each model in the file with `--json`, copy the figures of `methods.NAME.total`
    into the file ("drafts": of the last method), and draw again. The format follows the ending of --output.
    """

    _: KW_ONLY
    figures: Path = DOCS / "speed.json"
    output: Path = DOCS / "speed.png"

    def run(self) -> None:
        figures = json.loads(self.figures.read_text("utf-8"))
        models = figures["models"]
        layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.05)
        figure = Figure(figsize=(5 * len(models), 2.5), layout=layout)
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for place, (model, axes) in enumerate(zip(models, panels, strict=True)):
            self._panel(axes, model, with_labels=place == 0)
        machine = figures["machine"].partition(",")[0]
        figure.supxlabel(f"tokens per second on {machine}", fontsize=9, color="#5f6368")
        figure.savefig(self.output, dpi=160, facecolor="white")

    @staticmethod
    def _panel(axes: Axes, model: dict[str, Any], with_labels: bool) -> None:
        """Bars of one model, each with its speed and how many times stock that is."""
        rows = [(label, colour, model["methods"][name]) for name, (label, colour) in METHODS.items()]
        speeds = [row["tokens_per_second"] for _, _, row in rows]
        labels = [label for label, _, _ in rows] if with_labels else [""] * len(rows)
        bars = axes.barh(range(len(rows)), speeds, color=[colour for _, colour, _ in rows], height=0.66)
        axes.bar_label(bars, [bar_text(row) for _, _, row in rows], padding=5, fontsize=10)
        axes.set_yticks(range(len(rows)), labels, fontsize=10)
        axes.invert_yaxis()
        axes.set_xlim(0, 1.4 * max(speeds))
        axes.set_xticks([])
        axes.tick_params(left=False)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.spines["left"].set_color("#5f6368")
        axes.set_title(f"{model['name']}\n", loc="left", fontsize=10.5, fontweight="bold")
        axes.text(0, 1.03, model["prompts"], transform=axes.transAxes, fontsize=9, color="#5f6368")


def bar_text(row: dict[str, float]) -> str:
    """Speed and times stock; for stock itself the speed alone."""
    times = row["speedup_vs_stock"]
    return f"{row['tokens_per_second']:.1f}" + (f"  ({times:.1f}x stock)" if times != 1 else "")


@dataclass
class Drafts:
    """Tokens per step of several drafts: the picture of docs/measurements/streaming.md.

    FILE: what `tokens_per_step.py heads --json` wrote for one model; NAME: what the picture calls it. One panel for
    each rule of acceptance, side by side; in each a group of bars for each size of the tree.
    """

    files: tuple[str, ...]
    _: KW_ONLY
    output: Path = DOCS / "measurements" / "streaming.svg"

    def run(self) -> None:
        rcParams["svg.hashsalt"] = "drafts"
        pairs = (text.partition("=") for text in self.files)
        found = {name: json.loads(Path(path).read_text("utf-8")) for name, _, path in pairs}
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
        labels = panels[0].get_legend_handles_labels()
        figure.legend(*labels, loc="outside lower center", ncols=len(found), frameon=False)
        svg = self.output.suffix == ".svg"
        figure.savefig(self.output, facecolor="white", metadata={"Date": None} if svg else None)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Speed, Drafts)


if __name__ == "__main__":
    common.main(parser())
