"""`medusa chat` as a process: pipes, and a real (pseudo) terminal."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from cli_fakes import FakeModel, FakeSession, base_gguf, install
from typer.testing import CliRunner

from medusa_cli import cli

pytest.importorskip("pty")
from terminal import Terminal  # POSIX alone

CTRL_C, CTRL_D = "\x03", "\x04"
STATS = "[ Prompt 1000.0 t/s | Generation 100.0 t/s | tokens/step 1.50 ]"


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(base_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    return install(monkeypatch)


def chat(*arguments: str, stdin: str | bytes) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `medusa chat` with piped input."""
    result = CliRunner().invoke(cli.app, ["chat", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_piped_lines_are_turns_and_only_answers_are_on_stdout(model: str, session: type[FakeSession]) -> None:
    session.answers = ["Hello.", "Two\nlines\n", ""]
    code, out, err = chat(model, "-sys", "S", stdin='Hi\n\n"""a\nb"""\r\nlast')
    assert (code, out, err) == (0, "Hello.\nTwo\nlines\n\n", "")
    assert session.calls[1].text == "<system>S\n<user>Hi\n<assistant>Hello.\n<user>a\nb\n<assistant>"
    assert session.calls[0].sampling.temperature == 0.7
    assert session.calls[0].accept.kind == "exact"


def test_bytes_that_are_not_utf8_are_replaced(model: str, session: type[FakeSession]) -> None:
    session.answers = ["ok"]
    code, out, _ = chat(model, stdin=b"caf\xe9\n")
    assert (code, out) == (0, "ok\n")
    assert "caf\ufffd" in session.calls[0].text


def test_an_error_ends_piped_input_with_1(model: str, session: type[FakeSession]) -> None:
    session.answers = ["never"]
    code, out, err = chat(model, "-c", "64", stdin="x" * 100 + "\nmore\n")
    assert (code, out) == (1, "")
    assert err.startswith("error: the message has 118 tokens, the context holds 64")


def test_a_model_without_a_template_is_refused_before_the_first_line(
    model: str, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "chat_template", None)
    code, _, err = chat(model, stdin="")
    assert code == 1
    assert "medusa generate --raw" in err


def fake_chat(model: str, tmp_path: Path, answers: list[str], *arguments: str, **environment: str) -> Terminal:
    code = f"import cli_fakes; cli_fakes.run_cli({['chat', model, *arguments]!r}, {answers!r}, 0.03)"
    return Terminal([sys.executable, "-c", code], tmp_path, 0, **environment)


def test_a_first_chat(model: str, tmp_path: Path) -> None:
    with fake_chat(model, tmp_path, ["Hello there.", "Fine."]) as terminal:
        terminal.wait_for("tiny.gguf")
        terminal.wait_for("context 2048")
        terminal.wait_for("/help lists the commands")
        terminal.wait_for("Send a message")
        terminal.type("Hi\r")
        terminal.wait_for("Hello there.")
        terminal.wait_for(STATS)
        terminal.type("/system\r")
        terminal.wait_for("there is no system prompt")
        terminal.type("Bye\r")
        terminal.wait_for("Fine.")
        terminal.wait_for(STATS)
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
    history = tmp_path / "state" / "medusa" / "history"
    assert "+Hi" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_ctrl_c_stops_the_answer_then_leaves_with_130(model: str, tmp_path: Path) -> None:
    with fake_chat(model, tmp_path, ["word " * 200]) as terminal:
        terminal.wait_for("Send a message")
        terminal.type("Go\r")
        terminal.wait_for("word word")
        terminal.type(CTRL_C)
        terminal.wait_for(STATS)
        terminal.wait_for("> ")
        terminal.type("half a line")
        terminal.wait_for("half a line")
        terminal.type(CTRL_C)
        terminal.wait_for("Send a message")
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 130
        assert terminal.shown.count("word") < 150


def test_a_multi_line_paste_is_one_message(model: str, tmp_path: Path) -> None:
    with fake_chat(model, tmp_path, ["One.", "Two."]) as terminal:
        terminal.wait_for("Send a message")
        terminal.type("\x1b[200~first\nsecond\x1b[201~\r")
        terminal.wait_for("One.")
        terminal.wait_for("> ")
        terminal.type(f"/save {tmp_path}/chat.json\r")
        terminal.wait_for("Saved 2 turns")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
    assert r"first\nsecond" in (tmp_path / "chat.json").read_text()


def test_drafted_tokens_are_coloured_unless_no_color(model: str, tmp_path: Path) -> None:
    with fake_chat(model, tmp_path, ["abc"], "--color-drafts") as terminal:
        terminal.wait_for("Send a message")
        terminal.type("Hi\r")
        terminal.wait_for(STATS)
        assert "a\x1b[36mb\x1b[0m\x1b[36mc\x1b[0m" in terminal.raw
    with fake_chat(model, tmp_path, ["abc"], "--color-drafts", NO_COLOR="1") as terminal:
        terminal.wait_for("Send a message")
        terminal.type("Hi\r")
        terminal.wait_for(STATS)
        assert "abc" in terminal.raw
        assert not re.search(r"\x1b\[(?:[1-9]|[0-9;]*3[0-9])[0-9;]*m", terminal.raw)


def test_a_model_cannot_send_escape_sequences(model: str, tmp_path: Path) -> None:
    with fake_chat(model, tmp_path, ["\x1b]0;title\x07x"]) as terminal:
        terminal.wait_for("Send a message")
        terminal.type("Hi\r")
        terminal.wait_for(STATS)
        assert "\x1b]0" not in terminal.raw


def test_a_dumb_terminal_gets_plain_lines(model: str, tmp_path: Path) -> None:
    with fake_chat(model, tmp_path, ["Hello."], TERM="dumb") as terminal:
        terminal.wait_for("> ")
        terminal.type("Hi\n")
        terminal.wait_for("Hello.")
        terminal.wait_for(STATS)
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 130
        assert "\x1b" not in terminal.raw
