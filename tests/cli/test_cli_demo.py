"""The commands with the real demo model: text, reuse across turns, heads, stops. No fakes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads.draft_heads import Block, DraftHeads, write_heads
from rich.console import Console
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.chat.repl import Repl
from medusa_cli.decoding import runtime
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.settings import Settings
from medusa_cli.decoding.trees import DynamicStart
from medusa_cli.models import demo
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.reading import ReadingLine

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def demo_model(demo_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))


@pytest.fixture(scope="module")
def heads(demo_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained heads: each drafts what the base would say next once more, which is sometimes right."""
    metadata = native.read_gguf(str(demo_model_path)).metadata
    width = metadata["llama.embedding_length"]
    block = Block(np.zeros((width, width), np.float16), np.zeros(width, np.float32))
    path = tmp_path_factory.mktemp("heads") / "heads.gguf"
    name = metadata["general.name"]
    made_for = {"base_name": name, "base_fingerprint": fingerprint(metadata)}
    write_heads(path, DraftHeads([[block], [block]], "base", **made_for, tree=[[0], [1], [0, 0]]))
    return path


def generate(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli.app, ["generate", "demo", "--json", *arguments])
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_same_seed_gives_the_same_text(heads: Path) -> None:
    arguments = ("-p", "Name three rivers.", "-n", "12", "--temp", "1")
    texts = {generate(*arguments, "-s", "3", "--no-spec")["text"] for _ in range(2)}
    assert len(texts) == 1
    assert generate(*arguments, "-s", "4", "--no-spec")["text"] not in texts


def test_heads_draft_and_the_counters_show_it(heads: Path) -> None:
    found = generate(
        "--raw", "-p", "sea " * 20, "-n", "16", "--heads", str(heads), "--repeat-steps", "--repeat-penalty", "1"
    )
    assert (found["tree_nodes"], found["accept"], len(found["acceptance_per_depth"])) == (4, "greedy", 2)
    assert found["tokens_per_step"] == pytest.approx(1 + sum(found["acceptance_per_depth"]))
    assert found["tokens_per_step"] > 1
    assert found["generated_tokens"] == len(found["tokens"]) <= 16


@pytest.mark.skipif(not native.kernel_info()["selected"], reason="without our kernels a text may depend on the drafts")
@pytest.mark.parametrize("temperature", ["0", "0.7"])
def test_a_seed_keeps_all_drafts_and_the_text(temperature: str) -> None:
    arguments = ("-p", "Name three rivers.", "-n", "40", "--temp", temperature, "-s", "5")
    plain, fixed, free = (generate(*arguments, *more) for more in (["--no-spec"], ["--repeat-steps"], []))
    assert free["text"] == fixed["text"] == plain["text"]
    again = generate(*arguments, "--repeat-steps")
    assert (again["steps"], again["tree_nodes"]) == (fixed["steps"], fixed["tree_nodes"])
    engine = runtime.open_engine("demo", EngineOptions(), DraftOptions(), Console(quiet=True), seeded=True)
    assert isinstance(engine.plan.tree, DynamicStart)


def test_the_poem_ends() -> None:
    ends = [
        generate("-p", "Write a short poem about the sea.", "--temp", "0.7", "-n", "512", "-s", str(seed))
        for seed in range(3)
    ]
    assert {found["stop_reason"] for found in ends} == {"eos"}


def test_stops_are_named(heads: Path) -> None:
    assert generate("--no-spec", "-p", "Hi", "-n", "3")["stop_reason"] == "length"
    assert generate("--no-spec", "-p", "sea " * 210, "--ignore-eos", "-c", "256")["stop_reason"] == "context_full"
    found = generate("--no-spec", "--raw", "-p", "1, 2, 3,", "-n", "30", "--stop", "6")
    assert found["stop_reason"] == "stop"
    assert "6" not in found["text"]


def test_a_chat_reuses_what_it_has_decoded() -> None:
    lines = "My name is Bob.\nWhat is my name?\n/stats\n"
    result = CliRunner().invoke(cli.app, ["chat", "--no-spec", "-n", "6", "--temp", "0"], input=lines)
    assert result.exit_code == 0
    assert result.stdout.endswith("\n")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("prompt ")]
    total, cached = (int(word) for word in line.replace(",", "").split() if word.isdigit())
    assert 30 < cached < total


def test_a_prompt_longer_than_the_context_is_one_line() -> None:
    result = CliRunner().invoke(cli.app, ["generate", "demo", "--no-spec", "-c", "64", "-p", "sea " * 100])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "the context holds 64" in result.stderr
    assert result.stderr.count("\n") == 1


def test_heads_of_another_base_are_refused(tmp_path: Path) -> None:
    block = Block(np.zeros((64, 64), np.float16), np.zeros(64, np.float32))
    path = tmp_path / "other.gguf"
    write_heads(path, DraftHeads([[block]], "base", base_name="other", base_fingerprint="llama-1x64-10-000000000000"))
    result = CliRunner().invoke(cli.app, ["generate", "demo", "-p", "Hi", "--heads", str(path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert str(path) in result.stderr
    assert result.stderr.count("\n") == 1


class Silent:
    """A screen that keeps nothing but the remarks."""

    def __init__(self) -> None:
        self.reading = ReadingLine(wanted=False)
        self.notes: list[str] = []

    def piece(self, text: str, drafted: bool, thinking: str) -> None: ...
    def end_answer(self, stats: str | None) -> None: ...
    def show(self, text: str) -> None: ...
    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None: ...
    def note(self, text: str) -> None:
        self.notes.append(text)

    def error(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.skipif(not native.kernel_info()["selected"], reason="without our kernels a text may depend on the batch")
def test_the_text_of_a_shortened_conversation_is_that_of_a_new_one() -> None:
    """Turns that leave, an answer that fills the context and goes on: each prompt is read from nothing once more."""
    options, draft, quiet = EngineOptions(ctx_size=512), DraftOptions(), Console(quiet=True)
    engine = runtime.open_engine("demo", options, draft, quiet)
    fresh = runtime.open_engine("demo", options, DraftOptions(no_spec=True), quiet)
    asked: list[tuple[list[int], list[int]]] = []
    generate_tokens = engine.generate

    def generate(prompt: Sequence[int], settings: Settings, seed: int, on_step: Any, **more: Any) -> native.Generation:
        found = generate_tokens(prompt, settings, seed, on_step, **more)
        asked.append((list(prompt), list(found.tokens)))
        return found

    engine.generate = generate  # type: ignore[method-assign, assignment]
    screen = Silent()
    repl = Repl(engine, None, screen, Settings(temperature=0.0, max_tokens=60), "Answer in short.")  # type: ignore[arg-type]
    for entry in (
        "Name three rivers.",
        "And three lakes?",
        "Which is the deepest?",
        "/continue",
        "Why?",
        "Are you sure?",
    ):
        with contextlib.suppress(MedusaError):  # of an answer that is complete
            repl.submit(entry)
    repl.settings = dataclasses.replace(repl.settings, max_tokens=-1, ignore_eos=True)
    repl.submit("Tell me a story.")
    repl.settings = dataclasses.replace(repl.settings, max_tokens=30)
    for entry in ("/continue", "And then?", "What is it about?", "Why is that?", "Who says so?"):
        repl.submit(entry)
    assert sum("no longer sees" in note for note in screen.notes) >= 2
    assert repl.conversation.left_out > 0
    for prompt, tokens in asked:
        fresh.session.reset()
        settings = Settings(temperature=0.0, max_tokens=len(tokens), ignore_eos=True)
        again = fresh.generate(prompt, settings, 0, None)
        assert list(again.tokens) == tokens


class Interrupting(ReadingLine):
    """Ctrl-C in the middle of a prompt, 50 ms after so many tokens were read; once."""

    def __init__(self, tokens: int) -> None:
        super().__init__(wanted=False)
        self._tokens = tokens
        self.at = 0.0

    def _interrupt(self) -> None:
        self.at = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def __call__(self, done: int, total: int) -> None:
        if done >= self._tokens:
            self._tokens = total + 1
            threading.Timer(0.05, self._interrupt).start()


def test_ctrl_c_within_a_prompt_keeps_what_was_read(tmp_path: Path) -> None:
    file = tmp_path / "story.txt"
    file.write_text("The sea is wide. " * 350)
    engine = runtime.open_engine("demo", EngineOptions(), DraftOptions(), Console(quiet=True))
    screen = Silent()
    screen.reading = reading = Interrupting(tokens=512)
    repl = Repl(engine, None, screen, Settings(temperature=0.0, max_tokens=4))  # type: ignore[arg-type]
    repl.submit(f"/read {file}")
    assert repl.submit("What is it about?")
    # It takes a few hundredths of a second; a busy machine may be elsewhere for a while. libllama asks within a pass on
    # the CPU alone: on a device (here a pretended one, as slow as a CPU) the piece under way is read to its end.
    assert time.monotonic() - reading.at < (10 if engine.model.gpu else 1)
    assert repl.conversation.turns == []
    assert not repl.submit("What is it about?")
    assert repl.generation is not None
    assert 512 <= repl.generation.reused_tokens < repl.generation.prompt_tokens
    assert [turn["role"] for turn in repl.conversation.turns] == ["user", "assistant"]
