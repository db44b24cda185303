"""What one forward pass costs, measured after a cache of some size."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from medusa_cli import native

PASSES = 4
"""Forward passes in a row. The first, for which a new graph is built, is dropped."""


class Timer(Protocol):
    """native.VerifyTimer."""

    def time(self, width: int, *, passes: int) -> list[float]:
        """Milliseconds of each of `passes` passes over `width` tokens."""


def pass_ms(timer: Timer, width: int) -> float:
    """Milliseconds of a pass over `width` tokens, the median of a few."""
    return statistics.median(timer.time(width, passes=PASSES)[1:])


def make_timer(model: native.Model, widest: int, position: int, n_threads: int, n_ctx: int) -> Timer:
    """A timer after `position` tokens that decodes as a drafting session with a context of `n_ctx` would.

    The size of the cache alone changes what a pass costs (its values lie n_ctx apart if flash attention is off).
    """
    from medusa_cli import native

    return native.VerifyTimer(model, widest, position=position, n_ctx=n_ctx, n_threads=n_threads)
