"""What a model answers: whole, and piece by piece."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from medusa_cli.decoding import figures
from medusa_cli.decoding.records import Generation, Piece, TokenChance
from medusa_cli.parts.records import Call, CallPiece

__all__ = ["Answer", "Call", "CallPiece", "Piece", "TokenChance"]


@dataclass(frozen=True)
class Answer:
    """A whole answer; str() is its text.

    tokens: ids, without an end token. stop_reason: "eos", "stop", "length", "context_full" or "cancelled".
    seed: the one that was used. prompt_tokens: length of the prompt; cached_tokens: how many of them the session had
    already decoded. stats: the object of `medusa generate --json`, with the keys of docs/design.md, Reporting; empty
    for an answer that was cancelled before it began. left_out: how many of the oldest messages the model did not see.
    thinking: what the model thought before; thinking_tokens: how many of the tokens are of that. calls: of the tools
    that it was offered, each with a `name` and `arguments`, JSON text.
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
    thinking: str = ""
    thinking_tokens: int = 0
    calls: tuple[Call, ...] = ()

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
    def of(cls, generation: Generation, seed: int, pieces: list[Piece], left_out: int = 0) -> Answer:
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
            generation.thinking,
            generation.thinking_tokens,
            generation.calls,
        )
