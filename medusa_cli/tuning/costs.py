"""What a forward pass costs by its number of tokens, and what a real step takes beyond it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from medusa_cli.decoding.pass_cost import Timer, pass_ms
from medusa_cli.tuning.choose import Calibration, CostCurve

ROUNDS = 9
MIN_ROUNDS = 3
MARGIN = 1.15
"""A width is past hope when it costs this much more than the most tokens a step can bring."""


def cost_curve(
    timer: Timer,
    position: int,
    widths: Sequence[int],
    most_tokens: float,
    deadline: float,
    on_pass: Callable[[int], None] = lambda width: None,
) -> CostCurve:
    """Medians over interleaved rounds of all widths (ascending from 1).

    The first round stops widening at the first width that costs more plain passes than `most_tokens`, the most that a
    step can bring. Rounds end at `deadline` (time.monotonic), but not before there are MIN_ROUNDS.
    """
    rounds: list[dict[int, float]] = []
    kept = list(widths)
    while len(rounds) < ROUNDS and (len(rounds) < MIN_ROUNDS or time.monotonic() < deadline):
        current: dict[int, float] = {}
        for width in kept:
            on_pass(width)
            current[width] = pass_ms(timer, width)
            if not rounds and current[width] > MARGIN * most_tokens * current[1]:
                break
        kept = list(current)
        rounds.append(current)
    return CostCurve(position, {width: statistics.median(found[width] for found in rounds) for width in kept})


def calibration(real: Sequence[tuple[int, dict[str, float], int]], passes: dict[int, float]) -> Calibration:
    """real: (nodes, stats' timings_ms, steps) of generations; passes: milliseconds of a bare pass by nodes.

    Both must be at the same positions. Needs plain generations (1 node) and drafting ones.
    """

    def parts(drafting: bool) -> tuple[float, float]:
        chosen = [entry for entry in real if (entry[0] > 1) == drafting and entry[2] > 0]
        factor = statistics.median(timings["verify"] / steps / passes[nodes] for nodes, timings, steps in chosen)
        rest = statistics.median((sum(timings.values()) - timings["verify"]) / steps for _, timings, steps in chosen)
        return factor, rest

    return Calibration(*parts(False), *parts(True))
