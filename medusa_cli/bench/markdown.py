"""A benchmark document as Markdown, with every figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medusa_cli.bench import report
from medusa_cli.decoding.figures import PHASES


def render(document: dict[str, Any]) -> str:
    """The whole report as text."""
    parts = [
        f"# medusa bench: {document['model']['name']}",
        "\n".join(f"- {x}" for x in report.settings_lines(document)),
    ]
    for temperature, methods in report.at_temperatures(document):
        made_up = report.synthetic(document)
        parts.append(f"## {report.title(temperature).capitalize()}{': ' * bool(made_up)}{made_up or ''}")
        totals = [report.cells(name, method["total"]) for name, method in methods.items()]
        headers = list(totals[0])
        parts.append(_table(headers, [list(line.values()) for line in totals]))
        categories = list(next(iter(methods.values()))["categories"])
        rows = [
            [category, *report.cells(name, method["categories"][category]).values()]
            for category in categories
            for name, method in methods.items()
            if category in method["categories"]
        ]
        parts.append(_table(["category", *headers], rows))
        split = [(name, *_times(method["total"])) for name, method in methods.items() if method["total"]["steps"]]
        parts.append(_table(("ms per step", *PHASES), split))
        lines = [line for name, method in methods.items() for line in report.step_lines(name, method["total"])]
        parts.append("\n".join(f"- {line}" for line in lines))
    parts.append("\n".join(f"- {line}" for line in report.prediction_lines(document)))
    parts.append(report.busy_line(document) or "")
    parts.append(
        "x stock, x plain: mean over prompts of the ratio of decoding speeds, ± the 95% interval of that mean; total: "
        "all tokens over all time. Overhead: time of a step, in plain steps. TTFT: time to the first token."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _times(figures: report.Figures) -> Sequence[str]:
    return [f"{figures['timings_ms'][phase] / figures['steps']:.2f}" for phase in PHASES]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] + ["---:"] * (len(headers) - 1), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
