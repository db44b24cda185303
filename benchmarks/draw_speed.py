"""The README's picture, tokens per second of each method and model, drawn from docs/speed.json alone.

    python benchmarks/draw_speed.py [--figures docs/speed.json] [--output docs/speed.png]

To refresh it, run the `command` of each model in the file with `--json`, copy the figures of `methods.NAME.total` into
the file ("drafts": of the last method), and draw again. Needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

DOCS = Path(__file__).parent.parent / "docs"
METHODS = {
    "stock": ("llama.cpp", "#9aa0a6"),
    "plain": ("medusa, no drafts", "#7fb2d9"),
    "drafts": ("medusa, with drafts", "#1f6fb2"),
}
"""Label and colour of the methods that are drawn, from the top down."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", type=Path, default=DOCS / "speed.json")
    parser.add_argument("--output", type=Path, default=DOCS / "speed.png")
    arguments = parser.parse_args()
    draw(json.loads(arguments.figures.read_text("utf-8")), arguments.output)


def draw(figures: dict[str, Any], path: Path) -> None:
    """One panel for each model, side by side; the format follows the ending of `path`."""
    models = figures["models"]
    figure = Figure(figsize=(5 * len(models), 2.5), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08, wspace=0.05))
    for place, (model, axes) in enumerate(zip(models, figure.subplots(1, len(models), squeeze=False)[0], strict=True)):
        panel(axes, model, with_labels=place == 0)
    figure.supxlabel(f"tokens per second on {figures['machine'].partition(',')[0]}", fontsize=9, color="#5f6368")
    figure.savefig(path, dpi=160, facecolor="white")


def panel(axes: Axes, model: dict[str, Any], with_labels: bool) -> None:
    """Bars of one model, each with its speed and how many times stock that is."""
    rows = [(label, colour, model["methods"][name]) for name, (label, colour) in METHODS.items()]
    speeds = [row["tokens_per_second"] for _, _, row in rows]
    bars = axes.barh(range(len(rows)), speeds, color=[colour for _, colour, _ in rows], height=0.66)
    axes.bar_label(bars, [bar_text(row) for _, _, row in rows], padding=5, fontsize=10)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows] if with_labels else [""] * len(rows), fontsize=10)
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


if __name__ == "__main__":
    main()
