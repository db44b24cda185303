"""`medusa list`: the models that are here by name, and installed heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the models in the cache (size, draft heads, tuned tree), then installed heads."""
    from medusa_cli.diagnosis.inventory import inventory
    from medusa_cli.support import console

    found = inventory()
    if as_json:
        console.print_json(found)
    else:
        _print(found, console.data(), console.messages())


def _print(found: dict[str, Any], out: Console, messages: Console) -> None:
    from rich.markup import escape

    from medusa_cli.models.references import Origin
    from medusa_cli.support.console import printable
    from medusa_cli.support.tables import MISSING, Table, print_table
    from medusa_cli.support.units import size

    def heads_of(model: dict[str, Any]) -> str:
        heads = model["heads"]
        if heads is None and (drafter := model["drafter"]) is not None:
            where = "its file" if drafter["path"] == model["path"] else Origin.repository.value
            return f"{drafter['layers']} {drafter['kind']}, {where}"
        return MISSING if heads is None else f"{heads['head_count']} {heads['kind']}, {heads['origin']}"

    if not found["models"] and not found["heads"]:
        messages.print("No models yet: `medusa pull org/repo` downloads one, `medusa chat demo` starts the demo.")
    if models := found["models"]:
        rows = [
            (escape(model["name"]), size(model["size"]), heads_of(model), "yes" if model["tuned"] else MISSING)
            for model in models
        ]
        print_table(Table("", ("model", "size", "draft heads", "tuned"), rows, folds=True), out)
    if heads := found["heads"]:
        if models:
            out.print()
        rows = [
            (
                escape(one["name"]),
                size(one["size"]),
                f"{one['head_count']} {one['kind']}",
                escape(printable(one["base_name"])),
            )
            for one in heads
        ]
        print_table(Table("", ("installed heads", "size", "kind", "for"), rows, folds=True), out)
    for model in found["models"]:
        if "error" in model:
            messages.print(f"note: {model['name']}: {model['error']}", markup=False, soft_wrap=True)
