"""Draws a benchmark: speedup by category, accepted drafts by depth. Needs matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medusa_cli.bench import report
from medusa_cli.bench.methods import BASELINES
from medusa_cli.support import plots


def write(document: dict[str, Any], path: Path) -> None:
    """Draws the totals over all temperatures."""
    made_up = report.synthetic(document)
    title = f"medusa bench: {document['model']['name']}" + (f"\n{made_up}" if made_up else "")
    with plots.panels(path, title, ratios=(2, 1)) as (left, right):
        _speedups(document["methods"], left)
        _depths(document["methods"], right)


def _speedups(methods: dict[str, Any], axes: Any) -> None:
    """Bars with confidence intervals, one group per category, relative to the first available baseline."""
    base = next((name for name in BASELINES if name in methods), None)
    shown = [name for name in methods if name != base]
    key = "tokens_per_second" if base is None else f"speedup_vs_{base}"
    groups = {"all": {name: methods[name]["total"] for name in shown}}
    for name in shown:
        for category, figures in methods[name]["categories"].items():
            groups.setdefault(category, {})[name] = figures
    width = 0.8 / max(1, len(shown))
    for at, name in enumerate(shown):
        places, heights, errors = [], [], []
        for group, figures in enumerate(groups.values()):
            value = figures[name][key] if name in figures else None
            if value is None:
                continue
            interval = figures[name].get(f"{key}_ci95")
            places.append(group + (at - (len(shown) - 1) / 2) * width)
            heights.append(value)
            errors.append(0.0 if interval is None else (interval[1] - interval[0]) / 2)
        axes.bar(places, heights, width, yerr=errors, capsize=2, label=name)
    axes.set_xticks(range(len(groups)), list(groups), rotation=40, ha="right")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens per second" if base is None else f"speed, times {base}")
    if base is not None:
        axes.axhline(1, color="gray", linewidth=0.8, linestyle="--")
    if shown:
        axes.legend()


def _depths(methods: dict[str, Any], axes: Any) -> None:
    """Tokens per step if the tree is cut after each depth: 1 + the acceptances up to there."""
    for name, method in methods.items():
        shares = method["total"]["acceptance_per_depth"]
        if shares:
            tokens = [1 + sum(shares[:depth]) for depth in range(len(shares) + 1)]
            axes.plot(range(len(tokens)), tokens, marker="o", label=f"{name} ({tokens[-1]:.2f})")
    axes.set_xlabel("depth of the drafts")
    axes.set_ylabel("tokens per step, up to this depth")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if axes.lines:
        axes.legend()
