"""What an answer leaves behind: its pieces, as they come, and the record of the whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from medusa_cli.parts.records import Call, CallPiece, Parts

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

    text: whole characters; empty if the token completes none, or its text may become a stop text or a mark.
    token: None for text at the very end that had been held back. drafted: it was drafted and accepted.
    logprob: ln p of the token, if `logprobs` were asked for; by the model alone, before temperature, penalties and
    biases. top: the likeliest tokens in its place, likeliest first, as many as were asked for. thinking: like text, of
    what the model thinks before it answers. written: tokens that the model got after it, to end its thinking.
    calls: of tools, each when it is whole. thought: whether the token is of the thinking, its marks included.
    call_pieces: what is written of calls before they are whole, where the model's format allows it; else all of them.
    """

    text: str
    token: int | None
    drafted: bool
    logprob: float | None = None
    top: tuple[TokenChance, ...] = ()
    thinking: str = ""
    written: tuple[int, ...] = ()
    calls: tuple[Call, ...] = ()
    thought: bool = False
    call_pieces: tuple[CallPiece, ...] = ()

    @classmethod
    def of(cls, piece: native.Piece, parts: Parts, thought: bool) -> Piece:
        """Made from the engine's piece, and what it adds to the parts of the answer."""
        token = None if piece.token < 0 else piece.token
        top = tuple(TokenChance(*one) for one in piece.top)
        said = cls.left(parts)
        return replace(
            said, token=token, drafted=piece.drafted, logprob=piece.logprob, top=top, thought=thought
        )  # fmt: skip

    @classmethod
    def left(cls, parts: Parts) -> Piece:
        """Made from parts that no token brings: what had been held back."""
        return cls(
            parts.text, None, False, thinking=parts.thinking, calls=parts.calls, call_pieces=parts.call_pieces
        )  # fmt: skip


@dataclass(frozen=True)
class Generation:
    """The record of an answer. tokens: also those of the thinking; thinking_tokens: how many these are.

    prompt_tokens: also those that ended the thinking in the model's place. loop_tokens: of a round, if a loop ended it.
    stats: counters of the engine, of docs/design.md, Reporting.
    """

    text: str
    thinking: str
    tokens: list[int]
    thinking_tokens: int
    stop_reason: str
    prompt_tokens: int
    reused_tokens: int
    loop_tokens: int
    stats: dict[str, Any]
    calls: tuple[Call, ...] = ()
