"""A profile for people: the verdict, the tree, and a table of costs and speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from medusa_cli.decoding.figures import NOTABLE_ERROR
from medusa_cli.decoding.trees import Choices, TreeMethod, draw
from medusa_cli.support.tables import MISSING, Table, number, print_table
from medusa_cli.tuning import choose

if TYPE_CHECKING:
    from rich.console import Console

METHODS = {
    TreeMethod.accuracies.value: "the accuracies of the heads",
    TreeMethod.simulate.value: "simulated decoding",
}
BAR_CELLS = 24
PLAIN = 1
NOTABLE_GAIN = 1.05
"""The CPU is worth mentioning if it decodes this many times as fast as the device."""


def show(profile: dict[str, Any], out: Console) -> None:
    """Prints all of it."""
    for line in (*heading(profile), "", *verdict(profile)):
        out.print(line, markup=False, soft_wrap=True)
    if profile["tree"]:
        out.print()
        out.print(
            f"tree of {len(profile['tree']) + 1} nodes: ranks by depth, with the chance that each draft is accepted"
        )
        print_tree(profile["tree"], profile, out)
    for row in others(profile):
        out.print(f"also tried, {row['name']}:")
        print_tree(row["tree"], profile, out)
    if profile["costs"]:
        print_table(table(profile), out)
    for line in remarks(profile):
        out.print(line, markup=False, soft_wrap=True)


def print_tree(tree: Choices, profile: dict[str, Any], out: Console) -> None:
    """Prints the drawing."""
    for line in draw(tree, profile["accuracy"]):
        out.print(line, markup=False, soft_wrap=True)


def others(profile: dict[str, Any]) -> list[dict[str, Any]]:
    """What real decoding was tried with besides the chosen tree."""
    tried = {row["name"] for row in profile["measured"]}
    return [row for row in profile["predicted"] if row["name"] in tried and row["tree"] != profile["tree"]]


def heading(profile: dict[str, Any]) -> list[str]:
    """What was measured, where and on what."""
    key, model, texts = profile["key"], profile["model"], profile["texts"]
    where = key["cpu"] or "an unknown processor"
    if key["device"]:
        where = f"{key['device']} ({key['backend']})" + f", {key['gpu_layers']} layers" * (key["gpu_layers"] >= 0)
    how = f"{texts['positions']} positions in {texts['count']} answers (prompts: {texts['prompts']}), "
    how += f"trees by {METHODS[profile['method']]}, "
    if drafter := profile.get("drafter"):
        how = f"drafts from {drafter}, {texts['count']} answers in each way (prompts: {texts['prompts']}), "
    return [
        f"{model['name']} ({model['description']}) on {where}, {key['threads'] or '?'} threads, "
        f"kernels: {key['kernels']}",
        f"{how}{profile['created']}, {profile['seconds']:.0f} s",
    ]


def verdict(profile: dict[str, Any]) -> list[str]:
    """What chat and generate do from now on."""
    nodes = len(profile["tree"]) + 1
    chosen = f"tree of {nodes} nodes" if nodes > PLAIN else "plain decoding"
    if profile.get("drafter"):
        chosen = "no drafts from the drafter"
    if profile["dynamic"]:
        also = " with recycling" if profile["recycling"] else ""
        fixed = "a chain" if profile.get("drafter") else chosen
        chosen = f"a dynamic tree{also} (with --seed or --tree static: {fixed})"
    speeds = [f"{row['name']} {row['speedup']:.2f}" for row in profile["measured"]]
    measured = [f"real decoding, relative to plain: {', '.join(speeds)}"] if speeds else []
    return [f"chosen: {chosen}", profile["reason"], *measured, *other_device(profile)]


def other_device(profile: dict[str, Any]) -> list[str]:
    """How to use the CPU, if it is clearly faster than the device."""
    speed = profile["cpu_speedup"]
    if speed is None or speed <= NOTABLE_GAIN:
        return []
    return [f"plain decoding is {speed:.2f} times as fast on the CPU: run and tune this model with -ngl 0"]


def table(profile: dict[str, Any]) -> Table:
    """One line per size: the cost of a pass at each position, tokens per step, predicted and measured speed."""
    costs = profile["costs"]
    # The likeliest tree of each size: if there is a chain, too, the tree's line comes first.
    predicted = {row["nodes"]: row for row in reversed(profile["predicted"])}
    measured = {row["name"]: row for row in profile["measured"]}
    headers = ["nodes"]
    for cost in costs:
        headers += [f"ms at {cost['position']}", "x plain"]
    headers += ["per step", *(f"speed at {cost['position']}" for cost in costs), "measured", "cost of a pass"]
    sizes = sorted({int(size) for cost in costs for size in cost["verify_ms"]})
    scale = max(max(cost["verify_ms"].values()) / cost["verify_ms"]["1"] for cost in costs)
    rows = []
    for nodes in sizes:
        row = [f"{nodes}{' *' if nodes == len(profile['tree']) + 1 else ''}"]
        for cost in costs:
            ms = cost["verify_ms"].get(str(nodes))
            row += [number(ms), number(ms / cost["verify_ms"]["1"] if ms else None)]
        found = predicted.get(nodes)
        speeds = [1.0] * len(costs) if nodes == PLAIN else found["speedups"] if found else [None] * len(costs)
        row.append("1.00" if nodes == PLAIN else number(found["tokens_per_step"]) if found else MISSING)
        row += [number(value) for value in speeds]
        tried = measured.get(choose.PLAIN if nodes == PLAIN else found["name"] if found else "")
        row.append(number(tried["speedup"]) if tried else MISSING)
        first = costs[0]["verify_ms"].get(str(nodes))
        row.append("█" * max(1, round(BAR_CELLS * first / costs[0]["verify_ms"]["1"] / scale)) if first else "")
        rows.append(row)
    return Table("speed is relative to plain decoding; *: chosen", headers, rows)


def remarks(profile: dict[str, Any]) -> list[str]:
    """How the prediction was calibrated, and where real decoding disagrees with it."""
    factors = profile["calibration"]
    lines = []
    if profile["costs"]:
        lines.append(
            f"calibrated by short real answers: a pass takes {factors['draft_factor']:.2f} of its bare time when "
            f"drafting, {factors['plain_factor']:.2f} when decoding plainly; drafting and bookkeeping take "
            f"{factors['draft_rest_ms']:.2f} ms a step"
        )
    measured = {row["name"]: row for row in profile["measured"]}
    for row in profile["predicted"]:
        found = measured.get(row["name"])
        if found and abs(row["speedups"][0] / found["speedup"] - 1) > NOTABLE_ERROR:
            lines.append(
                f"note: {row['name']} nodes: predicted speed {row['speedups'][0]:.2f}, measured "
                f"{found['speedup']:.2f} (with {row['tokens_per_step']:.2f} and {found['tokens_per_step']:.2f} tokens "
                "per step)"
            )
    return lines
