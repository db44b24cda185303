"""How commands are added, with help in two lengths.

`--help` shows what most people need. Options declared with hidden=True work like all others, and `--help-all` shows
them, too. Options that a command no longer has tell where they went.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from medusa_cli.support.errors import EXIT_USAGE, print_error

_SPOKEN = {
    "--lookahead": "use `medusa bench MODEL --methods lookahead`",
    **dict.fromkeys(
        ("--history", "--no-history"),
        "it brought no more tokens per step; you can delete what it saved (~/.local/state/medusa/recycled)",
    ),
}
_TRAIN_KEYS = (
    "adapter", "draft_vocab", "export_hf", "joint_batch", "joint_heads_rate", "joint_layers", "joint_rate",
    "joint_rounds", "joint_strategy", "joint_warmup", "joint_weight", "objective", "parallel", "seed",
    "streams_layers", "tokens", "work_dir",
)  # fmt: skip
_TRAIN = {f"--{key.replace('_', '-')}": f"set the key `{key}` in a recipe file (--recipe)" for key in _TRAIN_KEYS}
_TRAIN["-s"] = _TRAIN["--seed"]
GONE = {"chat": _SPOKEN, "generate": _SPOKEN, "serve": _SPOKEN, "train": _TRAIN}
"""By command: the options that it no longer has, and where they went."""


def add_command(
    app: typer.Typer, name: str, function: Callable[..., Any], path: str = "", epilog: str = "", **settings: Any
) -> None:
    """Adds `function` to `app`. path: what a person types for it, if not `medusa NAME`."""
    shown = epilog
    if _has_hidden_options(function):
        function = _with_help_all(function, epilog)
        shown = f"{epilog}\n\nAll options: `{path or f'medusa {name}'} --help-all`.".strip()
    app.command(name, cls=_Command, epilog=shown or None, **settings)(function)


class _Command(TyperCommand):
    """A command that knows the options it used to have."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option, gone = getattr(error, "option_name", ""), GONE.get(str(self.name), {})
            if option not in gone:
                raise
            print_error(f"{option} is gone: {gone[option]}")
            raise typer.Exit(EXIT_USAGE) from error


def _has_hidden_options(function: Callable[..., Any]) -> bool:
    hints = inspect.get_annotations(function, eval_str=True).values()
    return any(getattr(option, "hidden", False) for hint in hints for option in getattr(hint, "__metadata__", ()))


def _with_help_all(function: Callable[..., Any], epilog: str) -> Callable[..., Any]:
    """The same command with the option --help-all."""

    def show(context: typer.Context, wanted: bool) -> None:
        if wanted:
            parameters: list[Any] = context.command.params
            for parameter in parameters:
                parameter.hidden = False
            context.command.epilog = epilog or None
            typer.echo(context.get_help())
            raise typer.Exit

    @functools.wraps(function)
    def command(help_all: bool, **values: Any) -> Any:
        return function(**values)

    kind = Annotated[bool, typer.Option("--help-all", is_eager=True, callback=show, help="Show all options.")]
    hints = inspect.get_annotations(function, eval_str=True)
    parameters = [
        *(one.replace(annotation=hints[name]) for name, one in inspect.signature(function).parameters.items()),
        inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
