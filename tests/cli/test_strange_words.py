"""Words of strangers (names in a file, transcripts, file names) reach a terminal without what could steer it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from cli_fakes import BASE_METADATA, BASE_TENSORS, HEADS_METADATA, HEADS_TENSORS, write_gguf
from rich.text import Text
from typer.testing import CliRunner

from medusa_cli import cli
from medusa_cli.chat.terminal import TerminalScreen
from medusa_cli.support import console, tables

HOSTILE = "Tiny\x1b]0;owned\x07\x9b2J\u202egnp\r\nheads  none"


def invoke(*arguments: str) -> str:
    """What a command prints; it has to succeed."""
    result = CliRunner().invoke(cli.app, list(arguments), env={"NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 0, result.stderr
    return result.stdout


def harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_inspect_shows_the_names_in_a_file_on_one_line(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf", {**BASE_METADATA, "general.name": HOSTILE}, BASE_TENSORS)
    heads = write_gguf(
        tmp_path / "h.gguf",
        {**HEADS_METADATA, "medusa.base.name": HOSTILE, "medusa.kind": HOSTILE, "medusa.source.repo": HOSTILE},
        HEADS_TENSORS,
    )
    assert "\nname           Tiny?]0;owned??2J?gnp heads none\n" in invoke("inspect", str(model))
    for path in (model, heads):
        assert harmless(invoke("inspect", str(path)))


def test_json_escapes_what_is_not_printable(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf", {**BASE_METADATA, "general.name": HOSTILE + " \u4e2d"}, BASE_TENSORS)
    shown = invoke("inspect", str(model), "--json")
    assert harmless(shown)
    assert "\u4e2d" in shown
    assert json.loads(shown)["name"] == HOSTILE + " \u4e2d"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_consoles_print_nothing_that_steers_a_terminal(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, stream, io.StringIO())
    out = console.data() if stream == "stdout" else console.messages()
    out.print(HOSTILE, markup=False)
    out.print(f"[dim]{HOSTILE}[/]", end="\n")
    out.print(Text(HOSTILE))
    tables.print_table(tables.Table(HOSTILE, ("a", "b"), [(HOSTILE, "1")]), out)
    printed = getattr(sys, stream).getvalue()
    assert printed.count("Tiny?]0;owned") == 5
    assert harmless(printed)


def test_colours_and_words_of_all_scripts_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stdout)
    words = "na\u00efve \u4e2d\u6587 \u0915\u094d\u200d\u0937 \U0001f469\u200d\U0001f4bb 1\u202f000\u00a0kB\nb"
    console.data().print(words, markup=False)
    assert stdout.getvalue() == words + "\n"


def test_what_a_chat_shows_of_a_transcript_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalScreen(interactive=False, color_drafts=False).show(HOSTILE)
    assert harmless(capsys.readouterr().err)
