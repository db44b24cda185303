"""Draws a profile: cost curves, predicted and measured speed. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medusa_cli.support import plots


def write(profile: dict[str, Any], path: Path) -> None:
    """Draws to `path`, whose ending medusa_cli.support.plots.check has accepted."""
    with plots.panels(path, f"medusa tune: {profile['model']['name']}") as (left, right):
        _draw(profile, left, right)


def _draw(profile: dict[str, Any], left: Any, right: Any) -> None:
    for cost in profile["costs"]:
        sizes = sorted(map(int, cost["verify_ms"]))
        one = cost["verify_ms"]["1"]
        ratios = [cost["verify_ms"][str(size)] / one for size in sizes]
        left.plot(sizes, ratios, marker=".", label=f"cost of a pass at {cost['position']}")
    # The likeliest tree of each size, which comes before the chain.
    rows = [*{row["nodes"]: row for row in reversed(profile["predicted"])}.values()][::-1]
    if rows:
        nodes = [row["nodes"] for row in rows]
        left.plot(nodes, [row["tokens_per_step"] for row in rows], "k--", label="tokens per step")
        for index, cost in enumerate(profile["costs"]):
            right.plot(
                nodes, [row["speedups"][index] for row in rows], marker=".", label=f"predicted at {cost['position']}"
            )
    measured = [row for row in profile["measured"] if row["nodes"]]
    if measured:
        right.plot(
            [row["nodes"] for row in measured],
            [row["speedup"] for row in measured],
            "k*",
            markersize=10,
            label="measured",
        )
    right.axhline(1, color="gray", linewidth=0.8, linestyle="--")
    left.set_ylabel("plain forward passes, tokens")
    right.set_ylabel("speed, times plain decoding")
    for axes in (left, right):
        axes.set_xlabel("nodes of the tree, root included")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.lines:
            axes.legend()
