"""`medusa help`: the guides in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from medusa_cli.support.errors import EXIT_USAGE, MedusaError, print_error


def complete_topics(incomplete: str) -> list[str]:
    """Topics that begin with it."""
    from medusa_cli.support import guides

    return [name for name in guides.topics() if name.startswith(incomplete)]


def help_(
    topic: Annotated[
        str | None,
        typer.Argument(help="A guide, or a command that one is about.", autocompletion=complete_topics),
    ] = None,
) -> None:
    """Show a guide; without TOPIC, all guides. The options of a command: `medusa COMMAND --help`."""
    from medusa_cli.support import console, guides
    from medusa_cli.support.tables import print_rows

    out = console.data()
    if topic is None:
        print_rows([(name, guides.summary(page)) for name, page in guides.guides().items()], out)
        return
    try:
        text = guides.find(topic)
    except MedusaError as error:
        print_error(str(error))
        raise typer.Exit(EXIT_USAGE) from error
    guides.show(text, out)
