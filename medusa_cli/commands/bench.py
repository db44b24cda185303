"""`medusa bench MODEL`, `... kernels MODEL`, `... compare A B`, `... ablate MODEL`: options and output."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from medusa_cli.bench.methods import METHODS, parse_lookahead
from medusa_cli.commands.command_line import (
    DRAFT_PANEL,
    OUTPUT_PANEL,
    ModelArgument,
    PlotOption,
    comma_separated,
    grouped,
    only,
)
from medusa_cli.commands.registry import add_command
from medusa_cli.decoding.options import DRAFT_MAX, MAX_SEED, DraftOptions, EngineOptions
from medusa_cli.decoding.settings import is_greedy, needs_temperature

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli.bench.measure import Measurements, Plan
    from medusa_cli.bench.methods import Method
    from medusa_cli.models.references import ModelRef
    from medusa_cli.prompts.bench_set import Prompt

DEFAULT_COMMAND = "run"
JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", rich_help_panel=OUTPUT_PANEL, help="Write all figures as JSON."),
]


class BenchGroup(TyperGroup):
    """A group whose first word is a subcommand, or else the MODEL of the default one."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        if args and args[0] in self.commands and args[0] != DEFAULT_COMMAND:
            return super().make_context(info_name, args, parent=parent, **extra)
        return self.commands[DEFAULT_COMMAND].make_context(info_name, args, parent=parent, **extra)


app = typer.Typer(cls=BenchGroup, help="Measure how fast a model decodes by different methods, side by side.")


@grouped
def run(
    model: ModelArgument,
    engine: EngineOptions,
    draft: Annotated[
        DraftOptions,
        only(
            "heads",
            "repeat_steps",
            tree="Draft tree for the method medusa.",
            accept="Acceptance rule for the method medusa.",
            draft_model="A smaller model of the same vocabulary, for the methods named draft-model.",
            draft_max=f"Tokens drafted in a row by the draft-model methods and llama-lookup; 0: {DRAFT_MAX}, and in "
            "llama-cpp-python 2 on a CPU or 10 on a GPU.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE", help='Prompts as JSON lines (MT-Bench, Spec-Bench, or {"prompt": ...}).'
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="NAMES",
            show_default=False,
            help=f"Comma-separated: {', '.join(METHODS)}. Default: stock and plain, medusa if there are heads, "
            "draft-model if one is given.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("-n", "--max-tokens", metavar="N", min=2, help="Maximum number of tokens per answer.")
    ] = 128,
    repeat: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="How often each prompt is answered.")] = 3,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Use only N prompts, spread over the categories."),
    ] = None,
    temp: Annotated[
        str, typer.Option("--temp", metavar="X,...", help="Temperatures, comma-separated; 0: likeliest token.")
    ] = "0",
    seed: Annotated[
        int,
        typer.Option(
            "-s", "--seed", metavar="N", min=0, max=MAX_SEED, hidden=True, help="Random seed above temperature 0."
        ),
    ] = 0,
    synth_accept: Annotated[
        float | None,
        typer.Option(
            "--synth-accept",
            metavar="RATE",
            min=0.0,
            max=1.0,
            show_default=False,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Accept each draft with this probability, whatever the model says: real timings, meaningless text.",
        ),
    ] = None,
    lookahead: Annotated[
        str | None,
        typer.Option(
            "--lookahead",
            metavar="W,N,G",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="For the method lookahead: columns of the window, tokens per n-gram, n-grams per step.",
        ),
    ] = None,
    json_file: JsonFile = None,
    md: Annotated[
        bool, typer.Option("--md", rich_help_panel=OUTPUT_PANEL, help="Print Markdown with all figures.")
    ] = False,
    plot: PlotOption = None,
) -> None:
    """Measure how fast a model decodes by different methods, side by side. Ctrl-C shows the results so far."""
    from medusa_cli.bench.measure import Measurements, Plan, measure
    from medusa_cli.support import console, plots
    from medusa_cli.support.files import check_writable

    temperatures = comma_separated(temp, float, lambda value: 0 <= value < 100, "temperatures such as 0,0.7", "--temp")
    if (rule := draft.accept) and needs_temperature(rule.value) and is_greedy(min(temperatures)):
        raise typer.BadParameter(f"{rule.value} needs temperatures above 0: add --temp 0.7", param_hint="--accept")
    if lookahead is not None:
        parse_lookahead(lookahead)
    messages = console.messages()
    bench_set = _prompts(data, limit)
    for path in filter(None, (json_file, plot)):
        check_writable(path)
    if plot is not None:
        plots.check(plot)
    chosen, ref, small = _methods(methods, model, draft, synth_accept is not None, messages)
    plan = Plan(
        model,
        chosen,
        bench_set,
        max_tokens,
        repeat,
        list(dict.fromkeys(temperatures)),
        seed,
        engine,
        dataclasses.replace(draft, draft_model=None if small is None else str(small)),
        synth_accept,
        ref,
        lookahead,
    )
    found = Measurements()
    try:
        measure(plan, found, messages)
    finally:  # shows the results so far, even when Ctrl-C or an error ends the run early
        if found.outcomes:
            _report(plan, found, str(data or "built in"), json_file, md, plot)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.json", help="A file written by `medusa bench --json`.")],
    b: Annotated[Path, typer.Argument(metavar="B.json", help="Such a file from another run.")],
) -> None:
    """Compare two results: speeds, speedups, tokens per step."""
    from medusa_cli.bench import compare as comparing
    from medusa_cli.bench import document
    from medusa_cli.support import console, tables

    one, two = document.read(a), document.read(b)
    table = comparing.table(one, two)
    for line in comparing.differences(one, two):
        console.messages().print(line, markup=False, soft_wrap=True)
    tables.print_table(table, console.data())


@grouped
def kernels(
    model: ModelArgument,
    engine: Annotated[EngineOptions, only("threads")],
    widths: Annotated[
        str, typer.Option("--columns", metavar="N,...", help="Numbers of columns (tokens per pass), comma-separated.")
    ] = "1,2,4,8,16",
    rounds: Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="Rounds; medians are shown.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time a model's matrix products alone, with our kernels and with llama.cpp's, by type and width."""
    from medusa_cli.bench import kernels as measuring
    from medusa_cli.models import references
    from medusa_cli.support import console, progress, tables

    messages = console.messages()
    path = references.resolve(model, messages).path
    wanted = "numbers from 1 to 512 such as 1,4,8"
    columns = comma_separated(widths, int, lambda value: 1 <= value <= 512, wanted, "--columns")
    with progress.phase(messages, "Measuring", "rounds") as bar:
        rows = measuring.measure(path, engine.threads, columns, rounds, bar.update)
    if as_json:
        print(measuring.as_json(rows))
    else:
        tables.print_table(measuring.table(rows, model), console.data())


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
    json_file: JsonFile = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="FOLDER", rich_help_panel=OUTPUT_PANEL, help="Draw one SVG for each table."),
    ] = None,
) -> None:
    """Compare trees, sizes of trees, acceptance rules and heads, each next to plain decoding. Ctrl-C ends it early."""
    from medusa_cli.bench.ablation import plot, report
    from medusa_cli.bench.ablation import run as ablation
    from medusa_cli.support import console
    from medusa_cli.support.files import check_writable

    prompts = _prompts(data, None)
    if json_file is not None:
        check_writable(json_file)
    if figures is not None:
        plot.prepare(figures)
    state = ablation.Run(model, heads or [], minutes, prompts, str(data or "built in"), engine)
    try:
        ablation.run(state, console.messages())
    finally:  # as above
        if state.found.samples:
            document = ablation.document(state)
            report.show(document, console.data())
            _write(document, json_file)
            if figures is not None:
                plot.write(document, figures)


add_command(
    app,
    DEFAULT_COMMAND,
    run,
    path="medusa bench",
    epilog="Compare two results: `medusa bench compare A.json B.json`. Papers' tables: `medusa bench ablate MODEL`.",
    hidden=True,
    no_args_is_help=True,
)
add_command(app, "compare", compare)
add_command(app, "kernels", kernels)
add_command(app, "ablate", ablate, path="medusa bench ablate")


def _prompts(data: Path | None, limit: int | None) -> list[Prompt]:
    from medusa_cli.prompts import bench_set

    return bench_set.spread(bench_set.built_in() if data is None else bench_set.read(data), limit)


def _methods(
    names: str | None, model: str, draft: DraftOptions, synthetic: bool, messages: Console
) -> tuple[list[Method], ModelRef, Path | None]:
    """The methods asked for, or all that the model allows, and the models' files, fetched if need be."""
    from medusa_cli.bench import methods
    from medusa_cli.converters.heads.schema import KIND_KEY
    from medusa_cli.decoding import drafting, runtime
    from medusa_cli.models import gguf_files, references

    wanted = None if names is None else methods.parse(names)
    small = None if draft.draft_model is None else references.resolve(draft.draft_model, messages, drafts=True).path
    with_heads, has_draft_model = DraftOptions(heads=draft.heads, no_drafter=draft.no_drafter), small is not None
    ref = runtime.resolve(model, with_heads, messages)
    holds_heads = KIND_KEY in gguf_files.read_header(ref.path).metadata
    has_heads = drafting.heads_file(with_heads, ref, holds_heads) is not None or ref.drafter is not None
    wanted = wanted or methods.parse(",".join(methods.default_names(has_heads, has_draft_model)))
    methods.check(wanted, ref.name, has_heads, has_draft_model, synthetic)
    _check_memory(ref.path, len(wanted), messages)
    return wanted, ref, small


def _check_memory(model: Path, copies: int, messages: Console) -> None:
    """A remark if the methods, each with its own process and model, will hardly fit into memory."""
    from medusa_cli.models import gguf_files
    from medusa_cli.support import machine
    from medusa_cli.support.units import size

    needed, (_, available) = copies * gguf_files.read_header(model).file_size, machine.memory()
    if available is not None and needed > available:
        messages.print(
            f"note: {copies} copies of the model need {size(needed)}, {size(available)} of memory is available: "
            "choose fewer --methods",
            soft_wrap=True,
        )


def _report(plan: Plan, found: Measurements, data: str, json_file: Path | None, md: bool, plot: Path | None) -> None:
    from medusa_cli.bench import document, report
    from medusa_cli.bench import plot as picture
    from medusa_cli.support import console

    built = document.build(plan, found, data)
    if md:
        from medusa_cli.support.errors import visible

        print(visible(report.markdown(built)), end="")
    else:
        report.show(built, console.data())
    _write(built, json_file)
    if plot is not None:
        picture.write(built, plot)


def _write(document: dict[str, Any], json_file: Path | None) -> None:
    import json

    from medusa_cli.support.atomic import atomic_file

    if json_file is not None:
        with atomic_file(json_file) as file:
            file.write(json.dumps(document, ensure_ascii=False, indent=1).encode() + b"\n")
