"""What a model answers: whole, and piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import figures

if TYPE_CHECKING:
    from medusa_cli import native


@dataclass(frozen=True)
class TokenChance:
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Piece:
    """One token of an answer and the text that it made readable.

    text: whole characters; empty if the token completes none, or its text may become a stop text.
    token: None for text at the very end that had been held back. drafted: it was drafted and accepted.
    logprob: ln p of the token, if `logprobs` were asked for; by the model alone, before temperature, penalties and
    biases. top: the likeliest tokens in its place, likeliest first, as many as were asked for.
    """

    text: str
    token: int | None
    drafted: bool
    logprob: float | None = None
    top: tuple[TokenChance, ...] = ()

    @classmethod
    def of(cls, piece: native.Piece) -> Piece:
        """Made from the engine's piece."""
        token = None if piece.token < 0 else piece.token
        return cls(piece.text, token, piece.drafted, piece.logprob, tuple(TokenChance(*one) for one in piece.top))


@dataclass(frozen=True)
class Answer:
    """A whole answer; str() is its text.

    tokens: ids, without an end token. stop_reason: "eos", "stop", "length", "context_full" or "cancelled".
    seed: the one that was used. prompt_tokens: length of the prompt; cached_tokens: how many of them the session had
    already decoded. stats: the object of `medusa generate --json`, with the keys of docs/design.md, Reporting; empty
    for an answer that was cancelled before it began. left_out: how many of the oldest messages the model did not see.
    """

    text: str
    tokens: list[int]
    stop_reason: str
    seed: int
    prompt_tokens: int
    cached_tokens: int
    stats: dict[str, Any] = field(repr=False)
    pieces: list[Piece] = field(repr=False)
    left_out: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, over the time after the first."""
        return float(self.stats.get("tokens_per_second", 0.0))

    @property
    def tokens_per_step(self) -> float:
        """Tokens per forward pass that checked drafts; plain decoding has 1."""
        return float(self.stats.get("tokens_per_step", 0.0))

    @classmethod
    def of(cls, generation: native.Generation, seed: int, pieces: list[Piece], left_out: int = 0) -> Answer:
        """Made from the engine's record of an answer."""
        return cls(
            generation.text,
            list(generation.tokens),
            generation.stop_reason,
            seed,
            generation.prompt_tokens,
            generation.reused_tokens,
            figures.as_json(generation, seed),
            pieces,
            left_out,
        )
