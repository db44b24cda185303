"""The engine's side: one thread for answers, two for questions about prompts, one that listens to the server."""

from __future__ import annotations

import base64
import contextlib
import os
import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from medusa_cli.api.answer import Piece
from medusa_cli.api.arguments import in_python_names
from medusa_cli.api.embedder import Embedder
from medusa_cli.api.model import Model
from medusa_cli.decoding import structure
from medusa_cli.decoding.forced_calls import strict_calls, written_call
from medusa_cli.decoding.saved_caches import CacheStore
from medusa_cli.decoding.shortening import MessageTooLong
from medusa_cli.server.engine.messages import (
    Answered,
    Ask,
    Asked,
    Cancel,
    Check,
    Close,
    Done,
    Embed,
    Failed,
    FromEngine,
    Hurry,
    Load,
    Log,
    Measured,
    Question,
    Read,
    Ready,
    Refused,
    Render,
    Rows,
    Shorten,
    Tokenize,
    Tokenized,
    Wrote,
    encode,
    to_engine,
)
from medusa_cli.server.engine.sessions import SessionPool
from medusa_cli.support.errors import MedusaError, describe

QUESTIONS_AT_ONCE = 2
TEXTS_AT_ONCE = 32
"""Texts that are embedded in one call: between two, a client that has left is noticed."""


class _Work(Protocol):
    def cancel(self) -> None: ...


class _Embedding:
    """Embeddings under way."""

    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Host:
    """One model and all that belongs to it, from the message Load to the end. run() does the work, on its own thread.

    lines: what the server says, until it is gone. send: takes lines for it. opened: loads the model.
    """

    def __init__(
        self, lines: Iterable[bytes], send: Callable[[bytes], object], opened: Callable[[Load], Model | Embedder]
    ) -> None:
        self._lines, self._send_line, self._opened = lines, send, opened
        self._sending = threading.Lock()
        self._work: queue.SimpleQueue[Asked | Close | None] = queue.SimpleQueue()
        self._loading: queue.SimpleQueue[Load | None] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self._gone = False
        self._lock = threading.Lock()
        self._current: tuple[int, _Work] | None = None
        self._cancelled = -1
        self._model: Any = None
        self._pool: SessionPool | None = None
        self._longest_token: int | None = None

    def run(self, while_loading: Callable[[], object] = lambda: None) -> None:
        """Until Close, or until the server is gone; if that happens while a model loads, while_loading() is called."""
        self._while_loading = while_loading
        self._questions = ThreadPoolExecutor(QUESTIONS_AT_ONCE, thread_name_prefix="medusa-question")
        threading.Thread(target=self._listen, name="medusa-engine-listener", daemon=True).start()
        load = self._loading.get()
        if load is not None and self._load(load):
            while (job := self._work.get()) is not None:
                if isinstance(job, Close):
                    if self._pool is not None:
                        self._pool.keep(lambda: not self._hurry.is_set())
                    break
                self._guarded(job.id, self._answer if isinstance(job, Ask) else self._embed, job)
        self._questions.shutdown(wait=False, cancel_futures=True)

    def _load(self, load: Load) -> bool:
        try:
            model = self._opened(load)
        except Exception as error:
            self._send(Failed(_text(error)))
            return False
        width = model.width if isinstance(model, Embedder) else 0
        if width:
            ready = Ready(model.name, model.n_ctx, model.n_vocab, None, {}, width)
        else:
            assert not isinstance(model, Embedder)
            caches = load.caches
            store = CacheStore(Path(caches.folder), caches.disk) if caches.folder else None
            self._pool = SessionPool(
                model, caches.memory, shared=caches.shared, store=store, secret=caches.secret, log=self._log
            )
            template, sampling = model.chat_template, dict(model.sampling_defaults)
            ready = Ready(model.name, model.n_ctx, model.n_vocab, template, sampling, 0)
        self._model = model
        self._send(ready)
        return True

    # --- what the server says ---

    def _listen(self) -> None:
        try:
            for line in self._lines:
                self._hear(to_engine(line))
        finally:
            self._gone = True
            self._hurry.set()
            if self._model is None:
                self._while_loading()
            with self._lock:
                if self._current is not None:
                    self._current[1].cancel()
            self._loading.put(None)
            self._work.put(None)

    def _hear(self, message: Any) -> None:
        if isinstance(message, Load):
            self._loading.put(message)
        elif isinstance(message, (Ask, Embed, Close)):
            self._work.put(message)
        elif isinstance(message, Cancel):
            self._cancel(message.id)
        elif isinstance(message, Hurry):
            self._hurry.set()
        else:
            with contextlib.suppress(RuntimeError):  # it is closing
                self._questions.submit(self._guarded, message.id, self._reply, message)

    def _cancel(self, asked: int) -> None:
        with self._lock:
            self._cancelled = asked
            if self._current is not None and self._current[0] == asked:
                self._current[1].cancel()

    @contextlib.contextmanager
    def _under_way(self, asked: int, work: _Work) -> Any:
        with self._lock:
            self._current = asked, work
            if self._cancelled == asked or self._gone:
                work.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._current = None

    def _guarded(self, asked: int, work: Callable[[Any], object], message: Any) -> None:
        """Whatever goes wrong is the last message about it."""
        try:
            work(message)
        except MedusaError as error:
            long = error.__cause__ if isinstance(error.__cause__, MessageTooLong) else None
            self._send(Refused(asked, _text(long or error), "too_long" if long else "wrong"))
        except BaseException as error:
            _trace(error)
            self._send(Refused(asked, _text(error), "failed"))

    # --- answers, on the engine's own thread ---

    def _answer(self, ask: Ask) -> None:
        assert self._pool is not None
        session = self._pool.take(ask.prompt, ask.client)
        options = _options(ask.options)
        work = session.job_of_tokens(ask.prompt, ask.tools, ask.raw, options, ask.one_call, ask.choice)

        def wrote(pieces: Sequence[Piece]) -> None:
            named = {one.token for piece in pieces for one in piece.top}
            named |= {piece.token for piece in pieces if piece.token is not None and piece.logprob is not None}
            self._send(Wrote(ask.id, list(pieces), self._spelled(named)))

        with self._under_way(ask.id, work):
            answer = work.run(wrote, lambda done, total: self._send(Read(ask.id, done, total)))
        spelled = self._spelled(set(answer.tokens)) if answer.stop_reason == "stop" else []
        self._send(Answered(ask.id, replace(answer, pieces=[]), len(self._pool), spelled))

    def _spelled(self, tokens: set[int]) -> list[tuple[int, str]]:
        return [(token, self._model.token_bytes(token).decode("latin-1")) for token in tokens]

    def _embed(self, embed: Embed) -> None:
        work = _Embedding()
        with self._under_way(embed.id, work):
            for begin in range(0, len(embed.texts), TEXTS_AT_ONCE):
                rows = self._model.embed(embed.texts[begin : begin + TEXTS_AT_ONCE], lambda: not work.cancelled)
                self._send(Rows(embed.id, base64.b64encode(rows.astype("<f4").tobytes()).decode()))
                if work.cancelled:
                    break
        self._send(Done(embed.id))

    # --- questions, on other threads ---

    def _reply(self, question: Question) -> None:
        self._send(self._replied(question))

    def _replied(self, question: Question) -> FromEngine:
        model = self._model
        if isinstance(question, Render):
            tokens = model.tokens(
                question.prompt, tools=question.tools, raw=question.raw, thinking=question.thinking
            )  # fmt: skip
            return self._tokenized(question.id, [tokens])
        if isinstance(question, Shorten):
            longest, told = self._longest(), {"tools": question.tools, "most": question.most}
            tokens, left_out = model.shortened(
                question.messages, longest=longest, thinking=question.thinking, **told
            )  # fmt: skip
            return self._tokenized(question.id, [tokens], left_out)
        if isinstance(question, Tokenize):
            texts: list[list[int]] = []
            for text in question.texts:
                texts.append(model.tokens(text))
                if sum(map(len, texts)) > question.most:
                    break
            return self._tokenized(question.id, texts)
        if isinstance(question, Check):
            with in_python_names():
                _check(question, model.chat_template)
            return Done(question.id)
        return Measured(question.id, self._longest())

    def _tokenized(self, asked: int, texts: list[list[int]], left_out: int = 0) -> Tokenized:
        most = self._model.n_ctx
        return Tokenized(
            asked, [one if len(one) <= most else [] for one in texts], [len(one) for one in texts], left_out
        )

    def _longest(self) -> int:
        """Bytes of the longest token."""
        if self._longest_token is None:
            self._longest_token = max(len(self._model.token_bytes(token)) for token in range(self._model.n_vocab))
        return self._longest_token

    # --- what the server is told ---

    def _send(self, message: FromEngine) -> None:
        line = encode(message)
        with self._sending, contextlib.suppress(OSError):  # the server is gone
            self._send_line(line)

    def _log(self, error: BaseException) -> None:
        _trace(error)
        self._send(Log(_text(error)))


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """Options of an answer as they were before they were JSON, which has no tuples, and no numbers for keys."""
    options = dict(given)
    if options.get("logit_bias"):
        options["logit_bias"] = {int(token): value for token, value in options["logit_bias"].items()}
    if options.get("stop"):
        options["stop"] = tuple(options["stop"])
    return options


def _check(check: Check, template: str | None) -> None:
    if check.choice is not None:
        written_call(template, check.tools, check.choice)
    else:
        strict_calls(template, check.tools)
    structure.grammar(check.json_schema, check.grammar)


def _text(error: BaseException) -> str:
    return describe(error).encode("utf-8", "replace").decode()


def _trace(error: BaseException) -> None:
    if os.environ.get("MEDUSA_DEBUG") == "1":
        traceback.print_exception(type(error), error, error.__traceback__)
