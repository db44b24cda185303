"""`medusa tune`: options and output; the work is medusa_cli.tuning's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medusa_cli.commands.command_line import OUTPUT_PANEL, ModelArgument, PlotOption, comma_separated, grouped, only
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.trees import TreeMethod


@grouped
def tune(
    model: ModelArgument,
    engine: Annotated[EngineOptions, only("threads", "n_gpu_layers", "device")],
    draft: Annotated[DraftOptions, only("heads")],
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0.1, help="About how long to measure, at most.")
    ] = 3,
    ctx: Annotated[
        str,
        typer.Option(
            "--ctx", metavar="N,...", hidden=True, help="Context lengths in tokens at which to measure costs."
        ),
    ] = "512,4096",
    text: Annotated[
        Path | None,
        typer.Option(
            "--text", metavar="FILE", help='Prompts similar to yours as JSON lines ({"prompt": ...}); default: made up.'
        ),
    ] = None,
    method: Annotated[
        TreeMethod,
        typer.Option(
            "--method",
            hidden=True,
            help="How trees are found: the likeliest paths, or node by node in simulated decoding.",
        ),
    ] = TreeMethod.accuracies,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            rich_help_panel=OUTPUT_PANEL,
            hidden=True,
            help="Also store accuracies and tree in the GGUF of the heads.",
        ),
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", rich_help_panel=OUTPUT_PANEL, help="Measure nothing, show the stored result.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", rich_help_panel=OUTPUT_PANEL, help="Print the result as one JSON object.")
    ] = False,
    plot: PlotOption = None,
) -> None:
    """Find the fastest way to draft on this machine, if any. chat and generate then use it."""
    from medusa_cli.decoding import profile, runtime
    from medusa_cli.support import console, plots
    from medusa_cli.support.errors import MedusaError
    from medusa_cli.support.files import check_writable
    from medusa_cli.tuning import layers, report, run, texts
    from medusa_cli.tuning import plot as picture

    wanted = "context lengths such as 512,4096"
    positions = sorted(set(comma_separated(ctx, int, lambda value: value >= 1, wanted, "--ctx")))
    if plot is not None:
        plots.check(plot)
        check_writable(plot)
    messages = console.messages()
    if not show:
        profile.check_writable()
    if text is not None:
        texts.prompts(text)  # reports what is wrong with it before the model is loaded
    ref = runtime.resolve(model, DraftOptions(heads=draft.heads), messages)
    opened: run.Opened | layers.Opened
    if ref.drafter is not None:
        opened = layers.open_layers(ref, engine, messages)
    else:
        opened = run.open_heads(ref, draft.heads, engine, messages, method)
    if write and isinstance(opened, layers.Opened):
        raise MedusaError(f"--write is for draft heads, {opened.name} drafts with a drafter (MTP, EAGLE-3)")
    if write and isinstance(opened, run.Opened):
        run.check_can_write(opened)
    if show:
        found = profile.load(opened.key)
        if found is None:
            raise MedusaError(
                f"{opened.name} was not tuned on this machine with these heads or layers, threads and kernels: "
                "run `medusa tune` without --show"
            )
    else:
        if isinstance(opened, layers.Opened):
            found = layers.tune(opened, minutes, text, messages)
        else:
            found = run.tune(opened, minutes, positions, text, messages)
        path = profile.save(found)
        messages.print(f"stored: {path}", style="dim", markup=False, soft_wrap=True)
    if write and isinstance(opened, run.Opened):
        run.write(opened, found)
        messages.print(f"written: {opened.heads_path}", style="dim", markup=False, soft_wrap=True)
    if as_json:
        console.print_json(found)
    else:
        report.show(found, console.data())
    if plot is not None:
        picture.write(found, plot)
