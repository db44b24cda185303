"""How a training run went: loss and held-out tokens per step, kept beside the checkpoint and continued with it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ..memory import recall, remember

MOST_POINTS = 200
LEAST_SPACING = 10
"""Steps between two points: the loss is read back no more often."""


@dataclass(frozen=True)
class Point:
    """step: steps done. positions: rows trained on so far. seconds: of training, over all calls. loss: mean since the
    point before. tokens_per_step: held out, where it was measured."""

    step: int
    positions: int
    seconds: float
    loss: float
    tokens_per_step: float | None


class Curve:
    """The points of one plan, at most about MOST_POINTS and one for each evaluation."""

    def __init__(
        self, path: Path, plan: str, steps: int, batch: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """plan: what tells this run's points from another's in `path`."""
        self._path, self._plan, self._batch, self._clock = path, plan, batch, clock
        self._spacing = max(LEAST_SPACING, -(-steps // MOST_POINTS // LEAST_SPACING) * LEAST_SPACING)
        self._losses: list[float] = []
        self._begun = clock()
        self.points: list[Point] = []

    def start(self, step: int) -> None:
        """Goes on at the checkpoint after `step` steps; what an earlier call did beyond it is done again."""
        self.points = [point for point in self._stored() if point.step <= step]
        self._begun = self._clock() - (self.points[-1].seconds if self.points else 0.0)

    def _stored(self) -> list[Point]:
        content = recall(self._path)
        try:
            return [Point(**row) for row in content["points"]] if content["plan"] == self._plan else []
        except (KeyError, TypeError):
            return []

    @property
    def seconds(self) -> float:
        return self._clock() - self._begun

    def add(self, step: int, loss: float, tokens_per_step: float | None = None) -> None:
        """Takes the newest loss (NaN: none yet) after `step` steps; remembers it now and then, an evaluation always."""
        if not math.isfinite(loss) or (self.points and self.points[-1].step >= step):
            return
        self._losses.append(loss)
        if tokens_per_step is None and step % self._spacing:
            return
        mean = sum(self._losses) / len(self._losses)
        self._losses = []
        self.points.append(Point(step, step * self._batch, self.seconds, mean, tokens_per_step))
        remember(self._path, {"plan": self._plan, "points": [asdict(point) for point in self.points]})
