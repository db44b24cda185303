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
    parsed: list[references.HubName | None] = []
    for name in names:
        found = None if name == demo.DEMO and not heads else references.parse(name)
        if isinstance(found, Path):
            is_here = references.exists(found)
            what = "is a path, so there is nothing to download" if is_here else "is not a name on the Hub"
            raise MedusaError(f"{console.printable(name)} {what}: give org/repo, or `demo`")
        parsed.append(found)
    shown: dict[str, str | None]
    for hub_name in parsed:
        if hub_name is None:
            base = str(demo.demo_base(messages))
            shown = {"name": demo.DEMO, "path": base, "heads": str(demo.DEMO_HEADS), "drafter": None}
        elif heads:
            path = remote.fetch_heads(hub_name, messages, update=True)
            shown = {"name": str(hub_name), "path": str(path), "heads": None, "drafter": None}
        else:
            fetched = remote.fetch_model(hub_name, messages, update=True, to_run=False)
            beside = str(fetched.heads) if fetched.heads else None
            drafter = str(fetched.drafter) if fetched.drafter else None
            shown = {"name": str(fetched.name), "path": str(fetched.path), "heads": beside, "drafter": drafter}
        if as_json:
            console.print_json(shown)
        else:
            print(shown["path"], flush=True)
