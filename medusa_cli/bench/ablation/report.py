"""An ablation for people: tables of at most 60 columns, one per question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from medusa_cli.bench import spec_bench
from medusa_cli.bench.ablation.rows import HEADS, KINDS, METHODS, NODES, RULES, SIZES, TABLES, TREES
from medusa_cli.support.tables import MISSING, Table, number, print_table

if TYPE_CHECKING:
    from rich.console import Console

TITLES = {
    TREES: "Which tree? (Medusa table 3)",
    SIZES: "How large a tree? (Medusa fig. 4)",
    RULES: "Which acceptance rule?",
    HEADS: f"How many heads? Trees of {NODES} nodes",
    KINDS: "Which heads? (Hydra fig. 2)",
    METHODS: "Which drafts?",
}
WITHOUT_NODES = (RULES, METHODS)
"""Tables in which all trees are the same, or are grown."""
LEGEND = (
    "tokens: of a step, the root included; cost: time of a step in plain steps (overhead); x plain: speed over plain "
    "decoding of the same prompt right before and after; medians over prompts, with the 95% interval"
)


def rows_of(document: dict[str, Any], table: str) -> list[dict[str, Any]]:
    """The rows of a table; those of SIZES sorted by size."""
    rows = [row for row in document["rows"] if table in row["tables"]]
    keys = {SIZES: lambda row: (row["nodes"], row["name"]), HEADS: lambda row: row["heads"]}
    return sorted(rows, key=keys[table]) if table in keys else rows


def speedup(row: dict[str, Any]) -> str:
    """ "1.97 1.91-2.03": the median and its interval."""
    value, interval = row["speedup_vs_plain"], row["speedup_vs_plain_ci95"]
    if value is None:
        return MISSING
    return f"{value:.2f}" if interval is None else f"{value:.2f} {interval[0]:.2f}-{interval[1]:.2f}"


def table_of(document: dict[str, Any], table: str) -> Table | None:
    """The table; None if nothing was measured for it."""
    rows = rows_of(document, table)
    if not rows:
        return None
    nodes = table not in WITHOUT_NODES
    lines = [
        (
            row["tables"][table],
            *([str(row["nodes"])] * nodes),
            number(row["tokens_per_step"]),
            number(row["overhead"]),
            number(row["tokens_per_second"], 0),
            speedup(row),
        )
        for row in rows
    ]
    headers = ("", *(["nodes"] * nodes), "tokens", "cost", "t/s", "x plain")
    return Table(TITLES[table], headers, lines)


def cost_table(document: dict[str, Any]) -> Table | None:
    """The cost model beside what was measured."""
    rows = document["cost_model"]["rows"]
    if not rows:
        return None
    lines = []
    for row in rows:
        tokens, overhead, speed = row["tokens_per_step"], row["overhead"], row["speedup"]
        lines.append(
            (
                str(row["nodes"]),
                *(number(tokens[key]) for key in ("accuracies", "log", "measured")),
                *(number(overhead[key]) for key in ("predicted", "measured")),
                *(number(speed[key]) for key in ("accuracies", "log", "measured")),
            )
        )
    headers = ("nodes", "tokens", "log", "real", "cost", "real", "x plain", "log", "real")
    return Table("Predicted and real (Medusa appendix G)", headers, lines)


def settings_lines(document: dict[str, Any]) -> list[str]:
    """What was measured, where and how."""
    model, machine, chosen = document["model"], document["machine"], document["settings"]
    count = chosen["threads"]
    threads = f"{count} thread{'s' * (count > 1)}" if count else f"{machine['cores_physical'] or '?'} cores"
    heads = ", ".join(f"{one['label']} ({one['head_count']} of kind {one['kind']})" for one in document["heads"])
    lines = [
        f"{model['name']} ({model['description']}) on {machine['cpu'] or 'an unknown processor'}, {threads}",
        f"heads: {heads}",
        f"{chosen['prompts']} prompts ({chosen['data']}), up to {chosen['max_tokens']} tokens, "
        f"{chosen['seconds']:.0f} s",
    ]
    if chosen["prompts_left_out"]:
        lines.append(
            f"{chosen['prompts_left_out']} prompts were skipped, too long for a context of {chosen['context']} tokens"
        )
    if not document["heads"][0]["accuracy_known"]:
        lines.append("no accuracies are stored with the heads: sparse trees are the Medusa authors' choices")
    if not document["complete"]:
        lines.append("cut short")
    return lines


def show(document: dict[str, Any], out: Console) -> None:
    """Prints all tables."""
    for line in settings_lines(document):
        out.print(line, style="dim", markup=False)
    for table in filter(None, (table_of(document, name) for name in TABLES)):
        out.print()
        print_table(table, out)
    if costs := cost_table(document):
        out.print()
        print_table(costs, out)
        if (model := document["cost_model"])["a"] is not None:
            line = f"{model['a']:.2f} ln(nodes) {'+' if model['b'] >= 0 else '-'} {abs(model['b']):.2f}"
            out.print(
                f"log: tokens per step = {line}, fitted; tokens: by the accuracies of the heads; cost: bare passes and "
                "what steps take beside them",
                style="dim",
                markup=False,
            )
    for table in spec_bench.tables(document["spec_bench"]):
        out.print()
        print_table(table, out)
    out.print()
    out.print(LEGEND, style="dim", markup=False)
