"""The guides in docs/ against the commands: each names all options of the commands it is about, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from medusa_cli import cli
from medusa_cli.decoding.fields import fields
from medusa_cli.decoding.options import DraftOptions, EngineOptions, SamplingOptions

DOCS = Path(__file__).parents[2] / "docs"
HEADING = re.compile(r"^## Options of `medusa ([a-z]+)`$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TABLES = [
    (page.name, command, table)
    for page in sorted(DOCS.glob("*.md"))
    for command, table in HEADING.findall(page.read_text(encoding="utf-8"))
]
HELP = {"-h", "--help", "--help-all"}
SHARED = "options of model, drafting and sampling"
"""The table that the guides of several commands name in place of their rows; it stands in chat.md."""
STATED = re.compile(r"\bDefault (\d[\d.]*\d|\d)\.$")


def commands() -> dict[str, Any]:
    """The parser of each command; of bench, that of `medusa bench MODEL`."""
    group: Any = typer.main.get_command(cli.app)
    return {name: found.commands["run"] if name == "bench" else found for name, found in group.commands.items()}


def options_of(table: str) -> list[str]:
    """The names in its first column."""
    return re.findall(r"`(-[^`]+)`", " ".join(line.split("|")[1] for line in rows(table)))


def rows(table: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith("| `-")]


def shared_table() -> str:
    text = (DOCS / "chat.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^## {SHARED.capitalize()}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(table)


def test_the_shared_table_is_that_of_the_option_groups() -> None:
    known = [one for group in (EngineOptions, DraftOptions, SamplingOptions) for one in fields(group).values()]
    of_commands = [one for one in known if not one.option.only_python]
    names = {name for one in of_commands for name in (one.option.short, one.long) if name}
    names |= {"--no-" + one.long.removeprefix("--") for one in of_commands if one.option.switch}
    assert sorted(options_of(shared_table())) == sorted(names)
    meanings = {name: line.split("|")[2] for line in rows(shared_table()) for name in options_of(line)}
    for one in of_commands:
        if stated := STATED.search(one.option.help):
            assert re.search(rf"\({re.escape(stated[1])}\b", meanings[one.long]), one.long


def test_every_command_with_options_has_one_table_of_them() -> None:
    with_options = [
        name
        for name, one in commands().items()
        if {opt for p in one.params for opt in p.opts if opt.startswith("-")} - HELP
    ]
    assert sorted(command for _, command, _ in TABLES) == sorted(with_options)


@pytest.mark.parametrize(("page", "command", "table"), TABLES, ids=[f"{page}-{name}" for page, name, _ in TABLES])
def test_a_guide_names_every_option(page: str, command: str, table: str) -> None:
    named = options_of(table) + (options_of(shared_table()) if f"[{SHARED}]" in table else [])
    parameters = commands()[command].params
    known = {name for one in parameters for name in (*one.opts, *one.secondary_opts) if name.startswith("-")} - HELP
    assert sorted(named) == sorted(known)


def test_the_guide_of_bench_names_the_options_of_kernels() -> None:
    group: Any = typer.main.get_command(cli.app)
    parameters = group.commands["bench"].commands["kernels"].params
    text = (DOCS / "bench.md").read_text(encoding="utf-8")
    usage = re.search(r"^    medusa bench kernels MODEL (\[.*)$", text, re.MULTILINE)
    assert usage is not None
    named = set(re.findall(r"\[(-\S+?)[ \]]", usage[1]))
    assert all(named & set(one.opts) for one in parameters if one.opts[0].startswith("-"))
    assert named <= {name for one in parameters for name in one.opts}


def test_the_guide_of_ablate_names_its_options() -> None:
    group: Any = typer.main.get_command(cli.app)
    parameters = group.commands["bench"].commands["ablate"].params
    text = (DOCS / "ablate.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^## Options of `medusa bench ablate`$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `-")]
    named = re.findall(r"`(-[^`]+)`", " ".join(cells))
    assert sorted(named) == sorted({name for one in parameters for name in one.opts if name.startswith("-")} - HELP)
