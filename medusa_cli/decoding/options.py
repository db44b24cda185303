"""Options that several commands share, spelled as in llama.cpp.

Each group is a dataclass; `grouped` splices the fields of the groups that a command takes into its command line. None
stands for what the engine does by default: help texts name those numbers, so that `--help` need not load it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any

import typer

from medusa_cli.models.completion import complete_models

ENGINE_PANEL = "Model and engine"
SAMPLING_PANEL = "Sampling"
DRAFT_PANEL = "Drafting"
MAX_SEED = 2**32 - 1
CHAT_TEMPERATURE = 0.7
"""Of answers in a chat."""
GENERATE_TEMPERATURE = 0.0
"""Of `medusa generate`: the most likely token."""
DRAFT_MAX = 4
"""Tokens in a row that a draft model drafts where nothing is said."""

MODEL_HELP = "A GGUF file, org/repo[:QUANT] on the Hub, or `demo`."
ModelArgument = Annotated[str, typer.Argument(help=MODEL_HELP, autocompletion=complete_models)]
ThreadsOption = Annotated[
    int,
    typer.Option(
        "-t", "--threads", metavar="N", min=0, rich_help_panel=ENGINE_PANEL, help="CPU threads; 0: adapt to free cores."
    ),
]
GpuLayersOption = Annotated[
    int,
    typer.Option(
        "-ngl",
        "--n-gpu-layers",
        metavar="N",
        min=-1,
        rich_help_panel=ENGINE_PANEL,
        help="Layers on the GPU; -1: as many as fit, 0: none.",
    ),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        "-dev",
        "--device",
        metavar="NAME,...",
        show_default=False,
        rich_help_panel=ENGINE_PANEL,
        hidden=True,
        help="Devices to run layers on, by the names in `medusa doctor`; none: CPU only. Default: all GPUs.",
    ),
]


HeadsOption = Annotated[
    str | None,
    typer.Option(
        "--heads",
        metavar="HEADS",
        rich_help_panel=DRAFT_PANEL,
        help="Draft heads to use: a GGUF file, or org/repo on the Hub. Default: heads found for the model.",
    ),
]

RepeatStepsOption = Annotated[
    bool,
    typer.Option(
        "--repeat-steps",
        rich_help_panel=DRAFT_PANEL,
        hidden=True,
        help="Draft the same way in every run (fixed tree, no lookup), so that the number of steps repeats.",
    ),
]


class CacheType(str, Enum):
    """KV cache types, as ggml names them."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"
    q5_1 = "q5_1"
    q5_0 = "q5_0"
    q4_1 = "q4_1"
    q4_0 = "q4_0"
    iq4_nl = "iq4_nl"


class AcceptKind(str, Enum):
    """Accept rules: exact and rejection keep the base model's distribution, typical and nucleus do not."""

    greedy = "greedy"
    exact = "exact"
    rejection = "rejection"
    typical = "typical"
    nucleus = "nucleus"


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    """How the model is loaded and where it runs."""

    ctx_size: Annotated[
        int,
        typer.Option(
            "-c",
            "--ctx-size",
            metavar="N",
            min=0,
            rich_help_panel=ENGINE_PANEL,
            help="Context size in tokens; 0: the model's own, at most 4096.",
        ),
    ] = 0
    threads: ThreadsOption = 0
    n_gpu_layers: GpuLayersOption = -1
    device: DeviceOption = None
    cache_type_k: Annotated[
        CacheType,
        typer.Option("-ctk", "--cache-type-k", rich_help_panel=ENGINE_PANEL, hidden=True, help="Type of cached keys."),
    ] = CacheType.f16
    cache_type_v: Annotated[
        CacheType,
        typer.Option(
            "-ctv", "--cache-type-v", rich_help_panel=ENGINE_PANEL, hidden=True, help="Type of cached values."
        ),
    ] = CacheType.f16


@dataclasses.dataclass(frozen=True)
class DraftOptions:
    """What drafts, in which tree, and how drafts are accepted."""

    heads: HeadsOption = None
    tree: Annotated[
        str | None,
        typer.Option(
            "--tree",
            metavar="dynamic|static|NAME|RULE|FILE[:NAME]",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Draft tree: grown in each step, the best fixed one, a built-in one, cartesian:3,2,2, random:64, or a "
            "JSON file of choices.",
        ),
    ] = None
    no_heads: Annotated[
        bool,
        typer.Option(
            "--no-heads",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Load no heads; draft with lookup and recycling.",
        ),
    ] = False
    lookup: Annotated[
        bool | None,
        typer.Option(
            "--lookup/--no-lookup",
            show_default=False,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Draft what followed the same words earlier; default: on unless --tree is given.",
        ),
    ] = None
    recycling: Annotated[
        bool | None,
        typer.Option(
            "--recycling/--no-recycling",
            show_default=False,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Draft tokens the model ranked highly earlier; default: on if no heads draft.",
        ),
    ] = None
    history: Annotated[
        bool,
        typer.Option(
            "--history/--no-history",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Save what recycling learns for the next run, in a file only you can read.",
        ),
    ] = False
    draft_model: Annotated[
        str | None,
        typer.Option(
            "-md",
            "--draft-model",
            metavar="MODEL",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Draft with a smaller model of the same vocabulary instead of heads.",
        ),
    ] = None
    draft_max: Annotated[
        int,
        typer.Option(
            "--draft-max",
            metavar="N",
            min=0,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help=f"Tokens the draft model drafts in a row; 0: {DRAFT_MAX}.",
        ),
    ] = 0
    lookahead: Annotated[
        str | None,
        typer.Option(
            "--lookahead",
            metavar="W,N,G",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Draft by lookahead decoding: columns of the window, tokens per n-gram, n-grams per step.",
        ),
    ] = None
    repeat_steps: RepeatStepsOption = False
    no_spec: Annotated[
        bool,
        typer.Option("--no-spec", rich_help_panel=DRAFT_PANEL, help="Plain decoding: load no heads, draft nothing."),
    ] = False
    accept: Annotated[
        AcceptKind | None,
        typer.Option(
            "--accept",
            show_default=False,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Acceptance rule; default: greedy at temperature 0, exact above. typical and nucleus change the text.",
        ),
    ] = None
    epsilon: Annotated[
        float | None,
        typer.Option(
            "--epsilon",
            metavar="X",
            min=0.0,
            max=1.0,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Threshold for typical. Default 0.09.",
        ),
    ] = None
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            metavar="X",
            min=0.0,
            max=1.0,
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="Entropy factor for typical. Default 0.3.",
        ),
    ] = None
    greedy_root: Annotated[
        bool,
        typer.Option(
            "--greedy-root",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="With typical and nucleus: take the likeliest token as the root.",
        ),
    ] = False
    as_published: Annotated[
        bool,
        typer.Option(
            "--as-published",
            rich_help_panel=DRAFT_PANEL,
            hidden=True,
            help="With typical: the paper's rule, applied after temperature alone, with the likeliest root and "
            "delta = the square root of epsilon unless given.",
        ),
    ] = False


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """What is generated, and when it ends."""

    max_tokens: Annotated[
        int,
        typer.Option(
            "-n",
            "--max-tokens",
            metavar="N",
            min=-1,
            rich_help_panel=SAMPLING_PANEL,
            help="Maximum number of tokens to generate; -1: until the model stops or the context is full.",
        ),
    ] = -1
    temp: Annotated[
        float | None,
        typer.Option(
            "--temp",
            metavar="X",
            min=0.0,
            show_default=False,
            rich_help_panel=SAMPLING_PANEL,
            help=f"Temperature; default: the model's own, else {CHAT_TEMPERATURE} in chat, 0 (most likely token) in "
            "generate.",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            metavar="N",
            min=0,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Keep the k likeliest tokens; 0: all. Default 40.",
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="X",
            min=0.0,
            max=1.0,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Keep the likeliest tokens up to this total probability; 1: off. Default 0.95.",
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p",
            metavar="X",
            min=0.0,
            max=1.0,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Drop tokens less likely than this share of the likeliest one; 0: off. Default 0.05.",
        ),
    ] = None
    repeat_penalty: Annotated[
        float | None,
        typer.Option(
            "--repeat-penalty",
            metavar="X",
            min=0.01,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Penalty on repeated tokens; 1 (default): off.",
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            "--frequency-penalty",
            metavar="X",
            min=-2.0,
            max=2.0,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Lower a token's logit by this for each earlier occurrence. Default 0.",
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            "--presence-penalty",
            metavar="X",
            min=-2.0,
            max=2.0,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Lower the logit of tokens that occurred earlier by this. Default 0.",
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        typer.Option(
            "--repeat-last-n",
            metavar="N",
            min=-1,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="How many tokens back penalties look; -1: the whole context. Default 64.",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias",
            metavar="ID=BIAS",
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Add BIAS to the logit of token ID (repeatable; -inf forbids it).",
        ),
    ] = None
    seed: Annotated[
        int | None,
        typer.Option(
            "-s",
            "--seed",
            metavar="N",
            min=-1,
            max=MAX_SEED,
            show_default=False,
            rich_help_panel=SAMPLING_PANEL,
            help="Random seed; the same seed gives the same text. Default (and -1): a new one each time.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop", metavar="TEXT", rich_help_panel=SAMPLING_PANEL, hidden=True, help="Stop before TEXT (repeatable)."
        ),
    ] = None
    ignore_eos: Annotated[
        bool,
        typer.Option(
            "--ignore-eos", rich_help_panel=SAMPLING_PANEL, hidden=True, help="Continue past end-of-generation tokens."
        ),
    ] = False
    stop_loops: Annotated[
        bool | None,
        typer.Option(
            "--stop-loops/--no-stop-loops",
            show_default=False,
            rich_help_panel=SAMPLING_PANEL,
            hidden=True,
            help="Stop an answer that only repeats itself; default: on in chat.",
        ),
    ] = None


SystemOption = Annotated[
    str | None, typer.Option("-sys", "--system-prompt", metavar="TEXT", help="System prompt of the conversation.")
]


_LOGIT_BIAS = re.compile(r"(\d+)(?:=|(?=[+-]))([+-]?(?:inf|\d+\.?\d*|\.\d+))", re.IGNORECASE)


def parse_logit_bias(entries: list[str] | None) -> dict[int, float]:
    """["15043=1.5", "7=-inf"] -> {15043: 1.5, 7: -inf}. typer.BadParameter for anything else.

    llama.cpp's own spelling, the sign as separator (15043+1), is understood too.
    """
    bias: dict[int, float] = {}
    for entry in entries or []:
        match = _LOGIT_BIAS.fullmatch(entry.strip())
        if match is None:
            raise typer.BadParameter(f"{entry!r} is not ID=BIAS, for example 15043=-1.5", param_hint="--logit-bias")
        bias[int(match[1])] = float(match[2])
    return bias


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose option-group parameters (dataclasses) appear on the command line field by field."""
    hints = typing.get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    members: dict[str, list[str]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(annotation=hints[name]))
            continue
        field_hints = typing.get_type_hints(groups[name], include_extras=True)
        members[name] = [field.name for field in dataclasses.fields(groups[name])]
        parameters += [
            parameter.replace(name=field.name, annotation=field_hints[field.name], default=field.default)
            for field in dataclasses.fields(groups[name])
        ]
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        for name, fields in members.items():
            values[name] = groups[name](**{field: values.pop(field) for field in fields})
        return function(**values)

    signature = inspect.Signature(parameters)
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
