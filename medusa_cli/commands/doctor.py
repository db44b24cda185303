"""`medusa doctor`: what medusa runs on, and what is wrong with it."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from medusa_cli.models.completion import complete_models
from medusa_cli.support.tables import known, print_rows
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="Also load this model and show which kernels it runs on.", autocompletion=complete_models),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show versions, devices, CPU features, kernels and memory. Exit code 1 when something is wrong."""
    from medusa_cli.diagnosis import report
    from medusa_cli.support import console

    found = report.diagnose()
    if model is not None and found["libllama"] is not None:
        found["model"] = report.diagnose_model(model, console.messages())
    if as_json:
        print(json.dumps(found))
    else:
        _print(found, console.data())
    if found["problems"]:
        raise typer.Exit(1)


def _print(found: dict[str, Any], out: Console) -> None:
    from medusa_cli.decoding import figures

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
            f"{found['cpu'] or 'unknown'}, {known(found['cores_physical'])} cores, {found['cores_logical']} threads",
        ),
        ("threads", _threads(found["threads"], found["cores_physical"])),
        ("CPU features", " ".join(found["cpu_features"]) or "unknown"),
        *figures.kernel_rows(found["kernels"]),
        ("memory", f"{_gib(found['memory_total'])}, {_gib(found['memory_available'])} available"),
    ]
    for device in found["devices"]:
        free, total = device.get("memory_free") or 0, device.get("memory_total") or 0
        memory = f", {_gib(free)} of {_gib(total)} free" if total else ""
        rows.append(
            ("device", f"{device['name']}: {device['description']} ({device['type']}, {device['backend']}{memory})")
        )
    demo = found["demo"]
    rows.append(("demo model", f"{'cached' if demo['cached'] else 'not downloaded yet'} ({demo['path']})"))
    rows.append(("cache disk", f"{_gib(demo['disk_free'])} free"))
    print_rows(rows, out)
    if "model" in found:
        _print_model(found["model"], out)
    out.print()
    for problem in found["problems"]:
        out.print("[bold red]problem:[/] ", end="")
        out.print(problem, markup=False, soft_wrap=True)
    if not found["problems"]:
        out.print("[green]Everything is in order.[/]")


def _threads(threads: dict[str, Any] | None, cores: int | None) -> str:
    """How many threads an answer would begin with, and why."""
    if threads is None:
        return "unknown"
    others = threads["cores_of_others"]
    why = "load from other programs is unknown here" if others is None else f"other programs use {others:.1f} cores"
    return f"{threads['now']} of {known(cores)} without -t: {why}"


def _print_model(model: dict[str, Any], out: Console) -> None:
    from rich.table import Table

    say = functools.partial(out.print, markup=False, soft_wrap=True)
    out.print()
    say(f"{model['name']}: {model['description']}")
    attention = model["attention"]
    remark = f" ({attention['remark']})" if attention["remark"] else ""
    say(f"Attention: {attention['kernels']}{remark}")
    drafts = model["drafts"]
    remark = f" ({drafts['remark']})" if drafts["remark"] else ""
    shape = f"a {drafts['shape']}" if drafts["shape"] else "none"
    by = f", from {', '.join(drafts['by'])}" if drafts["by"] else ""
    say(f"Drafts:    {shape}{by}{remark}")
    free = "the text does not depend on the drafts: all of them stay on"
    seeds = f"drafts are the same in every run, since {model['seeds']}" if model["seeds"] else free
    say(f"Seeds:     {seeds}")
    sampling = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in model["sampling"].items())
    say(f"Sampling:  {sampling or 'the model sets no defaults'}")
    context = model["context"]
    each = size(context["bytes"] * 1000 // context["tokens"])
    own = f"of the model's {context['trained']} " if context["trained"] > 0 else ""
    say(f"Context:   {context['tokens']} {own}tokens, {each} for each 1,000")
    if not model["weights"]:
        out.print("Which kernels it runs on is unknown on this platform.")
        _print_devices(model, out)
        return
    table = Table("weights", "type", "tensors", "size", "kernels", "remark", box=None, pad_edge=False)
    for group in model["weights"]:
        tensors, nbytes = str(group["tensors"]), size(group["bytes"])
        table.add_row(group["role"], group["type"], tensors, nbytes, group["kernels"], group["remark"] or "")
    out.print(table)
    _print_devices(model, out)


def _print_devices(model: dict[str, Any], out: Console) -> None:
    """What runs where, and what that sends to the host."""
    say = functools.partial(out.print, markup=False, soft_wrap=True)
    out.print()
    for use in model["runs_on"]:
        parts = [f"{use['layers']} of {model['layers']} layers"] if use["layers"] else []
        parts += ["output matrix"] * use["output"] + ["draft heads"] * use["heads"]
        parts += ["embedding rows, trees, sampling, acceptance"] * (use["device"] == "CPU")
        say(f"{use['device']}: {', '.join(parts)}")
    if (sent := model["to_host"]) is not None:
        say(
            f"To the host in a step of {sent['nodes']} nodes: {size(sent['total'])} (logits {size(sent['logits'])}, "
            f"states {size(sent['states'])}, rows of the heads {size(sent['heads'])})"
        )
        where = f"in the model's graph, {sent['in_graph']} bytes to the host at temperature 0"
        where += f" ({size(sent['grown'])} with a dynamic tree)" if sent["grown"] else ""
        where += f", {size(sent['sampled'])} where tokens are sampled"
        if sent["host_reason"]:
            where = f"on the host: {sent['host_reason']}"
        say(f"Steps are accepted and drafted {where}")


def _gib(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 2**30:.1f} GiB"
