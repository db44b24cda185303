"""Conversations under a name."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from chat_fakes import Engine, Script, Transcript, assistant, user
from terminal import Terminal

from medusa_cli.chat import sessions
from medusa_cli.chat.repl import Repl
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import MedusaError


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))


def chat(name: str, lines: list[str], answers: list[str], system: str | None = None) -> tuple[list[str], Engine]:
    screen, engine = Transcript(), Engine(answers)
    repl = Repl(engine, Script(lines), screen, Settings(seed=7), system)  # type: ignore[arg-type]
    with sessions.resumed(repl, name):
        repl.run()
    return screen.lines, engine


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "-x", "x" * 101, "a\nb", "a\0b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(MedusaError, match="cannot name a session"):
        sessions.path_of(name)


def test_a_conversation_goes_on_where_it_was_left() -> None:
    lines, _ = chat("my novel", ["Hi"], ["Hello"], "Be kind.")
    assert lines[0] == "note Session my novel is new."
    lines, engine = chat("my novel", ["And?"], ["So."])
    assert lines[0] == "note Session my novel: 2 messages."
    system = {"role": "system", "content": "Be kind."}
    assert engine.asked == [[system, user("Hi"), assistant("Hello"), user("And?")]]
    _, engine = chat("my novel", ["Again?"], ["No."], "Be brief.")
    assert engine.asked[0][0] == {"role": "system", "content": "Be brief."}
    assert len(engine.asked[0]) == 6
    assert sessions.names() == ["my novel"]
    assert sessions.path_of("my novel").stat().st_mode & 0o777 == 0o600


def test_it_is_written_after_each_answer() -> None:
    saved: list[int] = []

    class Reader(Script):
        def read(self, continued: bool = False) -> str:
            path = sessions.path_of("x")
            saved.append(len(json.loads(path.read_text())["messages"]) if path.exists() else 0)
            return super().read(continued)

    repl = Repl(Engine(["a", "b"]), Reader(["1", "2"]), Transcript(), Settings(seed=7))  # type: ignore[arg-type]
    with sessions.resumed(repl, "x"):
        repl.run()
    assert saved == [0, 2, 4]


def test_one_chat_at_a_time_has_it() -> None:
    repl = Repl(Engine([]), Script([]), Transcript(), Settings(seed=7))  # type: ignore[arg-type]
    with sessions.resumed(repl, "x"), pytest.raises(MedusaError, match="in use"):
        chat("x", [], [])


def test_a_damaged_one_is_told_and_stays() -> None:
    path = sessions.path_of("x")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    with pytest.raises(MedusaError, match="not a medusa transcript"):
        chat("x", ["Hi"], ["Hello"])
    assert path.read_text() == "{}"


@pytest.mark.model
def test_what_the_model_has_read_outlives_the_window(demo_model_path: Path, tmp_path: Path) -> None:
    """The window is closed in the middle; the next chat reads nothing again."""
    command = [sys.executable, "-m", "medusa_cli", "chat", "demo", "--session", "tale", "-s", "1", "-n", "40"]
    folders = {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("DATA", "CACHE")}
    environment = {**folders, "MEDUSA_DEMO_MODEL": str(demo_model_path)}
    with Terminal(command, tmp_path, 100, **environment) as terminal:
        terminal.wait_for("Session tale is new.")
        terminal.wait_for("Send a message")
        terminal.type("Tell me a long tale of a ship, a storm and a lighthouse keeper.\r")
        terminal.wait_for("tokens/s")
        terminal.wait_for("> ")
        terminal._process.send_signal(signal.SIGHUP)
        assert terminal.exit_code() == 128 + signal.SIGHUP
    with Terminal(command, tmp_path, 100, **environment) as terminal:
        terminal.wait_for("Session tale: 2 messages; ")
        terminal.wait_for(" tokens need not be read again.")
        cached, tokens = terminal.shown.split("2 messages; ")[1].split(" tokens need")[0].split(" of ")
        assert int(tokens) > 64
        assert int(tokens) - int(cached) < 12
        terminal.wait_for("Send a message")
        terminal.type("Now tell it again, with much more of the storm.\r")
        terminal.wait_for("storm.")
        time.sleep(0.5)
        os.close(terminal._fd)  # the window is closed while an answer is written, or was just written
        terminal._process.wait(timeout=60)
        terminal._fd = os.open(os.devnull, os.O_RDONLY)
    file = tmp_path / "data" / "medusa" / "sessions" / "tale.json"
    messages = json.loads(file.read_text("utf-8"))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2
    assert messages[3]["content"]
