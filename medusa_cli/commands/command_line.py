"""Option groups on the command line: each field becomes an option, spelled as in llama.cpp.

`grouped` splices the fields of a command's groups into its options.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from medusa_cli.decoding import structure
from medusa_cli.decoding.fields import Field, fields
from medusa_cli.decoding.options import DraftOptions, EngineOptions, SamplingOptions
from medusa_cli.models.completion import complete_models
from medusa_cli.support.errors import MedusaError, WrongOption, flag, worded

DRAFT_PANEL = "Drafting"
OUTPUT_PANEL = "Output"
PANELS: dict[type[Any], str] = {
    EngineOptions: "Model and engine",
    DraftOptions: DRAFT_PANEL,
    SamplingOptions: "Sampling",
}
ModelArgument = Annotated[
    str,
    typer.Argument(help="A GGUF file, org/repo[:QUANT] on the Hub, or `demo`.", autocompletion=complete_models),
]
SystemOption = Annotated[
    str | None, typer.Option("-sys", "--system-prompt", metavar="TEXT", help="System prompt of the conversation.")
]
PlotOption = Annotated[
    Path | None,
    typer.Option("--plot", metavar="FILE", rich_help_panel=OUTPUT_PANEL, help="Draw an SVG, PNG or PDF."),
]
Number = TypeVar("Number", int, float)


def comma_separated(
    text: str, kind: type[Number], fits: Callable[[Number], bool], what: str, option: str
) -> list[Number]:
    """ "0,0.7" -> [0.0, 0.7]. typer.BadParameter, which says `what` the option takes, for anything else."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(map(fits, found)):
        raise typer.BadParameter(f"{text!r} is not a list of {what}", param_hint=option)
    return found


@dataclasses.dataclass(frozen=True)
class Only:
    """The options of a group that a command has, and help texts for those that mean something special there."""

    names: frozenset[str]
    texts: Mapping[str, str]


def only(*names: str, **texts: str) -> Only:
    """Goes beside a group: the command has the options named, and those given a help text."""
    return Only(frozenset((*names, *texts)), texts)


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose option groups (dataclasses) appear on the command line field by field.

    A WrongOption that it raises is a wrong command line.
    """
    hints = inspect.get_annotations(function, eval_str=True)
    members: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        hint: Any = hints[name]
        choice: Only | None = None
        if typing.get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], Only):
            hint, choice = hint.__origin__, hint.__metadata__[0]
        if dataclasses.is_dataclass(hint):
            of_group = list(_parameters(hint, choice, parameter))
            members[name] = hint, [one.name for one in of_group]
            parameters += of_group
        else:
            parameters.append(parameter.replace(annotation=hint))
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)

    @functools.wraps(function)
    def command(**values: Any) -> Any:
        for name, (group, options) in members.items():
            values[name] = group(**{one: _taken(fields(group)[one], values.pop(one)) for one in options})
        try:
            return function(**values)
        except WrongOption as error:
            raise typer.BadParameter(worded(error), param_hint=flag(error.option)) from error

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _parameters(group: Any, choice: Only | None, like: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """The parameters that stand for a group."""
    for name, field in fields(group).items():
        if not field.option.only_python and (choice is None or name in choice.names):
            hint = _annotation(field, PANELS[group], "" if choice is None else choice.texts.get(name, ""))
            yield like.replace(name=name, annotation=hint, default=field.default)


def _annotation(field: Field, panel: str, text: str) -> Any:
    """The option as typer takes it. text: its help, if not its own."""
    option, kind = field.option, field.kind
    if typing.get_origin(kind) in (Mapping, Sequence):
        kind = list[str]
    negated = f"/--no-{field.long.removeprefix('--')}" if option.switch else ""
    names = [name for name in (option.short, field.long + negated) if name]
    low, high = (None if one is None else kind(one) for one in (option.low, option.high))
    told = typer.Option(
        *names,
        metavar=option.metavar,
        min=low,
        max=high,
        rich_help_panel=panel,
        hidden=not option.common,
        help=text or option.help,
    )
    return Annotated[kind | None if field.optional else kind, told]


def _taken(field: Field, value: Any) -> Any:
    """What the group gets. typer.BadParameter for numbers that the parser lets through: nan, and those over 32 bits."""
    if value is None:
        return value
    if field.is_number and not field.holds(value):
        raise typer.BadParameter(f"{value} is not {field.wanted}", param_hint=field.long)
    if field.name in structure.NAMES:
        return structure.read(field.name, value)
    if field.name != "logit_bias":
        return value
    try:
        return field.checked(parse_logit_bias(value))
    except MedusaError as error:
        raise typer.BadParameter(str(error), param_hint=field.long) from error


_LOGIT_BIAS = re.compile(r"(\d+)(?:=|(?=[+-]))([+-]?(?:inf|\d+\.?\d*|\.\d+))", re.IGNORECASE)


def parse_logit_bias(entries: list[str]) -> dict[int, float] | None:
    """["15043=1.5", "7=-inf"] -> {15043: 1.5, 7: -inf}. typer.BadParameter for anything else.

    llama.cpp's own spelling, with the sign as separator (15043+1), works, too.
    """
    bias: dict[int, float] = {}
    for entry in entries:
        match = _LOGIT_BIAS.fullmatch(entry.strip())
        if match is None:
            raise typer.BadParameter(f"{entry!r} is not ID=BIAS, for example 15043=-1.5", param_hint="--logit-bias")
        bias[int(match[1])] = float(match[2])
    return bias or None
