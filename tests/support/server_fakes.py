"""A model that is none, for tests of the server: its tokens are characters, its answers are scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from medusa_cli.api.answer import Answer, Piece, TokenChance
from medusa_cli.api.arguments import in_python_names, schemas_of
from medusa_cli.api.job import OnPieces
from medusa_cli.decoding.shortening import Room, Shortener
from medusa_cli.decoding.thinking import NOTHING_SAID, Thinking
from medusa_cli.parts.records import Parts
from medusa_cli.parts.splitter import PLAIN, Grammar, Splitter
from medusa_cli.server.asks import Options
from medusa_cli.support.errors import MedusaError

TEMPLATE = "<tool_call> {{ tools }} {{ messages }}"
STEP = 3
"""Characters of a step, all but the first of them drafted."""


def echo(prompt: str, options: Options) -> str:
    """The default script: says what it was asked."""
    return f"You said: {prompt}"


class FakeSession:
    def __init__(self, model: FakeModel) -> None:
        self.model = model
        self.cached_tokens: list[int] = []
        self.closed = False
        self.grown = 0
        """Bytes that its cache has more than a new one."""

    @property
    def nbytes(self) -> int:
        return self.model.session_bytes + self.grown

    def close(self) -> None:
        self.closed = True

    def forget(self) -> None:
        self.cached_tokens, self.grown = [], 0

    def keep_in(self, store: Any, owner: str, used: float) -> None:
        store.append((owner, list(self.cached_tokens)))

    def bring_from(self, store: Any, prompt: Any, owner: str, beyond: int) -> str:
        for whose, tokens in store:
            if whose == owner and list(prompt[: len(tokens)]) == tokens and len(tokens) > beyond:
                self.cached_tokens = list(tokens)
        return ""

    def copy_from(self, other: FakeSession) -> None:
        assert not other.closed
        self.cached_tokens, self.grown = list(other.cached_tokens), other.grown

    def job_of_tokens(
        self, tokens: Any, tools: Any, raw: bool, options: Any, one_call: bool = False, choice: str | None = None
    ) -> FakeJob:
        self.model.one_call.append(one_call)
        self.model.choices.append(choice)
        assert not self.closed
        return FakeJob(self, list(tokens), dict(options), tools, raw)


@dataclass(eq=False)
class FakeModel(FakeSession):
    """script: prompt and options -> answer. delay: seconds of each step. gate: steps wait while it is not set.

    readings: what is told of each prompt, by steps, before the answer.
    """

    script: Callable[[str, Options], str] = echo
    delay: float = 0.0
    name: str = "fake"
    n_ctx: int = 4096
    n_vocab: int = 0x110000
    chat_template: str | None = TEMPLATE
    session_bytes: int = 100
    sampling_defaults: dict[str, float] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    sessions: list[FakeSession] = field(default_factory=list)
    asked: list[tuple[str, Options]] = field(default_factory=list)
    tools: list[Any] = field(default_factory=list)
    wanted: list[Thinking] = field(default_factory=list)
    one_call: list[bool] = field(default_factory=list)
    choices: list[str | None] = field(default_factory=list)
    steps: int = 0
    readings: Sequence[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        super().__init__(self)
        self.gate.set()
        self.sessions.append(self)

    def tokens(
        self, prompt: Any, *, tools: Any = None, raw: bool = False, thinking: Thinking = NOTHING_SAID
    ) -> list[int]:
        self.tools.append(tools)
        self.wanted.append(thinking)
        if raw:
            if not prompt:
                raise MedusaError("the prompt is empty: give some text")
            return [ord(one) for one in prompt]
        return [ord(one) for one in "".join(f"<{message['role']}>{message['content']}" for message in prompt)]

    def shortened(
        self, messages: Any, *, tools: Any, most: int, longest: int, thinking: Thinking
    ) -> tuple[list[int], int]:
        found = Shortener(messages, Room(self.n_ctx, most), lambda some: self.tokens(some, tools=tools), len, longest)
        with in_python_names():
            return found.tokens()

    def token_bytes(self, token: int) -> bytes:
        return chr(token).encode("utf-8", "replace")

    def session(self) -> FakeSession:
        self.sessions.append(FakeSession(self))
        return self.sessions[-1]


@dataclass(eq=False)
class FakeJob:
    session: FakeSession
    prompt: list[int]
    options: Options
    tools: Any = None
    raw: bool = True
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True

    def run(self, on_pieces: OnPieces | None = None, on_prompt: Callable[[int, int], None] | None = None) -> Answer:
        model, prompt = self.session.model, "".join(map(chr, self.prompt))
        model.asked.append((prompt, self.options))
        text = model.script(prompt, self.options)
        text, reason = _stopped(text, self.options)
        done: list[Piece] = []
        grammar = PLAIN if self.raw else Grammar.of(model.chat_template, lambda text: list(map(ord, text)))
        self.splitter = Splitter(grammar, prompt[-50:], (), None if self.raw else schemas_of(self.tools or ()))
        for reading in model.readings:
            if on_prompt is not None:
                on_prompt(*reading)
            time.sleep(model.delay)
        for at in range(0, len(text), STEP):
            while not model.gate.wait(0.01) and not self.cancelled:
                pass
            if self.cancelled:
                reason = "cancelled"
                break
            time.sleep(model.delay)
            model.steps += 1
            pieces = [self._piece(one, index > 0) for index, one in enumerate(text[at : at + STEP])]
            done += pieces
            if on_pieces is not None:
                on_pieces(pieces)
        rest = self.splitter.finish()
        if rest != Parts():
            done.append(Piece.left(rest))
            if on_pieces is not None:
                on_pieces(done[-1:])
        common = len(self.session.cached_tokens) if self.prompt[:1] == self.session.cached_tokens[:1] else 0
        tokens = [piece.token for piece in done if piece.token is not None]
        self.session.cached_tokens = [*self.prompt, *tokens]
        said, stats = "".join(piece.text for piece in done), {"tokens_per_step": 1.5, "tokens_per_second": 100.0}
        thought = "".join(piece.thinking for piece in done)
        calls = tuple(call for piece in done for call in piece.calls)
        count, cached = sum(piece.thought for piece in done), min(common, len(self.prompt))
        return Answer(
            said, tokens, reason, 7, len(self.prompt), cached, stats, done, 0, thought, count, calls
        )  # fmt: skip

    def _piece(self, text: str, drafted: bool) -> Piece:
        most, thought = self.options.get("logprobs"), self.splitter.thinking
        parts = self.splitter.feed(text)
        made = replace(Piece.left(parts), token=ord(text), drafted=drafted, thought=thought)
        if most is None:
            return made
        top = tuple(TokenChance(ord(text) + rank, -0.5 - rank) for rank in range(most))
        return replace(made, logprob=-0.5, top=top)


def _stopped(text: str, options: Options) -> tuple[str, str]:
    stops: Sequence[str] = options.get("stop") or ()
    at = min((found for stop in stops if (found := text.find(stop)) >= 0), default=-1)
    text, reason = (text, "eos") if at < 0 else (text[:at], "stop")
    most = options.get("max_tokens", -1)
    return (text, reason) if not 0 <= most < len(text) else (text[:most], "length")
