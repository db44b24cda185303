"""What the server believes of what its engine says, and what becomes of an engine that says anything else."""

from __future__ import annotations

import math
import pickle
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from medusa_cli.api.answer import Answer, Call, CallPiece, Piece, TokenChance
from medusa_cli.decoding.thinking import Thinking
from medusa_cli.server.engine import messages
from medusa_cli.server.engine.failures import EngineClosed, EngineLost
from medusa_cli.server.engine.messages import Caches, Load, Ready, encode
from medusa_cli.server.engine.remote import Engine
from medusa_cli.support.errors import MedusaError

READY = Ready("fake", 512, 100, None, {"temperature": 0.5}, 0)
PIECE = Piece(
    "a\u2028\n\x00", 5, True, -math.inf, (TokenChance(7, -0.25),), "b", (1, 2), (Call("i", "f", "{}"),), True,
    (CallPiece("i", "f", "{"),),
)  # fmt: skip
ANSWER = Answer("text", [1, 2], "eos", 2**32 - 1, 3, 1, {"ttft_ms": math.inf, "parts": None}, [], 2, "x", 1)
LOAD = Load("m", {"ctx_size": 5, "draft": None}, {}, "no", Caches(5))


@pytest.mark.parametrize(
    "message",
    [
        LOAD,
        messages.Render(1, [{"role": "user", "content": "\ud800"}], [{"a": [1.5, None]}], False, Thinking(True, "low")),
        messages.Render(1, "text", None, True, Thinking()),
        messages.Ask(2, "c", [1, 2], {"temperature": 0.0, "stop": ["x"]}, [], True, False, None),
        messages.Close(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_to_the_engine(message: Any) -> None:
    assert messages.to_engine(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        READY,
        messages.Wrote(3, [PIECE], [(5, "\xff\x00")]),
        messages.Answered(4, ANSWER, 2, []),
        messages.Refused(5, "a", "wrong"),
        messages.Tokenized(6, [[1], []], [1, 9], 3),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_from_the_engine(message: Any) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert messages.from_engine(line) == message


def test_numbers_that_are_none() -> None:
    (piece,) = messages.from_engine(encode(messages.Wrote(1, [Piece("a", 1, False, math.nan)], []))).pieces
    assert math.isnan(piece.logprob)


NONSENSE = [
    b"\n",
    b"nothing\n",
    b"[]\n",
    b'{"Log": {"text": "x"}}\n',
    b'["Log"]\n',
    b'["Log", {"text": 5}]\n',
    b'["Log", {}]\n',
    b'["Nothing", {}]\n',
    b'[["Log"], {"text": "x"}]\n',
    b'["Wrote", {"id": 1, "pieces": [{"text": {}}], "spelled": []}]\n',
    b'["Refused", {"id": 1, "text": "x", "kind": "other"}]\n',
    b"[" * 100_000 + b"\n",
    b"\xff\xfe\n",
    pickle.dumps(print) + b"\n",
    encode(LOAD),
]


@pytest.mark.parametrize("line", NONSENSE, ids=[str(line[:20]) for line in NONSENSE])
def test_what_is_no_message_from_the_engine(line: bytes) -> None:
    with pytest.raises(ValueError, match="no message"):
        messages.from_engine(line)


class Scripted:
    """A process whose lines the test writes. script: gets each line that it is sent, and what takes its own lines."""

    pid = 0

    def __init__(self, script: Callable[[bytes, Callable[[bytes | None], None]], None]) -> None:
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._script = script
        self.killed = threading.Event()

    def send(self, line: bytes) -> None:
        self._script(line, self._said.put)

    def lines(self) -> Iterator[bytes]:
        return iter(self._said.get, None)

    def leave(self) -> None:
        self._said.put(None)

    def end(self) -> str:
        return "SIGKILL"

    def kill(self) -> None:
        self.killed.set()


class Hanging(Scripted):
    """One that says no more until it is killed."""

    def kill(self) -> None:
        super().kill()
        self.leave()


def engine_of(*answers: bytes | None, ready: tuple[Ready, ...] = (READY,)) -> tuple[Engine, list[Scripted]]:
    """An engine whose processes, one after the other, answer the first question with one of the lines.

    None: it ends. ready: what each says first; the last one is repeated.
    """
    started: list[Scripted] = []

    def launch() -> Scripted:
        number = len(started)

        def script(line: bytes, say: Callable[[bytes | None], None]) -> None:
            if isinstance(messages.to_engine(line), Load):
                say(encode(ready[min(number, len(ready) - 1)]))
            else:
                say(answers[number])

        started.append(Scripted(script))
        return started[-1]

    return Engine(LOAD, launch), started


def reply(asked: int) -> bytes:
    return encode(messages.Measured(asked, 9))


@pytest.mark.parametrize("line", NONSENSE[:3])
def test_an_engine_that_talks_nonsense_is_ended(line: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    engine, started = engine_of(line, reply(1))
    with engine:
        with pytest.raises(EngineLost):
            _ = engine.longest_token
        assert engine.longest_token == 9
    assert started[0].killed.is_set()
    nonsense, restart = capsys.readouterr().err.splitlines()
    assert nonsense.startswith("error: the engine said what makes no sense: no message")
    assert restart == "error: the engine ended (SIGKILL) and is started again"


def test_an_engine_that_hangs_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    started: list[Scripted] = []

    def launch() -> Scripted:
        def script(line: bytes, say: Callable[[bytes | None], None]) -> None:
            message = messages.to_engine(line)
            if isinstance(message, Load):
                say(encode(READY))
            elif len(started) > 1:
                say(reply(message.id))

        started.append(Hanging(script))
        return started[-1]

    engine = Engine(LOAD, launch, hangs_after=2)
    with engine:
        with pytest.raises(EngineLost):
            _ = engine.longest_token
        assert engine.longest_token == 9
    assert [child.killed.is_set() for child in started] == [True, False]
    assert capsys.readouterr().err.splitlines() == [
        "error: the engine has said nothing for 2 seconds and is killed",
        "error: the engine ended (SIGKILL) and is started again",
    ]


def test_replies_to_nothing_are_left_out() -> None:
    engine, _ = engine_of(reply(77) + b"", None)
    with engine:
        threading.Timer(0.2, lambda: engine._leave()).start()
        with pytest.raises(EngineLost):
            _ = engine.longest_token


def test_another_model_after_a_restart() -> None:
    """Its file was replaced: what is known of it, and caches, do not fit any more."""
    other = Ready("fake", 512, 101, None, {}, 0)
    engine, started = engine_of(None, None, None, None, ready=(READY, other))
    failed = threading.Event()
    engine.on_failure = failed.set
    with engine:
        with pytest.raises(EngineLost):
            _ = engine.longest_token
        assert failed.wait(20)
        with pytest.raises(EngineClosed):
            _ = engine.longest_token
    assert isinstance(engine.failure, MedusaError)
    reason = "it is another model than at the start: start the server again"
    assert str(engine.failure) == f"m did not load 3 times in a row: {reason}"
    assert len(started) == 4


def test_it_loads_again_with_the_context_that_it_had() -> None:
    loads: list[Load] = []
    counted: list[int] = []

    def launch() -> Scripted:
        def script(line: bytes, say: Callable[[bytes | None], None]) -> None:
            message = messages.to_engine(line)
            if isinstance(message, Load):
                loads.append(message)
                say(encode(READY))
            else:
                say(None if len(loads) == 1 else reply(message.id))

        return Scripted(script)

    engine = Engine(LOAD, launch)
    engine.on_restart = lambda: counted.append(1)
    with engine:
        with pytest.raises(EngineLost):
            _ = engine.longest_token
        assert engine.longest_token == 9
    assert [load.options["ctx_size"] for load in loads] == [5, READY.n_ctx]
    assert [load.quiet for load in loads] == [False, True]
    assert counted == [1]
