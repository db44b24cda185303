"""How many tokens an answer may have, so that enough prompts fit into the minutes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRIAL_TOKENS = 16
TOKENS = (96, 64, 48, 32, 24, 16)
WANTED_ROUNDS = 16
MIN_ROUNDS = 4
"""A mean over fewer prompts says little: shorter answers come before fewer prompts."""
SLACK = 1.1
"""What a round is expected to take, in what it should take."""


@dataclass(frozen=True)
class Pace:
    """What one row takes for an answer: seconds for a token of the prompt and for one of the answer."""

    prompt: float
    token: float


def round_seconds(paces: Sequence[Pace], prompt_tokens: float, tokens: int) -> float:
    """Of one prompt, answered once at each pace."""
    return SLACK * sum(pace.prompt * prompt_tokens + pace.token * tokens for pace in paces)


def answer_tokens(paces: Sequence[Pace], prompt_tokens: float, seconds: float, done: int) -> int:
    """The most of TOKENS with which WANTED_ROUNDS fit, else with which MIN_ROUNDS do, else the fewest.

    done: rounds that are over; the next one counts in any case.
    """
    for rounds in (WANTED_ROUNDS, MIN_ROUNDS):
        for tokens in TOKENS:
            if max(1, rounds - done) * round_seconds(paces, prompt_tokens, tokens) <= seconds:
                return tokens
    return TOKENS[-1]
