"""`medusa train`: options only; the work is medusa_cli.training's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medusa_cli.commands.command_line import ModelArgument
from medusa_cli.support.errors import MedusaError
from medusa_cli.training.recipes import DEFAULT_ANSWERS, DEFAULT_KIND, MTP, Answers, DraftKind

if TYPE_CHECKING:
    from medusa_cli.training.options import RecipeFile


def train(
    ctx: typer.Context,
    model: ModelArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            show_default=False,
            help="Write the model with its heads to FILE; default: install the heads for all its quantizations.",
        ),
    ] = None,
    sidecar: Annotated[
        bool, typer.Option("--sidecar", help="Write the heads alone, for --heads; an MTP layer alone, for -md.")
    ] = False,
    kind: Annotated[
        DraftKind,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="medusa, hydra (heads see each other's drafts), hydra++, recurrent or streams; "
            "mtp: tune the layer that the model itself drafts with.",
        ),
    ] = DEFAULT_KIND,
    heads: Annotated[int, typer.Option("--heads", min=1, max=16, help="Number of heads: drafted tokens in a row.")] = 4,
    joint: Annotated[
        bool,
        typer.Option("--joint", help="Also train the model's top layers, which changes its text (Medusa-2)."),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", min=0.1, show_default="60", help="Time for everything: text generation and training."
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FILE", help="Prompts, one JSON object per line; default: the model's own."),
    ] = None,
    answers: Annotated[
        Answers,
        typer.Option("--answers", help="What is learned: the model's own answers to the prompts, or those in --data."),
    ] = DEFAULT_ANSWERS,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe", metavar="FILE", help="A recipe file (TOML or JSON): seed, tokens and everything else."
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--start", metavar="HEADS", help="Begin with the heads of a file, such as those of a fine-tune's base."
        ),
    ] = None,
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, help="CPU threads; 0: physical cores.")] = 0,
    n_gpu_layers: Annotated[
        int, typer.Option("-ngl", "--n-gpu-layers", min=-1, help="Layers on the GPU; -1: all if there is one.")
    ] = -1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")] = False,
) -> None:
    """Train draft heads or an MTP layer on a model's own text (needs torch). Ctrl-C saves; the same command resumes."""
    from medusa_cli.models import references
    from medusa_cli.support import console

    if joint and output is None:
        raise MedusaError("--joint writes a new model: give it a file name with -o")
    if output is not None and output.exists() and not force:
        raise MedusaError(f"{output} exists: give another name, or add --force to overwrite it")
    file = _recipe(ctx, recipe)
    if file.options().get("kind", kind) == MTP and output is None:
        raise MedusaError("--kind mtp writes the model with its tuned layer: give it a file name with -o")
    if not force:
        _refuse_to_overwrite(file.options())
    messages = console.messages()
    ref = references.resolve(model, messages)
    import medusa_cli.training.train as training
    from medusa_cli.training.options import TrainOptions

    options = TrainOptions(
        model=ref.path,
        output=output or _place(ref.path, force),
        sidecar=sidecar or output is None,
        joint=joint,
        minutes=minutes,
        data=data,
        threads=threads,
        n_gpu_layers=n_gpu_layers,
        file=file,
        console=messages,
        **{"kind": kind, "heads": heads, "answers": answers, "start": start, **file.options()},
    )
    training.run(options)


def _recipe(ctx: typer.Context, path: Path | None) -> RecipeFile:
    """The recipe in `path`; MedusaError if an option sets the same."""
    from medusa_cli.training.options import OPTIONS, RecipeFile, read_recipe

    if path is None:
        return RecipeFile()
    file = read_recipe(path)
    for key in OPTIONS:
        if key in file.values and str(ctx.get_parameter_source(key)).endswith("COMMANDLINE"):
            raise MedusaError(f"--{key}: {path} also sets {key}: leave one of them out")
    return file


def _refuse_to_overwrite(options: dict[str, Any]) -> None:
    """MedusaError if a file written besides the output exists. options: fields of TrainOptions."""
    folder, adapter = options.get("export_hf"), options.get("adapter")
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise MedusaError(f"{folder} is not empty: give another folder, or add --force to overwrite its contents")
    if adapter is not None and adapter.exists():
        raise MedusaError(f"{adapter} exists: give another name, or add --force to overwrite it")


def _place(model: Path, force: bool) -> Path:
    """Where heads for this model are installed."""
    from medusa_cli.models import heads
    from medusa_cli.models.base_file import read_base

    base = read_base(model)
    return heads.place_for(base.name, base.fingerprint, replace=force)
