"""`medusa bench ablate MODEL`: options and output; the work is medusa_cli.bench.ablation's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medusa_cli.commands.command_line import DRAFT_PANEL, ModelArgument, grouped
from medusa_cli.decoding.options import EngineOptions

OUTPUT_PANEL = "Output"


@grouped
def ablate(
    model: ModelArgument,
    engine: EngineOptions,
    heads: Annotated[
        list[Path] | None,
        typer.Option(
            "--heads",
            metavar="FILE",
            rich_help_panel=DRAFT_PANEL,
            help="Draft heads (repeatable: the first are ablated, the others compared with them).",
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0.2, help="How long it may take, tables included.")
    ] = 10,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Prompts as JSON lines, as for `medusa bench`."),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", rich_help_panel=OUTPUT_PANEL, help="Write all figures as JSON."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", rich_help_panel=OUTPUT_PANEL, help="Draw one SVG for each table."),
    ] = None,
) -> None:
    """Compare trees, sizes of trees, acceptance rules and heads, each next to plain decoding. Ctrl-C ends it early."""
    from medusa_cli.bench.ablation import plot, run
    from medusa_cli.prompts import bench_set
    from medusa_cli.support import console
    from medusa_cli.support.errors import MedusaError
    from medusa_cli.support.files import check_writable

    prompts = bench_set.spread(bench_set.built_in() if data is None else bench_set.read(data))
    if json_file is not None:
        check_writable(json_file)
    if figures is not None:
        plot.prepare(figures)
    plan = run.Plan(model, heads or [], minutes, prompts, str(data or "built in"), engine)
    state = run.start(plan)
    early: BaseException | None = None
    try:
        run.run(state, console.messages())
    except (KeyboardInterrupt, MedusaError) as error:
        early = error
    if state.has_figures:
        _report(run.document(state), json_file, figures)
    if early is not None:
        raise early


def _report(document: dict[str, object], json_file: Path | None, figures: Path | None) -> None:
    import json

    from medusa_cli.bench.ablation import plot, report
    from medusa_cli.support import console
    from medusa_cli.support.atomic import atomic_file

    report.show(document, console.data())
    if json_file is not None:
        with atomic_file(json_file) as file:
            file.write(json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n")
    if figures is not None:
        plot.write(document, figures)
