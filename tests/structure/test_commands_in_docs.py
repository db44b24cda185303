"""Every command in the pages that runs a script of benchmarks/: the script is there and takes these options."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
ENDS = {"&&", "||", ";", "|"}


def commands() -> Iterator[tuple[str, str, list[str]]]:
    """(page, script, arguments) of each, whether in a block or in a line of text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for script, rest in re.findall(r"python (benchmarks/\S+\.py)([^`\n]*)", text):
            words = shlex.split(rest, comments=True)
            end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
            yield str(page.relative_to(ROOT)), script, words[:end]


COMMANDS = list(commands())
SCRIPTS = sorted({script for _, script, _ in COMMANDS})


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_take_the_commands(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = importlib.import_module(Path(script).stem).parser()
    refused = []
    for page, of, arguments in COMMANDS:
        if of == script:
            try:
                parser.parse_args(arguments)
            except SystemExit:
                refused.append((page, shlex.join(arguments), capsys.readouterr().err.splitlines()[-1]))
    assert refused == []


def test_scripts_that_are_named_are_there() -> None:
    named = {name for page in PAGES for name in re.findall(r"benchmarks/[\w/]+\.(?:py|jsonl)", page.read_text("utf-8"))}
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_pages_name_every_script_that_measures() -> None:
    scripts = {path for path in (ROOT / "benchmarks").rglob("*.py") if "def parser()" in path.read_text("utf-8")}
    assert sorted(path.relative_to(ROOT).as_posix() for path in scripts) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_pages_name_every_command_of_a_script(script: str) -> None:
    listed = set(
        re.findall(rf"python {script} ([a-z][a-z-]*)", importlib.import_module(Path(script).stem).__doc__ or "")
    )
    named = {arguments[0] for _, of, arguments in COMMANDS if of == script and listed}
    assert sorted(named) == sorted(listed)
