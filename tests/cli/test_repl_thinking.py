"""Thinking in the chat: shown apart, kept for the template, switched and limited by /set, continued."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forced_model as forced
import pytest
from chat_fakes import Script, Transcript, user
from command_line import invoke
from rich.console import Console

from medusa_cli.chat.repl import Repl
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import Engine, open_engine
from medusa_cli.decoding.settings import Settings

THOUGHT, REPLY = "So the user says hello", "Hello to you!"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    said, control = [forced.THINKING, forced.AFTER_A_LINE], ["<|user|>", "<|system|>", forced.ASSISTANT]
    return forced.write_forced_model(tmp_path_factory.mktemp("m") / "m.gguf", forced.SWITCHED, said, control)


@pytest.fixture(scope="module")
def engine(path: Path) -> Engine:
    return open_engine(str(path), EngineOptions(), DraftOptions(no_spec=True), Console(quiet=True))


def chat(engine: Engine, lines: Sequence[Any]) -> tuple[list[str], Repl]:
    screen = Transcript()
    repl = Repl(engine, Script(lines), screen, Settings(temperature=0.0))  # type: ignore[arg-type]
    assert repl.run() == 0
    return screen.lines, repl


def shown(lines: Sequence[str]) -> list[str]:
    """The answers, pieces of a thinking as one."""
    return [line.removeprefix("answer ").replace(")(", "") for line in lines if line.startswith("answer ")]


def answer(text: str, thinking: str) -> dict[str, str]:
    return {"role": "assistant", "content": text, "reasoning_content": thinking}


def test_it_is_shown_and_kept_apart(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    lines, repl = chat(engine, ["Hi", "/stats", f"/save {file}", "/clear", f"/load {file}"])
    assert shown(lines) == [f"({THOUGHT}){REPLY}"]
    assert repl.conversation.turns == [user("Hi"), answer(REPLY, THOUGHT)]
    assert json.loads(file.read_text(encoding="utf-8"))["messages"][1]["reasoning_content"] == THOUGHT
    stats = next(line for line in lines if "tokens per step" in line)
    assert "thinking        7 tokens" in stats
    assert "answer          4 tokens" in stats


def test_set(engine: Engine) -> None:
    lines, repl = chat(engine, ["/set thinking off", "Hi", "/set", "/set thinking on", "/set think 3", "Hi"])
    assert shown(lines) == [REPLY, f"(So the){REPLY}"]
    assert any("thinking        off" in line for line in lines)
    assert repl.conversation.turns[1] == {"role": "assistant", "content": REPLY}
    lines, _ = chat(engine, ["/set thinking maybe", "/set reasoning-effort huge", "/set reasoning-effort low"])
    assert lines[0] == "error thinking takes on, off, not 'maybe'"
    assert lines[1] == "error reasoning-effort takes low, medium, high, not 'huge'"
    assert lines[2] == "note reasoning-effort is low."


def test_an_answer_that_was_cut_short_goes_on(engine: Engine) -> None:
    for limit in (2, 4, 6, 8):
        asked = [f"/set max-tokens {limit}", "Hi", "/set max-tokens -1", "/continue"]
        lines, repl = chat(engine, asked)
        assert "".join(shown(lines)).replace(")(", "") == f"({THOUGHT}){REPLY}"
        assert repl.conversation.turns == [user("Hi"), answer(REPLY, THOUGHT)]
    lines, repl = chat(engine, ["/set max-tokens 4", "/set think 3", "Hi", "/set max-tokens -1", "/continue"])
    assert repl.conversation.turns == [user("Hi"), answer(REPLY, "So the")]


def test_ctrl_c_within_a_thinking_keeps_what_came(engine: Engine) -> None:
    class Impatient(Transcript):
        left = 3

        def piece(self, text: str, drafted: bool, thinking: str) -> None:
            super().piece(text, drafted, thinking)
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt

    screen = Impatient()
    repl = Repl(engine, Script(["Hi", "/continue"]), screen, Settings(temperature=0.0))  # type: ignore[arg-type]
    assert repl.submit("Hi")
    assert repl.conversation.turns == [user("Hi"), answer("", "So the")]
    assert not repl.submit("/continue")
    assert repl.conversation.turns == [user("Hi"), answer(REPLY, THOUGHT)]


def test_regeneration(engine: Engine) -> None:
    lines, repl = chat(engine, ["Hi", "/set thinking off", "/regen"])
    assert shown(lines) == [f"({THOUGHT}){REPLY}", REPLY]
    assert repl.conversation.turns == [user("Hi"), {"role": "assistant", "content": REPLY}]


def test_generate_prints_the_answer_alone_where_a_program_reads_it(path: Path) -> None:
    assert invoke("generate", str(path), "-p", "Hi")[:2] == (0, REPLY + "\n")
    code, out, _ = invoke("generate", str(path), "-p", "Hi", "--json")
    found = json.loads(out)
    assert (code, found["text"], found["thinking"]) == (0, REPLY, THOUGHT)
    assert {name: part["tokens"] for name, part in found["parts"].items()} == {"thinking": 7, "answer": 4}
    assert json.loads(invoke("generate", str(path), "-p", "Hi", "--json", "--no-thinking")[1])["thinking"] is None
    assert json.loads(invoke("generate", str(path), "-p", "Hi", "--json", "--think", "3")[1])["thinking"] == "So the"


def test_options_that_contradict_each_other(path: Path) -> None:
    code, _, err = invoke("generate", str(path), "-p", "Hi", "--no-thinking", "--think", "5")
    assert code == 2
    assert "the thinking is off" in err
    code, _, err = invoke("generate", str(path), "-p", "Hi", "--raw", "--no-thinking")
    assert code == 2
    assert "thinking needs the chat template" in " ".join(err.split())


def test_at_a_terminal_the_thinking_stands_before_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from medusa_cli.support import console, shown, wrapping

    for styled in (True, False):
        monkeypatch.setattr(console, "styled", lambda stream, styled=styled: styled)
        monkeypatch.setattr(shown.sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(wrapping, "columns", lambda stream: 0)
        made = shown.ShownAnswer(empty_line=True)
        for piece in (("", "Why"), ("", "?"), ("Be", ""), ("cause", "")):
            made.piece(*piece)
        made.end()
        out = capsys.readouterr().out
        assert out.replace(shown.DIM, "").replace(wrapping.RESET, "") == (
            "Thinking...\nWhy?\n...done thinking.\n\nBecause\n"
        )
        assert (shown.DIM in out) == styled
