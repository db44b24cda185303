"""The server's side: an engine in another process, which may end at any moment and is then started again."""

from __future__ import annotations

import base64
import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding.thinking import NOTHING_SAID, Thinking
from medusa_cli.server.engine import messages
from medusa_cli.server.engine.failures import EngineClosed, EngineFailed, EngineLost, TooLong
from medusa_cli.server.engine.messages import Load, Ready
from medusa_cli.server.engine.process import PATIENCE, Child, Process
from medusa_cli.support.errors import MedusaError, print_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self

MOST_FAILURES = 3
"""Loads in a row that may fail before there is no point in another one."""
CHECK_SECONDS = 0.05
SAVING = 60.0
"""Seconds in which the last prompt cache is written to disk."""
HANGS_AFTER = 900
"""Seconds without a word about something that the engine works on: it hangs. A batch of a prompt takes less."""


@dataclass(frozen=True)
class Tokens:
    """A prompt. ids: none if there are more than the context holds. count: how many. left_out: messages that miss."""

    ids: list[int]
    count: int
    left_out: int = 0


@dataclass
class _Pending:
    """Something that the engine was asked. silent: seconds since a word about it came."""

    end: Future[Any]
    on_event: Callable[[Any], None]
    silent: int = 0


class Work:
    """One answer or embedding. on_event gets what comes before its end, on a thread that must not be held up."""

    def __init__(self, engine: Engine, message: messages.Asked, on_event: Callable[[Any], None]) -> None:
        self._engine, self._message, self.on_event = engine, message, on_event
        self.end: Future[Any] = Future()
        self.cancelled = False

    def cancel(self) -> None:
        """From any thread: it ends soon, or does not begin."""
        self.cancelled = True
        self._engine.cancel(self._message.id)

    def run(self) -> Any:
        """Waits for its end: the last message. None if it was cancelled before it began."""
        return self._engine.perform(self, self._message)


class Engine:
    """A model in a process of its own; when that ends, what it worked on fails, and the next one loads.

    The attributes of its model are known while none is there. start() loads the first. Calls wait for an engine that
    loads; EngineLost if it ends on them, EngineClosed after the end of all.
    """

    def __init__(self, load: Load, launch: Callable[[], Child] = Process, hangs_after: int = HANGS_AFTER) -> None:
        self._load, self._launch, self._hangs_after = load, launch, hangs_after
        self._changed = threading.Condition()
        self._child: Child | None = None
        self._is_ready = False
        self._closing = False
        self._ended = threading.Event()
        self._ids = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._ready: Ready | None = None
        self._bytes: dict[int, bytes] = {}
        self._longest: int | None = None
        self._thread = threading.Thread(target=self._live, name="medusa-engine-keeper", daemon=True)
        self._watch = threading.Thread(target=self._watch_it, name="medusa-engine-watch", daemon=True)
        self.failure: MedusaError | None = None
        """Why there is no engine and will be none."""
        self.on_failure: Callable[[], object] = lambda: None
        self.on_restart: Callable[[], object] = lambda: None
        self._was_ready = False
        self.sessions = 1
        """Conversations with a prompt cache."""

    # --- its life ---

    def start(self) -> None:
        """Loads the model. MedusaError, one line, if that fails."""
        self._thread.start()
        self._watch.start()
        with self._changed:
            self._changed.wait_for(lambda: self._ready is not None or self.failure is not None)
        if self.failure is not None:
            raise self.failure

    def close(self, may_save: Callable[[], bool] = lambda: True) -> None:
        """Saves prompt caches, further ones while there is time, and ends."""
        with self._changed:
            self._closing, is_ready = True, self._is_ready
            self._changed.notify_all()
        if not is_ready:
            self._leave()
        self._send(messages.Close())
        while self._thread.is_alive() and may_save():
            self._thread.join(CHECK_SECONDS)
        self._send(messages.Hurry())
        self._join(SAVING)

    def abandon(self) -> None:
        """Ends as soon as what is under way allows it. Saves no more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._leave()
        self._join(PATIENCE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Ctrl-C while it loads
            self.abandon()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.abandon()

    def _join(self, seconds: float) -> None:
        """Waits for its end; after that time it is killed."""
        if self._thread.ident is None:
            return
        self._thread.join(seconds)
        child = self._child
        if self._thread.is_alive() and child is not None:
            child.kill()
        self._thread.join()

    def _leave(self) -> None:
        child = self._child
        if child is not None:
            child.leave()

    def _live(self) -> None:
        """On a thread that lives as long as the engine: starts processes, and listens to what they say."""
        failures, load = 0, self._load
        while not self._closing:
            try:
                said, reason = self._one_life(load)
            except Exception as error:  # no process can be started
                said, reason = None, str(error)
            loaded = said is None and self._was_ready
            if self._closing:
                break
            failures = 0 if loaded else failures + 1
            if said is not None and self._ready is None:
                self._give_up(said)
                break
            if failures == MOST_FAILURES:
                self._give_up(f"{load.model} did not load {failures} times in a row: {said or reason}")
                break
            if loaded:
                print_line(f"the engine ended ({reason}) and is started again")
            if self._ready is not None:
                self.on_restart()
                load = replace(load, options={**load.options, "ctx_size": self._ready.n_ctx},
                               embedder={**load.embedder, "ctx_size": self._ready.n_ctx})  # fmt: skip
            load = replace(load, quiet=True)
        self._ended.set()
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _one_life(self, load: Load) -> tuple[str | None, str]:
        """Of one process: why the model was not loaded, if it said so, and why it ended."""
        self._was_ready, said = False, None
        child = self._child = self._launch()
        child.send(messages.encode(load))
        if self._closing:
            child.leave()
        try:
            for line in child.lines():
                message = messages.from_engine(line)
                if isinstance(message, messages.Failed):
                    said = message.text
                elif isinstance(message, Ready):
                    self._begin(message)
                else:
                    self._take(message)
        except MedusaError as error:
            child.kill()
            said = str(error)
        except Exception as error:  # a message that is none, or with values that cannot be
            child.kill()
            print_line(f"the engine said what makes no sense: {error}")
        finally:
            with self._changed:
                self._child, self._is_ready = None, False
                lost, self._pending = self._pending, {}
            for pending in lost.values():
                pending.end.set_exception(EngineLost())
        return said, child.end()

    def _watch_it(self) -> None:
        """On a thread of its own: ends an engine that hangs. It counts its own seconds, as computers may sleep."""
        while not self._ended.wait(1):
            with self._changed:
                for pending in self._pending.values():
                    pending.silent += 1
                child = self._child
                hangs = any(pending.silent == self._hangs_after for pending in self._pending.values())
            if child is not None and hangs:
                print_line(f"the engine has said nothing for {self._hangs_after} seconds and is killed")
                child.kill()

    def _begin(self, ready: Ready) -> None:
        first = self._ready or ready
        if (first.name, first.n_vocab, first.chat_template) != (ready.name, ready.n_vocab, ready.chat_template):
            raise MedusaError("it is another model than at the start: start the server again")
        with self._changed:
            self._ready, self._is_ready, self._was_ready = ready, True, True
            self.sessions = 1
            self._changed.notify_all()

    def _give_up(self, reason: str) -> None:
        with self._changed:
            self.failure, self._closing = MedusaError(reason), True
            self._changed.notify_all()
        self.on_failure()

    # --- messages ---

    def _take(self, message: Any) -> None:
        if isinstance(message, messages.Log):
            print_line(message.text)
            return
        if isinstance(message, (messages.Wrote, messages.Answered)):
            self._bytes |= {token: spelled.encode("latin-1") for token, spelled in message.spelled}
        if isinstance(message, (messages.Read, messages.Wrote, messages.Rows)):
            pending = self._pending.get(message.id)
            if pending is not None:
                pending.silent = 0
                pending.on_event(message)
            return
        with self._changed:
            pending = self._pending.pop(message.id, None)
        if pending is None:
            return
        if isinstance(message, messages.Refused):
            pending.end.set_exception(_refusal(message))
        else:
            pending.end.set_result(message)

    def _send(self, message: Any) -> None:
        child = self._child
        if child is not None:
            child.send(messages.encode(message))

    def _submit(
        self, message: Any, future: Future[Any], on_event: Callable[[Any], None], has_ended: Callable[[], bool]
    ) -> bool:
        """Sends it to the engine, once one is there. False: has_ended() came first."""
        line = messages.encode(message)
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or self._closing or has_ended())
            if has_ended():
                return False
            if self._child is None or not self._is_ready:
                raise EngineClosed
            self._pending[message.id] = _Pending(future, on_event)
            self._child.send(line)
        return True

    def _asked(self, kind: Callable[..., messages.Question], *values: Any) -> Any:
        """The reply to a question."""
        future: Future[Any] = Future()
        self._submit(kind(next(self._ids), *values), future, lambda event: None, lambda: False)
        return future.result()

    def perform(self, work: Work, message: messages.Asked) -> Any:
        """The end of some work; None if it was cancelled before it began."""
        if not self._submit(message, work.end, work.on_event, lambda: work.cancelled):
            return None
        if work.cancelled:  # since then
            self.cancel(message.id)
        return work.end.result()

    def cancel(self, asked: int) -> None:
        """Ends work that has begun."""
        with self._changed:
            self._changed.notify_all()
            if asked in self._pending and self._child is not None:
                self._child.send(messages.encode(messages.Cancel(asked)))

    # --- what it is asked ---

    def answer(
        self,
        client: str,
        prompt: list[int],
        options: dict[str, Any],
        tools: Sequence[Any],
        *,
        raw: bool,
        one_call: bool,
        choice: str | None,
        on_event: Callable[[messages.Read | messages.Wrote], None],
    ) -> Work:
        """An answer to come; its end is Answered."""
        ask = messages.Ask(next(self._ids), client, prompt, options, list(tools), raw, one_call, choice)
        return Work(self, ask, on_event)

    def embedding(self, texts: Sequence[Sequence[int]], on_event: Callable[[messages.Rows], None]) -> Work:
        """Embeddings of tokens to come."""
        return Work(self, messages.Embed(next(self._ids), [list(text) for text in texts]), on_event)

    def tokens(
        self,
        prompt: str | list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        raw: bool = False,
        thinking: Thinking = NOTHING_SAID,
    ) -> Tokens:
        """The prompt that a text or a conversation is. MedusaError, one line, if it is none."""
        return _tokens(self._asked(messages.Render, prompt, tools, raw, thinking))

    def shortened(
        self, conversation: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None, most: int, thinking: Thinking
    ) -> Tokens:
        """The same without the oldest turns if these do not fit. TooLong for a message that is too long."""
        return _tokens(self._asked(messages.Shorten, conversation, tools, most, thinking))

    def tokens_of_texts(self, texts: list[str], most: int) -> list[Tokens]:
        """Of texts to embed, up to the one with which they have more than `most` tokens."""
        found = self._asked(messages.Tokenize, texts, most)
        return [Tokens(ids, count) for ids, count in zip(found.texts, found.counts, strict=True)]

    def check(
        self, json_schema: str | None, grammar: str | None, tools: list[dict[str, Any]], choice: str | None
    ) -> None:
        """MedusaError, one line, for what cannot be enforced."""
        self._asked(messages.Check, json_schema, grammar, tools, choice)

    @property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        if self._longest is None:
            self._longest = int(self._asked(messages.Measure).count)
        return self._longest

    # --- what is known of its model ---

    @property
    def _facts(self) -> Ready:
        assert self._ready is not None
        return self._ready

    @property
    def name(self) -> str:
        """The model as it was asked for."""
        return self._facts.name

    @property
    def n_ctx(self) -> int:
        """How many tokens prompt and answer may have together."""
        return self._facts.n_ctx

    @property
    def n_vocab(self) -> int:
        """Token ids are below this number."""
        return self._facts.n_vocab

    @property
    def width(self) -> int:
        """Numbers of an embedding; 0: it writes text."""
        return self._facts.width

    @property
    def chat_template(self) -> str | None:
        """The model's own template."""
        return self._facts.chat_template

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """Options whose defaults come from the model's own file."""
        return dict(self._facts.sampling)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token that was named with log-probabilities, or that is in an answer which a text stopped."""
        return self._bytes.get(token, b"")

    @property
    def pid(self) -> int:
        """Of its process; 0: there is none."""
        child = self._child
        return child.pid if child is not None else 0


def _tokens(found: messages.Tokenized) -> Tokens:
    return Tokens(found.texts[0], found.counts[0], found.left_out)


def _refusal(message: messages.Refused) -> Exception:
    if message.kind == "failed":
        print_line(message.text)
        return EngineFailed()
    return (TooLong if message.kind == "too_long" else MedusaError)(message.text)


def rows_of(events: Sequence[messages.Rows], width: int) -> NDArray[np.float32]:
    """[texts, width]."""
    import numpy as np

    data = b"".join(base64.b64decode(event.data) for event in events)
    return np.frombuffer(data, "<f4").reshape(-1, width)


def print_line(text: str) -> None:
    """One line of the log."""
    with contextlib.suppress(OSError):  # nobody is reading it
        print_error(text)
