"""How far the reading of a prompt is: the line's words, and the line on a (pseudo) terminal."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_fakes import base_gguf

from medusa_cli.support import reading
from medusa_cli.support.reading import ReadingLine, described

pytest.importorskip("pty")
from terminal import Terminal  # POSIX alone

CTRL_C, CTRL_D = "\x03", "\x04"
AWAY = "\r\x1b[K"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(base_gguf(tmp_path / "tiny.gguf"))


# --- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reads", "total", "text"),
    [
        ([(0, 0.0)], 16000, "0 of 16,000 tokens"),
        ([(0, 0.0), (512, 2.0)], 1536, "512 of 1,536 tokens, 256 tokens/s, 4 s left"),
        ([(0, 0.0), (512, 100.0)], 1024, "512 of 1,024 tokens, 5.1 tokens/s, 2 min left"),
        ([(0, 0.0), (512, 512.0)], 100_000, "512 of 100,000 tokens, 1.0 tokens/s, 27.6 h left"),
        # A token takes 1 ms and a thousandth of that more for each before it: 1.05 s for 512, 3.07 s for 2,048 ...
        ([(n, n / 1e3 + n * n / 1e6) for n in (0, 512, 1024)], 4096, "1,024 of 4,096 tokens, 494 tokens/s, 19 s left"),
        # The first piece was the slow one.
        ([(0, 0.0), (512, 4.0), (1024, 5.0)], 2048, "1,024 of 2,048 tokens, 205 tokens/s, 5 s left"),
    ],
)
def test_words(reads: list[tuple[int, float]], total: int, text: str) -> None:
    assert described(reads, total) == text


class Screen:
    """A terminal that keeps what is written to it."""

    def __init__(self, is_terminal: bool = True) -> None:
        self.is_terminal = is_terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.is_terminal

    def fileno(self) -> int:
        raise OSError

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None: ...


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(reading, "sys", SimpleNamespace(stderr=found))  # pytest has a stderr for each phase of a test
    return found


def wait_for(screen: Screen, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in screen.text:
        assert time.monotonic() < deadline, screen.text
        time.sleep(0.005)


def test_the_line_comes_also_between_two_calls(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.05)
    line = ReadingLine()
    line(0, 1000)
    assert screen.text == ""
    wait_for(screen, f"{AWAY}reading the prompt: 0 of 1,000 tokens")
    line(512, 1000)
    assert f"{AWAY}reading the prompt: 512 of 1,000 tokens, " in screen.text
    line.end()
    assert screen.text.endswith(f" left{AWAY}")


def test_what_is_read_soon_says_nothing(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.05)
    line = ReadingLine()
    for _ in range(3):
        line(0, 1000)
        line(512, 1000)
        line.end()
        line.end()
    time.sleep(0.15)
    assert screen.text == ""
    line(0, 7)  # the next prompt begins anew
    wait_for(screen, "0 of 7 tokens")
    line.end()


@pytest.mark.parametrize("why", ["not wanted", "a pipe", "a dumb terminal"])
def test_nothing_is_written_where_nobody_reads_it(screen: Screen, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.0)
    screen.is_terminal = why != "a pipe"
    monkeypatch.setenv("TERM", "dumb" if why == "a dumb terminal" else "xterm")
    line = ReadingLine(wanted=why != "not wanted")
    line(0, 1000)
    time.sleep(0.05)
    line(512, 1000)
    line.end()
    assert screen.text == ""


# --- on a terminal ---------------------------------------------------------------------------------


def run(tmp_path: Path, arguments: list[str], answers: list[str], *, columns: int = 0, **environment: str) -> Terminal:
    """Each prompt is read in five pieces, of 0.1 s each."""
    code = f"import cli_fakes; cli_fakes.run_cli({arguments!r}, {answers!r}, 0.1, pieces=5)"
    return Terminal([sys.executable, "-c", code], tmp_path, columns, **environment)


def lines(terminal: Terminal) -> list[str]:
    """What the line said, one after the other."""
    found = re.findall(r"\r\x1b\[K(?:\x1b\[2m)?(reading [^\r\x1b]*)", terminal.raw)
    return [str(one) for one in found]


def test_generate_shows_the_line_until_the_first_token(model: str, tmp_path: Path) -> None:
    with run(tmp_path, ["generate", model, "-p", "Hi"], ["Hello there."]) as terminal:
        assert terminal.exit_code() == 0
        said = lines(terminal)
        before, after = terminal.raw.split("Hel", 1)
    assert re.match(r"reading the prompt: \d+ of 2,560 tokens", said[0])
    assert re.fullmatch(r"reading the prompt: 2,048 of 2,560 tokens, [\d,]+ tokens/s, \d+ s left", said[-1])
    assert before.endswith(AWAY)
    assert "reading" not in after
    assert "\x1b[2mreading" in before


def test_the_line_is_no_wider_than_the_terminal(model: str, tmp_path: Path) -> None:
    for columns in (60, 20):
        with run(tmp_path, ["generate", model, "-p", "Hi"], ["Hello."], columns=columns, NO_COLOR="1") as terminal:
            assert terminal.exit_code() == 0
            said = lines(terminal)
            assert "\x1b[2m" not in terminal.raw.split("Hel")[0]
        assert max(map(len, said)) < columns
        assert said[-1].startswith("reading 2,048 of 2,")


def test_json_for_a_program_shows_no_line(model: str, tmp_path: Path) -> None:
    code = f"import cli_fakes; cli_fakes.run_cli({['generate', model, '-p', 'Hi', '--json']!r}, ['Hello.'], 0.1, 5)"
    with Terminal(["/bin/sh", "-c", f'"{sys.executable}" -c "{code}" > {tmp_path}/out'], tmp_path) as terminal:
        assert terminal.exit_code() == 0
        assert terminal.raw == ""
    assert "Hello." in (tmp_path / "out").read_text()


def test_ctrl_c_takes_the_line_and_the_message_away_and_the_chat_goes_on(model: str, tmp_path: Path) -> None:
    with run(tmp_path, ["chat", model], ["Hello there."]) as terminal:
        terminal.wait_for("Send a message")
        terminal.type("Hi\r")
        terminal.wait_for("reading the prompt: 1,024 of 2,560 tokens")
        begun = time.monotonic()
        terminal.type(CTRL_C)
        terminal.wait_for("> ")
        assert time.monotonic() - begun < 5
        after = terminal.raw[terminal.raw.rindex("reading the prompt") :]
        assert AWAY in after
        terminal.type("/context\r")
        terminal.wait_for("0 messages")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0


def test_a_chat_in_a_pipe_shows_no_line(model: str, tmp_path: Path) -> None:
    code = f"import cli_fakes; cli_fakes.run_cli({['chat', model]!r}, ['Hello.'], 0.1, 5)"
    with Terminal(["/bin/sh", "-c", f'echo Hi | "{sys.executable}" -c "{code}"'], tmp_path) as terminal:
        assert terminal.exit_code() == 0
        assert terminal.shown == "Hello.\n"
