"""Real decoding with several trees in turn, prompt by prompt, so that a slow spell of the machine hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from medusa_cli import native

MIN_PROMPTS = 4
MIN_STEPS = 8
"""A generation of fewer steps says nothing about speed."""
PLAIN = 1


class Session(Protocol):
    """What is needed of native.Session."""

    def reset(self) -> None: ...
    def generate(self, prompt: Sequence[int], *, max_tokens: int) -> native.Generation: ...


@dataclass
class Decoded:
    """The generations of one tree: their stats, and speed over plain decoding of the same prompt."""

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


def in_turn(
    sessions: Mapping[int, Session],
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    deadline: float,
    on_answer: Callable[[int], None] = lambda count: None,
) -> dict[int, Decoded]:
    """sessions: by number of nodes, PLAIN among them. Answers prompts (token ids) until `deadline`, or all of them.

    No deadline ends it before MIN_PROMPTS have counted. The result is empty where every answer was too short.
    """
    found = {nodes: Decoded() for nodes in sessions}
    order = list(sessions)
    answers = 0
    for number, prompt in enumerate(prompts):
        if len(found[PLAIN].stats) >= MIN_PROMPTS and time.monotonic() > deadline:
            break
        first = number % len(order)
        round: dict[int, dict[str, Any]] = {}
        for nodes in (*order[first:], *order[:first]):
            on_answer(answers)
            sessions[nodes].reset()
            round[nodes] = sessions[nodes].generate(prompt, max_tokens=max_tokens).stats
            answers += 1
        if min(stats["steps"] for stats in round.values()) < MIN_STEPS:
            continue
        for nodes, stats in round.items():
            found[nodes].stats.append(stats)
            found[nodes].ratios.append(stats["tokens_per_second"] / round[PLAIN]["tokens_per_second"])
    return found if found[PLAIN].stats else {}
