"""Conversations that keep what they have decoded, and the ways to ask in them."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from medusa_cli.api import arguments
from medusa_cli.api.arguments import Prompt, Tools
from medusa_cli.api.job import Job, Turn, Turns
from medusa_cli.api.stream import AsyncStream, Stream
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from medusa_cli.api.answer import Answer
    from medusa_cli.api.arguments import AnswerArguments
    from medusa_cli.decoding.runtime import Engine


class Session:
    """One conversation's memory: what it has decoded need not be decoded again. Made by Model.session().

    All sessions of a model share its weights and answer one at a time, in the order in which they were asked.

    Of the four ways to get an answer all take the same arguments and raise MedusaError, one line, for bad ones.

    prompt: text, which goes through the model's chat template as a user's message; messages, `{"role", "content"}`;
    or token ids. raw: text without the template. tools: JSON schemas of functions, for the template.

    The others are the options of `medusa generate` about an answer (decoding.options.AnswerArguments): max_tokens,
    temperature, logit_bias ({token id: number}), stop (a text or several) and so on. One more is logprobs=N: each piece
    tells ln p of its token, and of the N likeliest ones in its place.
    """

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self._engine: Engine | None = engine
        self._turns = turns
        self._cached: list[int] = []
        self._written = 0

    def generate(
        self, prompt: Prompt, *, tools: Tools | None = None, raw: bool = False, **options: Unpack[AnswerArguments]
    ) -> Answer:
        """The whole answer, when it is there. Ctrl-C ends it and is raised."""
        return self.job(prompt, tools, raw, options).run()

    def stream(
        self, prompt: Prompt, *, tools: Tools | None = None, raw: bool = False, **options: Unpack[AnswerArguments]
    ) -> Stream:
        """An iterator over the answer's pieces, as they come."""
        return Stream(self.job(prompt, tools, raw, options))

    async def agenerate(
        self, prompt: Prompt, *, tools: Tools | None = None, raw: bool = False, **options: Unpack[AnswerArguments]
    ) -> Answer:
        """The whole answer; other tasks run meanwhile. Cancelling the task ends the answer."""
        return await self.astream(prompt, tools=tools, raw=raw, **options).answer()

    def astream(
        self, prompt: Prompt, *, tools: Tools | None = None, raw: bool = False, **options: Unpack[AnswerArguments]
    ) -> AsyncStream:
        """An asynchronous iterator over the answer's pieces, as they come."""
        return AsyncStream(self.job(prompt, tools, raw, options))

    def tokens(self, prompt: Prompt, *, tools: Tools | None = None, raw: bool = False) -> list[int]:
        """The token ids that the model would be asked with."""
        with arguments.in_python_names():
            return arguments.tokens_of(self._open(), prompt, tools, raw)

    @property
    def n_ctx(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._open().n_ctx

    @property
    def nbytes(self) -> int:
        """Memory of its cache so far, in bytes, by estimate: nearly all that a session takes."""
        return self._open().cache_bytes(self._written)

    @property
    def cached_tokens(self) -> list[int]:
        """What it had decoded after its newest answer; a prompt that begins with these tokens goes on behind them."""
        self._open()
        return list(self._cached)

    def job(self, asked: Prompt, tools: Tools | None, raw: bool, options: Mapping[str, Any]) -> Job:
        """The answer to be, with its place in the queue. MedusaError for bad arguments."""
        engine = self._open()
        chosen = arguments.answer_settings(options, engine.sampling)
        return Job(self, engine, self._turns, self.tokens(asked, tools=tools, raw=raw), chosen, self._keep)

    def _keep(self, cached: list[int]) -> None:
        self._cached = cached
        self._written = max(self._written, len(cached))

    @property
    def closed(self) -> bool:
        """Whether its memory was given back."""
        return self._engine is None

    def _open(self) -> Engine:
        if self._engine is None:
            raise MedusaError("this model, or this session of it, is closed")
        return self._engine

    def cancel(self) -> None:
        """From any thread: ends this session's answers, the one under way and those that wait, as "cancelled"."""
        self._turns.cancel_all(self)

    def forget(self) -> None:
        """Empties its cache once its answers have ended, unless cancel() comes: the next prompt is decoded whole."""
        engine = self._open()
        turn = Turn(self, lambda: None)
        self._turns.join(turn)
        with self._turns.taken(turn) as mine:
            if mine:
                engine.session.reset()
                self._cached = []
                self._written = 0

    def close(self) -> None:
        """Gives its memory back. An answer that is under way keeps it until its end."""
        self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
