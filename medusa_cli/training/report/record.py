"""A training run on paper: OUTPUT.train.json, and OUTPUT.train.png where matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from medusa_cli.support.atomic import atomic_file, atomic_path

FORMAT = 1


def paths_for(output: Path) -> tuple[Path, Path]:
    """(JSON file, picture) beside the output."""
    return output.with_suffix(".train.json"), output.with_suffix(".train.png")


def write(document: dict[str, Any], output: Path) -> list[Path]:
    """Writes both files, each whole or not at all; only the JSON without matplotlib. Returns what was written."""
    text, picture = paths_for(output)
    with atomic_file(text) as file:
        file.write((json.dumps({"format": FORMAT, **document}, indent=1, allow_nan=False) + "\n").encode())
    if importlib.util.find_spec("matplotlib") is None:
        return [text]
    _draw(document, picture)
    return [text, picture]


def _draw(document: dict[str, Any], path: Path) -> None:
    """Loss and held-out tokens per step over positions; accuracy by head and rank."""
    # A figure of its own, not pyplot: no window system, no state beside it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    curve = document["training"]["curve"]
    left.plot([point["positions"] for point in curve], [point["loss"] for point in curve], color="tab:gray")
    left.set_xlabel("positions trained on")
    left.set_ylabel("loss (gray)")
    measured = [point for point in curve if point["tokens_per_step"] is not None]
    twin = left.twinx()
    twin.plot(
        [point["positions"] for point in measured],
        [point["tokens_per_step"] for point in measured],
        marker="o",
        color="tab:blue",
    )
    twin.set_ylabel(f"held-out tokens per step, {document['training']['evaluation_nodes']} nodes (blue)")
    for head, row in enumerate(document["accuracy"], 1):
        right.plot(range(1, len(row) + 1), row, marker=".", label=f"head {head}")
    right.set_xlabel("rank")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_ylabel("accuracy on held-out text")
    right.set_ylim(bottom=0)
    right.legend()
    sizes = ", ".join(f"{value:.2f} with {nodes}" for nodes, value in document["tokens_per_step"].items())
    figure.suptitle(f"{document['model']['name']}, {document['options']['kind']} heads: tokens per step {sizes} nodes")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
