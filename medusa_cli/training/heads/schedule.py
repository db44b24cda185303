"""How a run's time is divided between writing text and training on it."""

from __future__ import annotations

from dataclasses import dataclass

EPOCHS = 4
"""With a fixed number of tokens: no clock decides anything but the draft vocabulary's size, where none is given."""
TIMED_EPOCHS = 2.0
"""What a timed run aims at: more text teaches more than another round over the same."""
MAX_EPOCHS = 8.0
LEAST_SHARE, MOST_SHARE = 0.5, 0.85
"""Bounds on generation's share of the time."""
FIRST_RATE = 300.0
"""Tokens per second assumed until the model's own rate is known; it only sizes the first round."""


@dataclass(frozen=True)
class Schedule:
    """tokens: of text, None where the budget decides. budget: seconds for everything, None where no clock decides.

    train_rate: positions per second.
    """

    tokens: int | None
    budget: float | None
    train_rate: float

    def tokens_left(self, tokens: int, seconds: float) -> float:
        """How many more tokens to generate after `tokens` in `seconds`; not positive when generation should end."""
        if self.tokens is not None or self.budget is None:
            return (self.tokens or 0) - tokens
        rate = tokens / seconds if tokens and seconds > 0 else FIRST_RATE
        cost = TIMED_EPOCHS / self.train_rate
        left = (self.budget - seconds - tokens * cost) / (1 + rate * cost)
        left = min(max(left, LEAST_SHARE * self.budget - seconds), MOST_SHARE * self.budget - seconds)
        return rate * left

    def steps(self, rows: int, batch: int, seconds: float) -> int:
        """Training steps on `rows` positions when `seconds` of the budget are gone; at least one epoch."""
        per_epoch = max(1, rows // batch)
        if self.budget is None:
            return EPOCHS * per_epoch
        affordable = (self.budget - seconds) * self.train_rate / batch
        return int(min(max(affordable, per_epoch), MAX_EPOCHS * per_epoch))
