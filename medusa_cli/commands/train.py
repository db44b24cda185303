"""`medusa train`: options only; the work is medusa_cli.training's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medusa_cli.commands.command_line import ModelArgument
from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.training.backbone.recipe import ALL_LAYERS, DEFAULT_LAYERS, DEFAULT_STRATEGY, Strategy, Warmup
from medusa_cli.training.heads.recipe import DEFAULT_KIND, DEFAULT_OBJECTIVE, Objective
from medusa_cli.training.streams.recipe import DEFAULT_LAYERS as DEFAULT_STREAMS_LAYERS
from medusa_cli.training.streams.recipe import STREAMS, DraftKind

if TYPE_CHECKING:
    from medusa_cli.training.recipe_file import RecipeFile


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
    sidecar: Annotated[bool, typer.Option("--sidecar", help="Write the heads alone, for --heads.")] = False,
    kind: Annotated[
        DraftKind,
        typer.Option(
            "--kind", metavar="KIND", help="medusa, hydra (heads see each other's drafts), hydra++ or streams."
        ),
    ] = DEFAULT_KIND,
    streams_layers: Annotated[
        int, typer.Option("--streams-layers", min=1, hidden=True, help="Layers that streams run through, from the top.")
    ] = DEFAULT_STREAMS_LAYERS,
    joint: Annotated[
        bool,
        typer.Option("--joint", help="Also train the model's top layers, which changes its text (Medusa-2)."),
    ] = False,
    joint_layers: Annotated[
        str,
        typer.Option(
            "--joint-layers",
            metavar="N",
            hidden=True,
            help="Layers trained with --joint, from the top: a number, or all.",
        ),
    ] = str(DEFAULT_LAYERS),
    joint_strategy: Annotated[
        Strategy,
        typer.Option(
            "--joint-strategy",
            metavar="WHAT",
            hidden=True,
            help="distill: the layers keep the model's own probabilities; truth: they learn the text; direct: truth "
            "without warm-up and with one rate.",
        ),
    ] = DEFAULT_STRATEGY,
    joint_warmup: Annotated[
        Warmup | None,
        typer.Option(
            "--joint-warmup",
            metavar="WHAT",
            hidden=True,
            help="heads: train them alone first; sine: phase in their loss slowly; both or none; default: the "
            "strategy's.",
        ),
    ] = None,
    joint_rate: Annotated[
        float | None,
        typer.Option(
            "--joint-rate", metavar="X", hidden=True, help="Learning rate of the layers; default: the strategy's."
        ),
    ] = None,
    joint_heads_rate: Annotated[
        float | None,
        typer.Option(
            "--joint-heads-rate",
            metavar="X",
            hidden=True,
            help="Learning rate of the heads as a multiple of the layers'; default: the strategy's.",
        ),
    ] = None,
    joint_weight: Annotated[
        float | None,
        typer.Option(
            "--joint-weight",
            metavar="X",
            hidden=True,
            help="Weight of the heads' loss, added to the layers' own; default: the strategy's.",
        ),
    ] = None,
    joint_rounds: Annotated[
        float | None,
        typer.Option(
            "--joint-rounds",
            metavar="X",
            hidden=True,
            help="Rounds over the text with --joint; default: as many as the minutes allow, at most 4.",
        ),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(
            "--adapter", metavar="FILE", hidden=True, help="With --joint: also write the layers' change as a LoRA."
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(
            "--recipe",
            metavar="FILE",
            hidden=True,
            help="A recipe file (TOML or JSON): heads, training and text as in a paper.",
        ),
    ] = None,
    objective: Annotated[
        Objective,
        typer.Option(
            "--objective",
            metavar="WHAT",
            hidden=True,
            help="teacher: the model's own probabilities; truth: the text's tokens.",
        ),
    ] = DEFAULT_OBJECTIVE,
    heads: Annotated[int, typer.Option("--heads", min=1, max=16, help="Number of heads: drafted tokens in a row.")] = 4,
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
    seed: Annotated[
        int,
        typer.Option(
            "-s",
            "--seed",
            min=0,
            max=MAX_SEED,
            hidden=True,
            help="Random seed; the same seed and text give the same heads.",
        ),
    ] = 0,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=1000, hidden=True, help="Tokens to generate, instead of a share of the minutes."),
    ] = None,
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, help="CPU threads; 0: physical cores.")] = 0,
    n_gpu_layers: Annotated[
        int, typer.Option("-ngl", "--n-gpu-layers", min=-1, help="Layers on the GPU; -1: all if there is one.")
    ] = -1,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=256, hidden=True, help="Texts generated at a time.")
    ] = 32,
    draft_vocab: Annotated[
        int | None,
        typer.Option(
            "--draft-vocab",
            min=100,
            hidden=True,
            help="Tokens the heads choose from; default: measured on this machine.",
        ),
    ] = None,
    export_hf: Annotated[
        Path | None,
        typer.Option(
            "--export-hf", metavar="DIR", hidden=True, help="Also write the heads as a Hugging Face checkpoint."
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            "--work-dir", metavar="DIR", hidden=True, help="Where to keep text and hidden states for resuming."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output if it exists.")] = False,
) -> None:
    """Train draft heads for a model on its own text (needs torch). Ctrl-C saves; the same command resumes."""
    from medusa_cli.models import references
    from medusa_cli.support import console
    from medusa_cli.support.errors import MedusaError

    if joint and output is None:
        raise MedusaError("--joint writes a new model: give it a file name with -o")
    if output is not None and output.exists() and not force:
        raise MedusaError(f"{output} exists: give another name, or add --force to overwrite it")
    if export_hf is not None and export_hf.is_dir() and any(export_hf.iterdir()) and not force:
        raise MedusaError(f"{export_hf} is not empty: give another folder, or add --force to overwrite its contents")
    if adapter is not None and adapter.exists() and not force:
        raise MedusaError(f"{adapter} exists: give another name, or add --force to overwrite it")
    file = _recipe(ctx, recipe)
    messages = console.messages()
    ref = references.resolve(model, messages)
    import medusa_cli.training.train as training
    from medusa_cli.training.options import TrainOptions
    from medusa_cli.training.recipe_file import ALL

    said = file.option("draft_vocab", draft_vocab)
    drafts = file.option("kind", kind)
    if drafts == STREAMS and str(ctx.get_parameter_source("joint_layers")).endswith("COMMANDLINE"):
        raise MedusaError("--joint-layers: streams train the layers they run through, use --streams-layers")
    training.run(
        TrainOptions(
            model=ref.path,
            output=output or _place(ref.path, force),
            sidecar=sidecar or output is None,
            kind=drafts,
            joint=joint,
            joint_layers=_layers(joint_layers),
            joint_strategy=joint_strategy,
            joint_warmup=joint_warmup,
            joint_rate=joint_rate,
            joint_heads_rate=joint_heads_rate,
            joint_weight=joint_weight,
            joint_rounds=joint_rounds,
            adapter=adapter,
            streams_layers=streams_layers,
            objective=file.option("objective", objective),
            heads=file.option("heads", heads),
            minutes=minutes,
            data=data,
            seed=seed,
            tokens=tokens,
            threads=threads,
            n_gpu_layers=n_gpu_layers,
            parallel=parallel,
            draft_vocab=None if said == ALL else said,
            whole_vocabulary=said == ALL,
            file=file,
            export_hf=export_hf,
            work_dir=work_dir,
            console=messages,
        )
    )


def _layers(text: str) -> int | None:
    """None: all of them."""
    from medusa_cli.support.errors import MedusaError

    if text == ALL_LAYERS:
        return None
    if not text.isdecimal():
        raise MedusaError(f"--joint-layers {text}: not a number, choose at least 1, or {ALL_LAYERS}")
    return int(text)


def _recipe(ctx: typer.Context, path: Path | None) -> RecipeFile:
    """What `path` says; MedusaError where an option says it, too."""
    from medusa_cli.training.recipe_file import RecipeFile, read_recipe

    if path is None:
        return RecipeFile()
    file = read_recipe(path)
    file.refuse_twice([name for name in ctx.params if str(ctx.get_parameter_source(name)).endswith("COMMANDLINE")])
    return file


def _place(model: Path, force: bool) -> Path:
    """Where heads for this model are installed."""
    from medusa_cli.models import heads
    from medusa_cli.models.base_file import read_base

    base = read_base(model)
    return heads.place_for(base.name, base.fingerprint, replace=force)
