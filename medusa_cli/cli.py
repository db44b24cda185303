"""The `medusa` command: parsing and dispatch only. Command modules import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from medusa_cli import __version__
from medusa_cli.commands import (
    bench,
    chat,
    convert,
    doctor,
    generate,
    help,
    inspect,
    list_models,
    pull,
    remove,
    serve,
    split,
    train,
    tune,
)
from medusa_cli.commands.registry import add_command
from medusa_cli.support.errors import report
from medusa_cli.support.versions import build_facts

# The argument parser's own control flow and usage errors, which it prints itself (exit 2 for usage).
_USAGE_ERROR = next(cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException")
_PARSER_EXCEPTIONS: tuple[type[BaseException], ...] = (typer.Exit, typer.Abort, _USAGE_ERROR)


class MedusaGroup(TyperGroup):
    """Turns every error of a command into one stderr line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except _PARSER_EXCEPTIONS:
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(report(error)) from error


app = typer.Typer(
    cls=MedusaGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Chat with any llama.cpp model, faster: the model drafts its own next tokens with small extra heads.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"medusa {__version__}\n{build_facts()}", nl=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version, the build and its licences."
        ),
    ] = False,
) -> None:
    pass


add_command(app, "chat", chat.chat)
add_command(app, "generate", generate.generate)
add_command(app, "serve", serve.serve)
add_command(app, "list", list_models.list_models)
add_command(app, "pull", pull.pull)
add_command(app, "rm", remove.remove)
add_command(app, "inspect", inspect.inspect)
add_command(app, "convert", convert.convert)
add_command(app, "split", split.split)
add_command(app, "train", train.train)
add_command(app, "tune", tune.tune)
app.add_typer(bench.app, name="bench")
add_command(app, "doctor", doctor.doctor)
add_command(app, "help", help.help_)


def main() -> None:
    """Entry point of the `medusa` command."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that is not UTF-8 shows "?" for what it lacks instead of ending the answer.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app(prog_name="medusa")
