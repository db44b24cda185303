"""Conversations that keep what they have decoded, and the ways to ask in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from medusa_cli.api import arguments
from medusa_cli.api.arguments import Message, Prompt, Tools, Truncation
from medusa_cli.api.job import Job, Turn, Turns
from medusa_cli.api.stream import AsyncStream, Stream
from medusa_cli.decoding.thinking import NOTHING_SAID, Thinking
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from medusa_cli.api.answer import Answer
    from medusa_cli.api.arguments import AnswerArguments
    from medusa_cli.decoding.runtime import Engine
    from medusa_cli.decoding.saved_caches import CacheStore
    from medusa_cli.decoding.settings import Settings


class Session:
    """One conversation's memory: what it has decoded need not be decoded again. Made by Model.session().

    All sessions of a model share its weights and answer one at a time, in the order in which they were asked.

    All four ways to get an answer take the same arguments and raise MedusaError, one line, for bad ones.

    prompt: text, which goes through the model's chat template as a user's message; messages, `{"role", "content"}`
    (and `"reasoning_content"`, what was thought before); or token ids. raw: text without the template. tools: JSON
    schemas of functions, for the template. After a template, what the model thinks is no part of the answer's text.

    The others are the options of `medusa generate` for an answer (decoding.options.AnswerArguments): max_tokens,
    temperature, logit_bias ({token id: number}), stop (a text or several) and so on. One more is logprobs=N: each piece
    tells ln p of its token, and of the N likeliest ones in its place.

    truncation: "auto" leaves out the oldest turns of messages that do not fit the context (Answer.left_out counts the
    messages); with "disabled", the default, that is an error.
    """

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self._engine: Engine | None = engine
        self._turns = turns
        self._cached: list[int] = []
        self._written = 0

    def generate(
        self,
        prompt: Prompt,
        *,
        tools: Tools | None = None,
        raw: bool = False,
        truncation: Truncation = "disabled",
        **options: Unpack[AnswerArguments],
    ) -> Answer:
        """The whole answer, once it is complete. Ctrl-C ends it and is raised."""
        return self.job(prompt, tools, raw, options, truncation).run()

    def stream(
        self,
        prompt: Prompt,
        *,
        tools: Tools | None = None,
        raw: bool = False,
        truncation: Truncation = "disabled",
        **options: Unpack[AnswerArguments],
    ) -> Stream:
        """An iterator over the answer's pieces, as they come."""
        return Stream(self.job(prompt, tools, raw, options, truncation))

    async def agenerate(
        self,
        prompt: Prompt,
        *,
        tools: Tools | None = None,
        raw: bool = False,
        truncation: Truncation = "disabled",
        **options: Unpack[AnswerArguments],
    ) -> Answer:
        """The whole answer, while other tasks run. Cancelling the task ends the answer."""
        return await self.astream(prompt, tools=tools, raw=raw, truncation=truncation, **options).answer()

    def astream(
        self,
        prompt: Prompt,
        *,
        tools: Tools | None = None,
        raw: bool = False,
        truncation: Truncation = "disabled",
        **options: Unpack[AnswerArguments],
    ) -> AsyncStream:
        """An asynchronous iterator over the answer's pieces, as they come."""
        return AsyncStream(self.job(prompt, tools, raw, options, truncation))

    def tokens(
        self, prompt: Prompt, *, tools: Tools | None = None, raw: bool = False, thinking: Thinking = NOTHING_SAID
    ) -> list[int]:
        """The token ids that the model would be asked with. thinking: what the template is told about it."""
        with arguments.in_python_names():
            return arguments.tokens_of(self._open(), prompt, tools, raw, thinking)

    def shortened(
        self,
        messages: Sequence[Message],
        *,
        tools: Tools | None = None,
        most: int = -1,
        longest: int | None = None,
        thinking: Thinking = NOTHING_SAID,
    ) -> tuple[list[int], int]:
        """The token ids with truncation="auto", and how many of the messages are left out.

        most: max_tokens of the answer. longest: bytes of the longest token, given if texts that cannot fit need not be
        counted.
        """
        with arguments.in_python_names():
            return arguments.shortened(self._open(), messages, tools, most, longest, thinking)

    @property
    def n_ctx(self) -> int:
        """How many tokens prompt and answer may have together."""
        return self._open().n_ctx

    @property
    def nbytes(self) -> int:
        """Estimated memory of its cache so far, in bytes: nearly all that a session takes."""
        return self._open().cache_bytes(self._written)

    @property
    def cached_tokens(self) -> list[int]:
        """What it had decoded after its newest answer; of a prompt that begins with these, only the rest is decoded."""
        self._open()
        return list(self._cached)

    def job(
        self,
        asked: Prompt,
        tools: Tools | None,
        raw: bool,
        options: Mapping[str, Any],
        truncation: Truncation = "disabled",
    ) -> Job:
        """The answer to come, with its place in the queue. MedusaError for bad arguments."""
        chosen = arguments.answer_settings(options, self._open().sampling)
        thinking, left_out = chosen.wanted_thinking, 0
        if arguments.leaves_out(asked, raw, truncation):
            messages = cast("Sequence[Message]", asked)
            tokens, left_out = self.shortened(messages, tools=tools, most=chosen.max_tokens, thinking=thinking)
        else:
            tokens = self.tokens(asked, tools=tools, raw=raw, thinking=thinking)
        raw = raw or not (isinstance(asked, str) or isinstance(asked[0], Mapping))
        return self._job(tokens, chosen, left_out, raw, tools)

    def job_of_tokens(
        self,
        tokens: list[int],
        tools: Tools | None,
        raw: bool,
        options: Mapping[str, Any],
        one_call: bool = False,
        choice: str | None = None,
    ) -> Job:
        """The same for a prompt that is tokens. raw: it did not come out of the model's chat template.

        one_call: the answer ends with its first call. choice: the tool that it calls, "" for any.
        """
        chosen = arguments.answer_settings(options, self._open().sampling)
        return self._job(tokens, chosen, 0, raw, tools, one_call, choice)

    def _job(
        self,
        tokens: list[int],
        chosen: Settings,
        left_out: int,
        raw: bool,
        tools: Tools | None,
        one_call: bool = False,
        choice: str | None = None,
    ) -> Job:
        return Job(self, self._open(), self._turns, tokens, chosen, self._keep, left_out, raw, tools, one_call, choice)

    def _keep(self, cached: list[int]) -> None:
        self._cached = cached
        self._written = max(self._written, len(cached))

    @property
    def closed(self) -> bool:
        """Whether its memory has been given back."""
        return self._engine is None

    def _open(self) -> Engine:
        if self._engine is None:
            raise MedusaError("this model, or this session of it, is closed")
        return self._engine

    def cancel(self) -> None:
        """From any thread: ends this session's answers, both under way and waiting, as "cancelled"."""
        self._turns.cancel_all(self)

    @contextlib.contextmanager
    def _while_idle(self) -> Iterator[Engine | None]:
        """Its engine, once its answers have ended; None if cancel() came first. What is cached may change."""
        engine = self._open()
        turn = Turn(self, lambda: None)
        self._turns.join(turn)
        with self._turns.taken(turn) as mine, arguments.in_python_names():
            try:
                yield engine if mine else None
            finally:
                if mine:
                    self._keep(engine.session.cached_tokens)

    def forget(self) -> None:
        """Empties its cache once its answers have ended, unless cancel() comes: the next prompt is decoded whole."""
        with self._while_idle() as engine:
            if engine is not None:
                engine.session.reset()
                self._written = 0

    def save(self, path: str | Path) -> None:
        """Writes what it has decoded to a file, whole or not at all, once its answers have ended.

        Only this user can read the file. MedusaError if that fails, or cancel() comes first.
        """
        from medusa_cli.decoding import saved_caches

        with self._while_idle() as engine:
            if engine is None:
                raise MedusaError(f"{path} was not saved: the session was cancelled")
            saved_caches.write(engine, Path(path))

    def restore(self, path: str | Path) -> None:
        """Replaces what it has decoded with what save() wrote, once its answers have ended.

        MedusaError if the file is damaged, or saved with another model, other cache types or kernels, or if cancel()
        comes first.
        """
        from medusa_cli.decoding import saved_caches

        with self._while_idle() as engine:
            if engine is None:
                raise MedusaError(f"{path} was not restored: the session was cancelled")
            saved_caches.restore(engine, saved_caches.read(Path(path)))

    def keep_in(self, store: CacheStore, owner: str, used: float) -> None:
        """Saves what it has decoded among the caches of `owner`, last used at `used`. MedusaError if that fails."""
        with self._while_idle() as engine:
            if engine is not None:
                store.keep(engine, owner, used)

    def bring_from(self, store: CacheStore, prompt: Sequence[int], owner: str, beyond: int) -> str:
        """Takes a cache of `owner` that has more of the prompt than this session, and more than `beyond` tokens of it.

        Returns one line about a damaged file, or "".
        """
        with self._while_idle() as engine:
            if engine is None:
                return ""
            store.key_of(engine)
            return store.bring(engine, prompt, owner, beyond)[1]

    def copy_from(self, other: Session) -> None:
        """Replaces what it has decoded with what another session of the same model has."""
        import numpy as np

        source = other._open().session
        with self._while_idle() as engine:  # the other one is idle, too: all sessions of a model share their turns
            if engine is not None:
                state = np.empty(source.state_size, np.uint8)
                source.save_state(state)
                engine.session.restore_state(source.cached_tokens, state)

    def close(self) -> None:
        """Gives its memory back. An answer under way keeps it until its end."""
        self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
