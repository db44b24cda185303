"""Decodes for real with several trees in turn, prompt by prompt, so that a slow spell of the machine hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding.options import CHAT_TEMPERATURE
from medusa_cli.tuning.choose import PLAIN

if TYPE_CHECKING:
    from medusa_cli import native

MIN_PROMPTS = 4
MIN_STEPS = 8
"""A generation with fewer steps says nothing about speed."""
TEMPERATURES = (0.0, CHAT_TEMPERATURE)
"""The answers use these in turn: the most likely token, and what chats do by default."""


@dataclass
class Decoded:
    """The generations of one tree: their stats, and their speed over plain decoding of the same prompt."""

    stats: list[dict[str, Any]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Mean over the prompts."""
        return statistics.mean(self.ratios)

    @property
    def tokens_per_second(self) -> float:
        """Mean over the prompts."""
        return statistics.mean(stats["tokens_per_second"] for stats in self.stats)

    @property
    def tokens_per_step(self) -> float:
        """Over all steps."""
        steps = sum(stats["steps"] for stats in self.stats)
        return float(sum(stats["tokens_per_step"] * stats["steps"] for stats in self.stats) / steps)


def sampling(number: int) -> native.Sampling:
    """How the answer to prompt `number` is drawn."""
    from medusa_cli import native

    return native.Sampling(temperature=TEMPERATURES[number % len(TEMPERATURES)], seed=number)


def in_turn(
    sessions: Mapping[str, native.Session],
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    deadline: float,
    on_answer: Callable[[int], None] = lambda count: None,
) -> dict[str, Decoded]:
    """sessions: by name, PLAIN among them. Answers prompts (token ids) until `deadline`, or all of them.

    No deadline ends it before MIN_PROMPTS have counted. The result is empty if every answer was too short.
    """
    found = {name: Decoded() for name in sessions}
    order = list(sessions)
    answers = 0
    for number, prompt in enumerate(prompts):
        if len(found[PLAIN].stats) >= MIN_PROMPTS and time.monotonic() > deadline:
            break
        first = number % len(order)
        round: dict[str, dict[str, Any]] = {}
        for name in (*order[first:], *order[:first]):
            on_answer(answers)
            sessions[name].reset()
            answer = sessions[name].generate(prompt, max_tokens=max_tokens, sampling=sampling(number))
            round[name] = answer.stats
            answers += 1
        if min(stats["steps"] for stats in round.values()) < MIN_STEPS:
            continue
        for name, stats in round.items():
            found[name].stats.append(stats)
            found[name].ratios.append(stats["tokens_per_second"] / round[PLAIN]["tokens_per_second"])
    return found if found[PLAIN].stats else {}
