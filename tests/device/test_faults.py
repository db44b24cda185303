"""A device that fails in the middle of an answer, through the command line: one line, and the text so far is kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import device_cli
import pytest
import random_heads
from fixtures import tiny_base

pytest.importorskip("pty")
from terminal import Terminal  # POSIX alone

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
ANSWER = ("-n", "40", "--ignore-eos", "-t", "1", "--temp", "0", "--no-lookup")
FAILED, LOST = {"failing_graph": 20}, {"failing_graph": 20, "lost": True}
FAULTS = pytest.mark.parametrize("fault", [FAILED, LOST], ids=["graph", "lost"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf", chat_template=TEMPLATE))


@pytest.fixture(params=["plain", "medusa", "hydra++"])
def arguments(request: pytest.FixtureRequest, base: str, tmp_path: Path) -> tuple[str, ...]:
    """Of a command that decodes plainly or with heads."""
    if request.param == "plain":
        return (base, *ANSWER)
    heads = random_heads.random_heads(request.param)
    return (base, *ANSWER, "--heads", str(random_heads.write(tmp_path / "heads.gguf", heads, base=base)))


def one_line(err: str) -> None:
    assert re.fullmatch(r"error: [^\n]+\n", err)
    assert "internal error" not in err


@pytest.mark.slow
@FAULTS
def test_generate_keeps_the_text(arguments: tuple[str, ...], fault: dict[str, Any]) -> None:
    _, whole, _ = device_cli.run({}, "generate", *arguments, "-p", "abc")
    code, out, err = device_cli.run(fault, "generate", *arguments, "-p", "abc")
    assert code == 1
    one_line(err)
    assert 0 < len(out) < len(whole)
    assert whole.startswith(out.removesuffix("\n"))


@FAULTS
def test_generate_keeps_the_json(arguments: tuple[str, ...], fault: dict[str, Any]) -> None:
    code, out, err = device_cli.run(fault, "generate", *arguments, "-p", "abc", "--json")
    assert code == 1
    one_line(err)
    found = json.loads(out)
    assert (found["stop_reason"], found["generated_tokens"] > 0) == ("cancelled", True)


@FAULTS
def test_a_piped_chat_ends(arguments: tuple[str, ...], fault: dict[str, Any]) -> None:
    code, out, err = device_cli.run(fault, "chat", *arguments, stdin="abc\nabd\n")
    assert (code, len(out) > 1, out[-1]) == (1, True, "\n")
    one_line(err)


def chat(arguments: tuple[str, ...], fault: dict[str, Any], tmp_path: Path) -> Terminal:
    return Terminal(device_cli.command_line(fault, "chat", *arguments), tmp_path, MEDUSA_ISA="off", NO_COLOR="1")


def test_a_chat_goes_on_after_a_graph_that_failed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with chat(arguments, FAILED, tmp_path) as terminal:
        terminal.wait_for("Send a message")
        terminal.type("abc\r")
        terminal.wait_for("error: ")
        terminal.wait_for("> ")
        terminal.type("abd\r")
        terminal.wait_for("tokens/step")
        terminal.wait_for("> ")
        terminal.type(f"/save {tmp_path}/chat.json\r")
        terminal.wait_for("Saved 4 turns")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
        assert terminal.shown.count("error: ") == 1
    turns = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    assert all(turn["content"] for turn in turns)


def test_a_chat_whose_device_is_lost_says_so_and_can_be_left(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with chat(arguments, LOST, tmp_path) as terminal:
        terminal.wait_for("Send a message")
        terminal.type("abc\r")
        terminal.wait_for("the pretended device is lost")
        terminal.wait_for("> ")
        terminal.type("abd\r")
        terminal.wait_for("error: ")
        terminal.wait_for("> ")
        terminal.type(f"/save {tmp_path}/chat.json\r")
        terminal.wait_for("Saved 2 turns")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
