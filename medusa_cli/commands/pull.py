"""`medusa pull`: fetches models, or newer versions of them, without running them."""

from __future__ import annotations

from typing import Annotated

import typer

from medusa_cli.models.completion import complete_models


def pull(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...", help="org/repo[:QUANT] on the Hub, or `demo`.", autocompletion=complete_models
        ),
    ],
    heads: Annotated[bool, typer.Option("--heads", help="The names are draft heads, not models.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each name.")] = False,
) -> None:
    """Download or update models from the Hugging Face Hub, and print where they are."""
    from pathlib import Path

    from medusa_cli.models import demo, remote
    from medusa_cli.models import names as references
    from medusa_cli.support import console
    from medusa_cli.support.errors import MedusaError

    messages = console.messages()
    parsed = [(name, None if name == demo.DEMO and not heads else references.parse(name)) for name in names]
    for name, found in parsed:
        if isinstance(found, Path):
            what = (
                "is a path, so there is nothing to download" if references.exists(found) else "is not a name on the Hub"
            )
            raise MedusaError(f"{console.printable(name)} {what}: give org/repo, or `demo`")
    shown: dict[str, str | None]
    for name, found in parsed:
        if found is None:
            shown = {"name": name, "path": str(demo.demo_base(messages)), "heads": str(demo.DEMO_HEADS)}
        elif heads:
            assert not isinstance(found, Path)
            shown = {"name": str(found), "path": str(remote.fetch_heads(found, messages, update=True)), "heads": None}
        else:
            assert not isinstance(found, Path)
            fetched = remote.fetch_model(found, messages, update=True, to_run=False)
            beside = str(fetched.heads) if fetched.heads else None
            shown = {"name": str(fetched.name), "path": str(fetched.path), "heads": beside}
        if as_json:
            console.print_json(shown)
        else:
            print(shown["path"], flush=True)
