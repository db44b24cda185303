"""`medusa rm`: removes fetched models, or installed heads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from medusa_cli.models.completion import complete_installed

if TYPE_CHECKING:
    from medusa_cli.models.removal import Removal


def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME...",
            help="Names as shown by `medusa list`; org/repo: all its quantizations.",
            autocompletion=complete_installed,
        ),
    ] = None,
    caches: Annotated[
        bool, typer.Option("--caches", help="Remove what models have read in chats: it will be read again.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Remove models from the cache, installed heads, or prompt caches. Other files of a repository stay."""
    from medusa_cli.decoding.saved_caches import CacheStore, default_folder
    from medusa_cli.models import removal
    from medusa_cli.models.removal import Removal
    from medusa_cli.support import console
    from medusa_cli.support.errors import MedusaError
    from medusa_cli.support.units import size

    if not names and not caches:
        raise typer.BadParameter("name a model or heads, or give --caches", param_hint="NAME")
    found = removal.find(names or [])
    if caches:
        files = CacheStore(default_folder()).files()
        found.append(Removal("prompt caches", sum(path.stat().st_size for path in files), paths=tuple(files)))
    if not yes:
        if not sys.stdin.isatty():
            raise MedusaError(f"{_described(found)} would be removed: add --yes, there is no terminal to ask in")
        messages = console.messages()
        for one in found:
            messages.print(f"{one.name}  {size(one.size)}", markup=False, soft_wrap=True)
        messages.print(f"Remove {_described(found)}? [y/N] ", end="", markup=False)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise MedusaError("nothing was removed")
    freed = removal.remove(found)
    if as_json:
        console.print_json({"removed": [one.name for one in found], "freed": freed})
    else:
        console.messages().print(f"Removed {_described(found)}: freed {size(freed)}.", markup=False)


def _described(found: list[Removal]) -> str:
    return found[0].name if len(found) == 1 else f"{len(found)} things"
