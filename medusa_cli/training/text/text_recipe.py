"""What text is written: the numbers, in one place. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

LaterTurns = Literal["given", "self-written"]
LATER_TURNS: tuple[LaterTurns, ...] = get_args(LaterTurns)


@dataclass(frozen=True)
class TextRecipe:
    """longest_answer: tokens, at most half of the model's context. later_turns: the user's turns behind the opening,
    as the prompts have them or the model's own, until a conversation has `turns` of them (Medusa 2.3.2)."""

    longest_answer: int = 384
    later_turns: LaterTurns = "given"
    turns: int = 3

    @property
    def key(self) -> str:
        """Of a folder with such text; empty for the usual one."""
        return "" if self == TextRecipe() else f" {self}"
