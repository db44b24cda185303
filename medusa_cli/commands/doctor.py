"""`medusa doctor`: what medusa runs on, and what is wrong with it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show versions, devices, CPU features, cores and memory. Exit code 1 when something is wrong."""
    from medusa_cli import console, diagnosis

    found = diagnosis.diagnose()
    if as_json:
        print(json.dumps(found))
    else:
        _print(found, console.data())
    if found["problems"]:
        raise typer.Exit(1)


def _print(found: dict[str, Any], out: Console) -> None:
    rows = [
        ("medusa", found["medusa"]),
        ("Python", f"{found['python']} ({found['platform']})"),
        (
            "llama-cpp-python",
            f"{found['llama_cpp_python'] or 'not found'} (wanted: {found['llama_cpp_python_wanted']})",
        ),
        ("libllama", found["libllama"] or "not loaded"),
        (
            "CPU",
            f"{found['cpu'] or 'unknown'}, {_known(found['cores_physical'])} cores, {found['cores_logical']} threads",
        ),
        ("CPU features", " ".join(found["cpu_features"]) or "unknown"),
        ("memory", f"{_gib(found['memory_total'])}, {_gib(found['memory_available'])} available"),
    ]
    for device in found["devices"]:
        free, total = device.get("memory_free") or 0, device.get("memory_total") or 0
        memory = f", {_gib(free)} of {_gib(total)} free" if total else ""
        rows.append(("device", f"{device['name']}: {device['description']} ({device['type']}{memory})"))
    demo = found["demo"]
    rows.append(("demo model", f"{'cached' if demo['cached'] else 'not fetched yet'} ({demo['path']})"))
    rows.append(("cache disk", f"{_gib(demo['disk_free'])} free"))
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        out.print(f"[dim]{label.ljust(width)}[/]  ", end="")
        out.print(value, markup=False, soft_wrap=True)
    out.print()
    for problem in found["problems"]:
        out.print("[bold red]problem:[/] ", end="")
        out.print(problem, markup=False, soft_wrap=True)
    if not found["problems"]:
        out.print("[green]Everything is in order.[/]")


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 2**30:.1f} GiB"
