"""One progress bar per phase: what, how much, how fast, how long still."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {task.fields['unit']}/s" if speed else "")


class Bar:
    """Shows absolute counts; the total may change as estimates get better."""

    def __init__(self, progress: Progress, task: int) -> None:
        self._progress, self._task = progress, progress.task_ids[task]

    def update(self, done: float, total: float, note: str = "") -> None:
        self._progress.update(self._task, completed=done, total=total, note=note)


@contextlib.contextmanager
def phase(console: Console, title: str, unit: str) -> Iterator[Bar]:
    """A bar on `console` for the time of the block."""
    progress = Progress(
        TextColumn("{task.description:<15}"),
        BarColumn(),
        TaskProgressColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        speed_estimate_period=60,
    )
    with progress:
        progress.add_task(title, total=None, unit=unit, note="")
        yield Bar(progress, 0)
