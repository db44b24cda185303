"""A benchmark document for people: tables and remarks, on a terminal or as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from medusa_cli.bench import spec_bench
from medusa_cli.bench.methods import PLAIN, STOCK
from medusa_cli.decoding.figures import NOTABLE_ERROR, PHASES
from medusa_cli.support.tables import MISSING, Table, number, print_table
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console

NOTABLE_SPREAD = 2.0
"""The machine counts as busy from this ratio of fast to slow answers on, by one method of plain decoding."""

Figures = dict[str, Any]


def speed(value: float | None) -> str:
    """Tokens per second."""
    return number(value, 1)


def speedup(name: str, figures: Figures, base: str) -> str:
    """Mean of ratios, with half the width of its confidence interval: "1.97 ±0.06"."""
    if name == base:
        return "1"
    value, interval = figures[f"speedup_vs_{base}"], figures[f"speedup_vs_{base}_ci95"]
    if value is None:
        return MISSING
    return f"{value:.2f}" if interval is None else f"{value:.2f} ±{(interval[1] - interval[0]) / 2:.2f}"


def milliseconds(value: float | None) -> str:
    """A time, with a decimal if it is short."""
    return MISSING if value is None else f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms"


def percent(shares: Sequence[float]) -> str:
    """Shares by depth: "48% 12%"."""
    return " ".join(f"{100 * share:.0f}%" for share in shares) or MISSING


def settings_lines(document: dict[str, Any]) -> list[str]:
    """What was measured, where and how, and which answers only up to where they repeat themselves."""
    model, machine, chosen = document["model"], document["machine"], document["settings"]
    described = f" ({model['description']})" if model["description"] else ""
    threads = f"{chosen['threads']} threads" if chosen["threads"] else f"{machine['cores_physical'] or '?'} cores"
    repeats = "once each" if chosen["repeat"] == 1 else f"{chosen['repeat']} times each"
    lines = [
        f"{model['name']}{described} on {machine['cpu'] or 'an unknown processor'}, {threads}",
        f"{chosen['prompts']} prompts ({chosen['data']}), {repeats}, up to {chosen['max_tokens']} tokens",
    ]
    if loops := document.get("loops"):
        where = ", ".join(f"{loop['prompt_id']} after {loop['tokens']} tokens" for loop in loops)
        answers = "answer is" if len(loops) == 1 else "answers are"
        lines.append(f"{len(loops)} {answers} measured up to where the text begins to repeat itself: {where}")
    if made_up := synthetic(document):
        lines.append(made_up)
    if not document["complete"]:
        lines.append(f"cut short: {len(document['runs'])} answers so far")
    return lines


def synthetic(document: dict[str, Any]) -> str | None:
    """The label of figures whose acceptance was made up; None for those of real output."""
    rate = document["settings"].get("synth_accept")
    return None if rate is None else f"NOT REAL OUTPUT: each draft was accepted with probability {rate:g}"


def at_temperatures(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Figures]]]:
    """(temperature, {method: {"total", "categories"}}) for each temperature of the run."""
    for temperature in document["settings"]["temperatures"]:
        key = f"{temperature:g}"
        found = {
            name: method["temperatures"][key]
            for name, method in document["methods"].items()
            if key in method["temperatures"]
        }
        if found:
            yield key, found


def title(temperature: str) -> str:
    """The title of a temperature's first table."""
    return "greedy (temperature 0)" if temperature == "0" else f"temperature {temperature}"


def cells(name: str, figures: Figures) -> dict[str, str]:
    """A method's figures as a table line, by header. "same as plain": how many texts are the same: "7/10"."""
    match, memory = figures["output_match"], figures["peak_rss_bytes"]
    return {
        "method": name,
        "tokens/s": speed(figures["tokens_per_second"]),
        "x stock": speedup(name, figures, STOCK),
        "x stock, total": number(figures[f"speedup_vs_{STOCK}_total"]),
        "x plain": speedup(name, figures, PLAIN),
        "x plain, total": number(figures[f"speedup_vs_{PLAIN}_total"]),
        "tokens per step": number(figures["tokens_per_step"]),
        "accepted by depth": percent(figures["acceptance_per_depth"]),
        "overhead": number(figures["overhead"]),
        "TTFT": milliseconds(figures["ttft_ms"]),
        "prompt tokens/s": speed(figures["prompt_tokens_per_second"]),
        "peak memory": MISSING if memory is None else size(memory),
        "same as plain": MISSING if match is None else f"{match['identical']}/{match['compared']}",
    }


SHORT = {"tokens per step": "per step", "peak memory": "memory", "same as plain": "same"}
IN_TERMINALS = ("method", "tokens/s", "x stock", "x plain", "tokens per step", "TTFT", "peak memory", "same as plain")


def method_table(temperature: str, methods: dict[str, Figures]) -> Table:
    """One line per method."""
    lines = [cells(name, method["total"]) for name, method in methods.items()]
    rows = [[line[header] for header in IN_TERMINALS] for line in lines]
    return Table(title(temperature), [SHORT.get(header, header) for header in IN_TERMINALS], rows)


def category_table(methods: dict[str, Figures]) -> Table | None:
    """One line per category: the first method's speed, the others' relative to it. None for a single category."""
    first, *others = methods
    base = first if first in (STOCK, PLAIN) else None
    categories = list(methods[first]["categories"])
    if len(categories) < 2:
        return None

    def line(label: str, figures: dict[str, Any]) -> list[str]:
        own = figures[first]
        texts = [label, str(own["prompts"]), speed(own["tokens_per_second"])]
        for of in (figures[name] for name in others):
            value = None if of is None else of[f"speedup_vs_{base}" if base else "tokens_per_second"]
            texts.append(number(value, 2 if base else 1))
        return texts

    by_name = methods.items()
    rows = [line(one, {name: method["categories"].get(one) for name, method in by_name}) for one in categories]
    rows.append(line("all", {name: method["total"] for name, method in methods.items()}))
    relative = f" (times {base})" if base and others else ""
    headers = ("category", "prompts", f"{first} t/s", *(name if base else f"{name} t/s" for name in others))
    return Table(f"by category: tokens per second{relative}", headers, rows)


def step_lines(name: str, figures: Figures) -> list[str]:
    """Remarks on one method's steps: tree, acceptance, where time goes, where texts differ."""
    lines = []
    if figures["tree_nodes"] > 1:
        lines.append(
            f"{name}: tree of {figures['tree_nodes']} nodes, accept {figures['accept']}; accepted at depth 1, 2, ...: "
            f"{percent(figures['acceptance_per_depth'])}"
        )
    if figures["steps"] and figures["tree_nodes"] > 1:
        split = ", ".join(f"{phase} {figures['timings_ms'][phase] / figures['steps']:.2f}" for phase in PHASES)
        overhead = figures["overhead"]
        cost = "" if overhead is None else f"; a step takes {overhead:.2f} times a plain one"
        lines.append(f"{name}: ms per step: {split}{cost}")
    if figures["plain_steps"]:
        lines.append(
            f"{name}: {figures['plain_steps']} of {figures['steps']} steps without drafts, because they did not pay"
        )
    totals = [
        f"{figures[f'speedup_vs_{base}_total']:.2f} times {base}"
        for base in (STOCK, PLAIN)
        if name not in (base, STOCK) and figures[f"speedup_vs_{base}_total"] is not None
    ]
    if totals:
        lines.append(f"{name}: all tokens over all time: {', '.join(totals)}")
    match = figures["output_match"]
    if match and match["first_divergence"]:
        places = match["first_divergence"]
        lines.append(
            f"{name}: {len(places)} of {match['compared']} texts differ from plain's, first at token {places[0]}, "
            f"in the median at {statistics.median(places):.0f}"
        )
    return lines


def prediction_lines(document: dict[str, Any]) -> list[str]:
    """The speedup over plain that accuracies and costs promise, and the measured one; flagged if they are far apart."""
    lines = []
    for name, method in document["methods"].items():
        if (predicted := method["predicted"]) is not None:
            off = f": the prediction is off by {predicted['error']:+.0%}"
            lines.append(
                f"{name}: predicted {predicted['speedup_vs_plain']:.2f} times plain ({predicted['tokens_per_step']:.2f}"
                f" tokens per step, a step takes {predicted['overhead']:.2f}), measured "
                f"{method['total']['speedup_vs_plain']:.2f}{off if abs(predicted['error']) > NOTABLE_ERROR else ''}"
            )
    return lines


def busy_line(document: dict[str, Any]) -> str | None:
    """A warning when plain decoding, whose steps should all cost about the same, was at times much slower."""
    for name in (PLAIN, STOCK):
        speeds = sorted(
            run["tokens_per_second"]
            for run in document["runs"]
            if run["method"] == name and run["tokens_per_second"] > 0
        )
        if len(speeds) > 1:
            tenth = len(speeds) // 10
            slow, fast = speeds[tenth], speeds[-1 - tenth]
            if fast > NOTABLE_SPREAD * slow:
                return (
                    f"{name} decoded at {slow:.0f} to {fast:.0f} tokens/s: other programs used this machine. "
                    "Close other programs and measure again."
                )
    return None


def show(document: dict[str, Any], out: Console) -> None:
    """Prints the report: tables without frames, so that they are plain lines without a terminal."""
    made_up = synthetic(document)
    for line in settings_lines(document):
        out.print(line, style="dim", markup=False, soft_wrap=True)
    for temperature, methods in at_temperatures(document):
        for table in filter(None, (method_table(temperature, methods), category_table(methods))):
            out.print()
            print_table(table if made_up is None else replace(table, title=f"{table.title}: {made_up}"), out)
        out.print()
        for name, method in methods.items():
            for line in step_lines(name, method["total"]):
                out.print(line, markup=False)
    for table in spec_bench.tables(document["spec_bench"]):
        out.print()
        print_table(table, out)
    for line in prediction_lines(document):
        out.print(line, markup=False)
    if busy := busy_line(document):
        out.print(busy, style="yellow", markup=False)
    out.print("x: mean over prompts, ± its 95% interval; same: texts equal to plain's", style="dim", markup=False)


def markdown(document: dict[str, Any]) -> str:
    """The whole report as Markdown, with every figure."""
    parts = [
        f"# medusa bench: {document['model']['name']}",
        "\n".join(f"- {x}" for x in settings_lines(document)),
    ]
    for temperature, methods in at_temperatures(document):
        made_up = synthetic(document)
        parts.append(f"## {title(temperature).capitalize()}{': ' * bool(made_up)}{made_up or ''}")
        totals = [cells(name, method["total"]) for name, method in methods.items()]
        headers = list(totals[0])
        parts.append(_lines(headers, [list(line.values()) for line in totals]))
        categories = list(next(iter(methods.values()))["categories"])
        rows = [
            [category, *cells(name, method["categories"][category]).values()]
            for category in categories
            for name, method in methods.items()
            if category in method["categories"]
        ]
        parts.append(_lines(["category", *headers], rows))
        split = [(name, *_times(method["total"])) for name, method in methods.items() if method["total"]["steps"]]
        parts.append(_lines(("ms per step", *PHASES), split))
        lines = [line for name, method in methods.items() for line in step_lines(name, method["total"])]
        parts.append("\n".join(f"- {line}" for line in lines))
    parts.append("\n".join(f"- {line}" for line in prediction_lines(document)))
    parts.append(busy_line(document) or "")
    parts.append(
        "x stock, x plain: mean over prompts of the ratio of decoding speeds, ± the 95% interval of that mean; total: "
        "all tokens over all time. Overhead: time of a step, in plain steps. TTFT: time to the first token."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _times(figures: Figures) -> Sequence[str]:
    return [f"{figures['timings_ms'][phase] / figures['steps']:.2f}" for phase in PHASES]


def _lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] + ["---:"] * (len(headers) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
