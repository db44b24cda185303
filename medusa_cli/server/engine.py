"""What the server needs of a model, and nothing else: tests put a fake here, `medusa serve` the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from medusa_cli.decoding.settings import Settings


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
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def stats(self) -> dict[str, Any]: ...


OnStep = Callable[[Sequence[Piece]], None]


class Session(Protocol):
    """One prompt cache. Everything but cancel() is called on the engine's thread."""

    @property
    def cached_tokens(self) -> Sequence[int]: ...
    def generate(
        self, prompt: Sequence[int], settings: Settings, seed: int, top_logprobs: int | None, on_step: OnStep
    ) -> Answer:
        """Decodes until a stop. top_logprobs: likeliest tokens to name beside each; None: no log-probabilities."""
        ...

    def cancel(self) -> None:
        """From any thread: ends a running generate() within one step."""


class Engine(Protocol):
    """A loaded model. tokens and pieces may be asked for on any thread."""

    @property
    def name(self) -> str: ...
    @property
    def n_ctx(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def session_bytes(self) -> int:
        """Memory that one more session takes."""
        ...

    def chat_tokens(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None) -> list[int]:
        """Token ids of a conversation in the model's template. MedusaError where the template refuses it."""
        ...

    def text_tokens(self, text: str) -> list[int]:
        """Token ids of a text without a template."""
        ...

    def token_bytes(self, token: int) -> bytes: ...
    def open_session(self) -> Session: ...
