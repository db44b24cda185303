"""Files and surroundings that no one expects: pipes, names that are not UTF-8, no home. Each is one line, at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cli_fakes import base_gguf
from typer.testing import CliRunner

from medusa_cli import cli
from medusa_cli.chat.conversation import Conversation
from medusa_cli.support import paths
from medusa_cli.support.errors import MedusaError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="neither pipes in folders nor bytes in names")
NOT_UTF8 = os.fsdecode(b"tiny\xff.gguf")
COMMANDS = {
    "inspect": ["inspect", "FILE"],
    "split": ["split", "FILE"],
    "generate": ["generate", "FILE", "-p", "hi"],
    "heads": ["generate", "base.gguf", "-p", "hi", "--heads", "FILE"],
    "train": ["train", "FILE"],
    "train's output": ["train", "base.gguf", "--sidecar", "-o", "FILE", "--force"],
    "tune": ["tune", "FILE"],
    "convert": ["convert", "heads", "--base", "FILE", "-o", "out.gguf"],
    "convert's output": ["convert", "heads", "--base", "base.gguf", "-o", "FILE", "--force"],
}


def error_of(*arguments: str) -> str:
    """The one line with which a command fails."""
    result = CliRunner().invoke(cli.app, list(arguments), env={"NO_COLOR": "1", "TERM": "dumb"})
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1), result.stderr
    assert "internal error" not in result.stderr
    return result.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a base and heads that take part in no error."""
    monkeypatch.chdir(tmp_path)
    base_gguf(tmp_path / "base.gguf")
    return tmp_path


@pytest.mark.parametrize("command", ["inspect", "generate", "heads", "train", "tune"])
def test_a_null_byte_is_in_no_name(folder: Path, command: str) -> None:
    """Programs that call these functions can give one."""
    assert "null byte" in error_of(*(word.replace("FILE", "a\0b.gguf") for word in COMMANDS[command]))


@pytest.mark.parametrize("command", [name for name in COMMANDS if "output" not in name and name != "convert"])
def test_a_pipe_is_refused_and_not_waited_for(folder: Path, command: str) -> None:
    os.mkfifo(folder / "pipe.gguf")
    holder = os.open(folder / "pipe.gguf", os.O_RDWR)  # or a failure would hang
    try:
        os.write(holder, b"GGUF")
        arguments = [argument.replace("FILE", "pipe.gguf") for argument in COMMANDS[command]]
        assert "not a regular file" in error_of(*arguments)
    finally:
        os.close(holder)


def test_a_transcript_is_no_pipe(folder: Path) -> None:
    os.mkfifo(folder / "chat.json")
    holder = os.open(folder / "chat.json", os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(MedusaError, match="not a regular file"):
            Conversation.load(folder / "chat.json")
    finally:
        os.close(holder)


@pytest.mark.parametrize("command", [name for name in COMMANDS if "convert" not in name])
def test_a_name_that_is_not_utf8_is_one_line(folder: Path, command: str) -> None:
    base_gguf(folder / "good.gguf").rename(folder / NOT_UTF8)
    arguments = [argument.replace("FILE", NOT_UTF8) for argument in COMMANDS[command]]
    assert "tiny?.gguf: its name is not UTF-8" in error_of(*arguments)


@pytest.mark.parametrize("command", ["list", "inspect", "rm"])
def test_no_home_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", unknown)
    for variable in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "MEDUSA_DEMO_MODEL"):
        monkeypatch.delenv(variable, raising=False)
    arguments = {"inspect": ["demo"], "rm": ["org/model"]}.get(command, [])
    assert "set HOME" in error_of(command, *arguments)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    assert paths.cache_dir() == folder / "medusa"


def test_the_home_of_nobody_is_one_line(folder: Path) -> None:
    assert "~no-such-person/heads" in error_of("convert", "~no-such-person/heads", "-o", "out.gguf")
