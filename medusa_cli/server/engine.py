"""What the server needs of a model, and nothing else: tests put a fake here, `medusa serve` the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class TokenChance(Protocol):
    """As api.TokenChance: a token and ln p of it."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...


class Piece(Protocol):
    """As api.Piece. logprob, top: of the model's own distribution, where they were asked for."""

    @property
    def text(self) -> str: ...
    @property
    def token(self) -> int | None: ...
    @property
    def drafted(self) -> bool: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top(self) -> Sequence[TokenChance]: ...


class Answer(Protocol):
    """As api.Answer."""

    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def stop_reason(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def stats(self) -> dict[str, Any]: ...


OnPieces = Callable[[list[Any]], None]
Options = dict[str, Any]
"""Keyword arguments of an answer: api.AnswerArguments."""


class Job(Protocol):
    """As api.Job: an answer to be."""

    def run(self, on_pieces: OnPieces | None = None) -> Answer:
        """Answers on this thread; on_pieces gets the pieces of each step. MedusaError when the engine fails."""
        ...

    def cancel(self) -> None:
        """From any thread: run() ends within one step."""


class Session(Protocol):
    """As api.Session: one conversation's prompt cache."""

    @property
    def cached_tokens(self) -> Sequence[int]: ...
    @property
    def nbytes(self) -> int:
        """Memory of its prompt cache."""
        ...

    def job(self, asked: Any, tools: Any, raw: bool, options: Any) -> Job:
        """MedusaError for options that the engine cannot follow."""
        ...

    def forget(self) -> None:
        """Empties its prompt cache."""
        ...

    def close(self) -> None:
        """Gives its memory back."""
        ...


class Engine(Protocol):
    """As api.Model. tokens() and token_bytes() may be called on any thread."""

    @property
    def name(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    def tokens(self, prompt: Any, *, tools: Any = None, raw: bool = False) -> list[int]:
        """Token ids of messages in the model's template, or (raw) of a text. MedusaError where that does not work."""
        ...

    def token_bytes(self, token: int) -> bytes: ...
    @property
    def own_session(self) -> Session:
        """The one that is there from the beginning."""
        ...

    def session(self) -> Session: ...
