"""Training in progress: its curve, kept beside the checkpoint and continued with it; a panel in a terminal, elsewhere
a line now and then."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from medusa_cli.support.files import recall, remember
from medusa_cli.support.tables import MISSING, number

MOST_POINTS = 200
LEAST_SPACING = 10
"""Steps between two points: the loss is not read back more often."""
LINE_SECONDS = 30.0
WIDTH = 40
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-~=+*#"


@dataclass(frozen=True)
class Point:
    """step: steps done. positions: rows trained on so far. seconds: of training, over all calls. loss: mean since the
    previous point. tokens_per_step: held out, if measured."""

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
        """Continues from the checkpoint after `step` steps; what an earlier call did beyond it is done again."""
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


def sparkline(values: Sequence[float], width: int, characters: str = BLOCKS) -> str:
    """At most `width` characters, the lowest value as the first of `characters`, the highest as the last."""
    if not values:
        return ""
    count = min(width, len(values))
    picked = [values[(at + 1) * len(values) // count - 1] for at in range(count)]
    low, high = min(picked), max(picked)
    span, last = (high - low) or 1.0, len(characters) - 1
    return "".join(characters[round((value - low) / span * last)] for value in picked)


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class TrainingView:
    """What the panel shows. Positions per second count from where this call began."""

    def __init__(
        self, console: Console, curve: Curve, first_step: int, steps: int, batch: int, title: str = "Training heads"
    ) -> None:
        self.console, self.curve, self.title = console, curve, title
        self.first_step, self.step, self.steps, self.batch = first_step, first_step, steps, batch
        self.loss = float("nan")
        self._begun = self._told = time.monotonic()

    def update(self, step: int, loss: float) -> None:
        """Called after each step; loss: the newest known."""
        self.curve.add(step, loss)
        self.step, self.loss = step, loss
        if not self.console.is_terminal and time.monotonic() - self._told > LINE_SECONDS:
            self._tell()

    def evaluated(self, step: int, loss: float, tokens_per_step: float) -> None:
        self.curve.add(step, loss, tokens_per_step)
        self.step, self.loss = step, loss
        if not self.console.is_terminal:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        line = f"{self.title}: {self.step / self.steps:.0%}, loss {self._read()}, {self._held_out()}, {self._pace()}"
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _read(self) -> str:
        """The loss, if it was read back once."""
        return number(self.loss if math.isfinite(self.loss) else None, 3)

    def _held_out(self) -> str:
        values = self._measured()
        if not values:
            return "held out: not measured yet"
        return f"held out {values[-1]:.3f} tokens per step (best {max(values):.3f})"

    def _measured(self) -> list[float]:
        return [point.tokens_per_step for point in self.curve.points if point.tokens_per_step is not None]

    def _pace(self) -> str:
        elapsed, done = time.monotonic() - self._begun, self.step - self.first_step
        if done <= 0 or elapsed <= 0:
            return "rate not known yet"
        left = (self.steps - self.step) * elapsed / done
        return f"{done * self.batch / elapsed:,.0f} positions/s, {duration(left)} left at most"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        characters = ASCII if options.ascii_only else BLOCKS
        table = Table.grid(padding=(0, 2))
        losses = [point.loss for point in self.curve.points]
        table.add_row("loss", self._read(), Text(sparkline(losses, WIDTH, characters), no_wrap=True))
        values = self._measured()
        shown = f"{values[-1]:.3f} (best {max(values):.3f})" if values else MISSING
        table.add_row("tokens per step", shown, Text(sparkline(values, WIDTH, characters), no_wrap=True))
        bar = ProgressBar(total=self.steps, completed=self.step, width=WIDTH)
        table.add_row("steps", f"{self.step} of {self.steps}", bar)
        yield Panel(Group(table, Text(self._pace())), title=self.title, expand=False)


def live(view: TrainingView) -> contextlib.AbstractContextManager[object]:
    """Shows `view` while the block runs; its last state stays on the screen. Does nothing outside a terminal."""
    shown = Live(view, console=view.console, refresh_per_second=4)
    return shown if view.console.is_terminal else contextlib.nullcontext()
