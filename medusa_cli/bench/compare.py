"""Two benchmark documents side by side."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from medusa_cli.bench import report, summary
from medusa_cli.bench.methods import BASELINES
from medusa_cli.bench.report import speed
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.tables import MISSING, Table, number

UNIMPORTANT = ("heads", "tree", "draft_model", "repeat", "seed")
"""Settings whose change is the point of a comparison, or does not matter to it."""


def differences(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Lines on what else differs between the two runs: model, machine, settings."""
    lines = []
    for part in ("model", "machine", "settings"):
        for key in dict.fromkeys([*a[part], *b[part]]):
            first, second = a[part].get(key), b[part].get(key)
            if first != second and key not in UNIMPORTANT:
                lines.append(f"note: {part}, {key}: {first} in A, {second} in B")
    for name, document in (("A", a), ("B", b)):
        if made_up := report.synthetic(document):
            lines.append(f"note: {name} is {made_up}")
        if not document["complete"]:
            lines.append(f"note: {name} was cut short")
    return lines


def table(a: dict[str, Any], b: dict[str, Any]) -> Table:
    """One line for each method of both: speeds, and B relative to A. MedusaError when they share none.

    The machine may have been slower on one of the two days: relative to a baseline of the same run, that cancels out.
    """
    names = [name for name in a["methods"] if name in b["methods"]]
    if not names:
        raise MedusaError(f"no method in common: A has {', '.join(a['methods'])}, B has {', '.join(b['methods'])}")
    base = next((name for name in BASELINES if name in names), None)
    rows = []
    for name in names:
        one, two = a["methods"][name]["total"], b["methods"][name]["total"]
        row = [name, speed(one["tokens_per_second"]), speed(two["tokens_per_second"]), _change(a, b, name, None)]
        if base is not None:
            row += [number(one[f"speedup_vs_{base}"]), number(two[f"speedup_vs_{base}"]), _change(a, b, name, base)]
        rows.append((*row, number(one["tokens_per_step"]), number(two["tokens_per_step"])))
    relative = () if base is None else (f"A x {base}", f"B x {base}", "B / A")
    return Table("B against A", ("method", "A t/s", "B t/s", "B / A", *relative, "A per step", "B per step"), rows)


def _change(a: dict[str, Any], b: dict[str, Any], method: str, base: str | None) -> str:
    """Mean, over the prompts of both runs, of B's figure over A's, with half of its 95% interval."""
    if method == base:
        return MISSING
    first, second = (_by_prompt(document, method, base) for document in (a, b))
    ratios = [second[key] / first[key] for key in sorted(first.keys() & second.keys())]
    if not ratios:
        return MISSING
    interval = summary.confidence(ratios)
    spread = "" if interval is None else f" ±{(interval[1] - interval[0]) / 2:.2f}"
    return f"{statistics.mean(ratios):.2f}{spread}"


def _by_prompt(document: dict[str, Any], method: str, base: str | None) -> dict[summary.PromptKey, float]:
    """Each prompt's tokens per second (relative to `base`'s in the same round), median over its repeats."""
    speeds: dict[str, dict[summary.Round, float]] = defaultdict(dict)
    for run in document["runs"]:
        if run["tokens_per_second"] > 0:
            key = (run["prompt_id"], run["temperature"], run["repeat"])
            speeds[run["method"]][key] = run["tokens_per_second"]
    if base is None:
        return summary.by_prompt(speeds[method])
    ours, its = speeds[method], speeds[base]
    return summary.by_prompt({key: ours[key] / its[key] for key in ours.keys() & its.keys()})
