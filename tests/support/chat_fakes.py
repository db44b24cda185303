"""A chat without terminal and model: what is typed, what is shown, what the engine is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from cli_fakes import FakeGeneration, FakePiece

from medusa_cli.chat.repl import Repl
from medusa_cli.decoding.prompts import Message
from medusa_cli.decoding.settings import Settings
from medusa_cli.decoding.thinking import Thinking
from medusa_cli.parts.splitter import Grammar


class Script:
    """A reader that types `lines`; an exception in the list is raised instead."""

    def __init__(self, lines: Sequence[str | type[BaseException]], interactive: bool = True) -> None:
        self._lines: Iterator[str | type[BaseException]] = iter(lines)
        self.interactive = interactive

    def read(self, continued: bool = False) -> str:
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


class Reading:
    """shown: how far a prompt is read, while that is on the screen."""

    def __init__(self) -> None:
        self.shown: tuple[int, int] | None = None
        self.told = 0

    def __call__(self, done: int, total: int) -> None:
        self.shown = done, total
        self.told += 1

    def end(self) -> None:
        self.shown = None


class Transcript:
    """A screen that writes down what it is told, drafted pieces in <>."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.lines: list[str] = []
        self._answer = ""

    def piece(self, text: str, drafted: bool, thinking: str) -> None:
        assert self.reading.shown is None
        self._answer += f"({thinking})" if thinking else ""
        self._answer += f"<{text}>" if drafted and text else text

    def end_answer(self, stats: str | None) -> None:
        assert self.reading.shown is None
        self.lines += [f"answer {self._answer}", f"stats {stats}"]
        self._answer = ""

    def note(self, text: str) -> None:
        self.lines.append(f"note {text}")

    def show(self, text: str) -> None:
        self.lines.append(f"show {text}")

    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        self.show("\n".join(f"{name:<17} {text}" for name, text in rows))

    def error(self, text: str) -> None:
        assert self.reading.shown is None
        self.lines.append(f"error {text}")


class Engine:
    """Answers from a list: texts, or exceptions raised after their text (`MedusaError("")` before any)."""

    name = "fake.gguf"
    n_ctx = 1000

    def __init__(self, answers: Sequence[str | BaseException], stop_reason: str = "eos") -> None:
        self.answers = list(answers)
        self.stop_reason = stop_reason
        self.asked: list[list[Message]] = []
        self.seeds: list[int] = []
        self.settings: list[Settings] = []
        self.last: Any = None
        self.wanted: list[Thinking] = []
        self.grammar = Grammar()
        self.model = SimpleNamespace(detokenize=lambda tokens, special=False: "")

    def raw_tokens(self, text: str) -> list[int]:
        return [0] * len(text)

    def chat_tokens(self, messages: Sequence[Message], *, thinking: Thinking) -> list[int]:
        self.wanted.append(thinking)
        self._messages = [dict(message) for message in messages]
        return [0] * sum(len(message["content"]) for message in messages)

    def generate(
        self,
        prompt: Sequence[int],
        settings: Settings,
        seed: int,
        on_step: Callable[[list[Any]], None],
        cancellation: Any,
        on_prompt: Any,
    ) -> Any:
        self.asked.append(self._messages)
        self.seeds.append(seed)
        self.settings.append(settings)
        answer = self.answers.pop(0)
        text = str(answer)
        on_prompt(0, len(prompt))
        if text:
            on_step([FakePiece(1, text[:2], False), FakePiece(2, text[2:], True)])
        reason = self.stop_reason if isinstance(answer, str) else "cancelled"
        self.last = FakeGeneration([1, 2], text, reason, len(prompt))
        if isinstance(answer, BaseException):
            raise answer
        return self.last


def chat(
    lines: Sequence[str | type[BaseException]],
    answers: Sequence[str | BaseException] = (),
    *,
    interactive: bool = True,
    engine: Engine | None = None,
    seed: int | None = 7,
    system: str | None = None,
) -> tuple[int, list[str], Engine, Repl]:
    """Runs a chat to its end: exit code, transcript, the engine as it was asked, the loop's last state."""
    screen = Transcript()
    reader, fake = Script(lines, interactive), engine or Engine(answers)
    repl = Repl(fake, reader, screen, Settings(temperature=0.7, seed=seed), system)  # type: ignore[arg-type]
    return repl.run(), screen.lines, fake, repl


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}
