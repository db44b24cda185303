"""Whatever happens to a conversation, its answers are those of a model that reads it from its start."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from architectures import ARCHITECTURES, TOKENS
from random_models import write_random_model
from rich.console import Console

from medusa_cli import native
from medusa_cli.chat.prompt_caches import PromptCaches
from medusa_cli.chat.repl import Repl
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.decoding.prompts import Message
from medusa_cli.decoding.runtime import Engine, open_engine
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.reading import ReadingLine

SCRIPTS = 10
ROLES = {"system": 1, "user": 2, "assistant": 3}
CONTEXT = 512

pytestmark = pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="llama.cpp's kernels round by width")


@dataclasses.dataclass
class Checked(Engine):
    """Compares each answer with that of a session which has read nothing yet."""

    thinks: bool = False
    """The template leaves the beginning of earlier answers out, as it does with thinking."""
    interrupt_at: int = 0
    """An answer ends with Ctrl-C after so many steps; 0: none does."""
    answers: int = 0
    reused: int = 0

    def chat_tokens(self, messages: Sequence[Message], **_: Any) -> list[int]:
        tokens = []
        for message in messages:
            content = str(message["content"])
            begins = 5 if self.thinks and message["role"] == "assistant" else 0
            tokens += [ROLES[message["role"]], *(5 + ord(letter) % (TOKENS - 5) for letter in content[begins:])]
        return [*tokens, ROLES["assistant"]]

    def generate(self, prompt: Any, settings: Any, seed: int, on_step: Any, *more: Any, **named: Any) -> Any:
        steps = 0

        def counted(pieces: list[Any]) -> None:
            nonlocal steps
            steps += 1
            on_step(pieces)
            if steps == self.interrupt_at:
                raise KeyboardInterrupt

        try:
            answer = super().generate(prompt, settings, seed, counted, *more, **named)
        finally:
            cut = self.session.last
            assert cut is not None
            plain = native.Session(self.model, n_ctx=CONTEXT)
            fresh = plain.generate(
                prompt, max_tokens=settings.max_tokens, sampling=settings.sampling(seed), accept=settings.rule(),
                ignore_eos=settings.ignore_eos,
            )  # fmt: skip
            assert cut.tokens == fresh.tokens[: len(cut.tokens)]
            self.answers += 1
            self.reused += cut.reused_tokens
        assert answer.tokens == fresh.tokens
        return answer


class Quiet:
    """A screen that shows nothing, and a reader of nothing."""

    interactive = True
    reading = ReadingLine(wanted=False)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def one_script(open_checked: Callable[[], Checked], draw: random.Random, folder: Path) -> Checked:
    """Messages, regenerations, edits, interruptions, restarts, saved and loaded conversations, in any order."""
    settings = Settings(temperature=draw.choice([0.0, 1.0]), seed=draw.randrange(100), max_tokens=24, ignore_eos=True)
    engine = open_checked()
    repl = Repl(engine, Quiet(), Quiet(), settings, "system " * draw.randrange(8))  # type: ignore[arg-type]
    repl.caches = PromptCaches(engine)
    file = folder / f"{draw.random()}.json"

    def say(text: str = "") -> None:
        engine.interrupt_at = draw.choice([0, 0, 1, 3])
        letters = draw.choices("abcdefghij \n", k=draw.choice([3, 30, 90]))
        repl.submit(text or "".join(letters) + ".", verbatim=not text)

    say()
    for _ in range(8):
        do = draw.choice(["say", "say", "say", "/regen", "/continue", "restart", "edit", "save", "load"])
        try:
            if do == "say":
                say()
            elif do in ("/regen", "/continue"):
                say(do)
            elif do == "restart":
                repl.caches.kept()
                answers, reused, thinks = engine.answers, engine.reused, engine.thinks
                engine = open_checked()
                engine.answers, engine.reused, engine.thinks = answers, reused, thinks
                repl.engine, repl.caches = engine, PromptCaches(engine)
                repl.caches.brought_back(repl.conversation)
            elif do == "edit" and len(repl.conversation.turns) > 2:
                del repl.conversation.turns[2 * draw.randrange(len(repl.conversation.turns) // 2) :]
                repl.conversation.left_out, repl.conversation.begun = 0, None
                say()
            elif do == "save" or (do == "load" and file.exists()):
                repl.submit(f"/{do} {file}")
        except MedusaError:
            continue  # nothing to answer again, or to continue
    return engine


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")

    def path_of(name: str) -> Path:
        path, full = folder / f"{name}.gguf", folder / f"{name}.f32.gguf"
        if not path.exists():
            write_random_model(full, ARCHITECTURES[name], seed=1)
            native.quantize_model(str(full), str(path), file_type=15)  # Q4_K_M
        return path

    return path_of


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("thinks", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss", "qwen35", "mamba2"])
def test_answers_are_those_of_a_fresh_model(
    name: str,
    thinks: bool,
    drafts: bool,
    model_file: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Made-up models: dense, with a sliding window, hybrid, recurrent."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = EngineOptions(ctx_size=CONTEXT), DraftOptions(no_spec=not drafts)
    opened = open_engine(str(model_file(name)), *options, Console(quiet=True))

    def open_checked() -> Checked:
        fields = {field.name: getattr(opened.another(), field.name) for field in dataclasses.fields(Engine)}
        return Checked(**fields, thinks=thinks)

    answers = reused = 0
    for script in range(SCRIPTS):
        engine = one_script(open_checked, random.Random(script), tmp_path)
        answers, reused = answers + engine.answers, reused + engine.reused
    assert answers > 3 * SCRIPTS
    assert reused > 20 * answers, "little is read again"
