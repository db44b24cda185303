"""One progress bar per phase: what, how much, how fast, how much longer. Without a terminal: a line now and then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    filesize,
)
from rich.text import Text

LINE_SECONDS = 30.0


def _amount(value: float, unit: str) -> str:
    if unit == "bytes":
        return filesize.decimal(int(value))
    return f"{value:,.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{_amount(speed, task.fields['unit'])}/s" if speed else "")


class Bar:
    """Shows absolute counts; the total may change as estimates get better."""

    def __init__(self, progress: Progress, title: str, unit: str) -> None:
        self._progress, self._title, self._unit = progress, title, unit
        progress.add_task(title, total=None, unit=unit, note="")
        (self._shown,) = progress.tasks
        self._begun = self._told = time.monotonic()
        self._first: float | None = None

    def update(self, done: float, total: float, note: str = "") -> None:
        self._shown.total = total  # update(total=...) would forget the speed each time
        self._progress.update(self._shown.id, completed=done, note=note)
        self._first = done if self._first is None else self._first
        now = time.monotonic()
        if not self._progress.console.is_terminal and now - self._told > LINE_SECONDS:
            self._told = now
            rate = _amount((done - self._first) / (now - self._begun), self._unit)
            share = f"{_amount(done, self._unit)} of {_amount(total, self._unit)} ({done / max(total, 1e-9):.0%})"
            line = f"{self._title}: {share}, {rate}/s {note}".rstrip()
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def phase(console: Console, title: str, unit: str) -> Iterator[Bar]:
    """A bar on `console` while the block runs. unit: "bytes" is shown in kB, MB, ...; any other word as it is."""
    progress = Progress(
        TextColumn("{task.description:<15}"),
        BarColumn(),
        TaskProgressColumn(),
        _Rate(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        speed_estimate_period=60,
        disable=not console.is_terminal,
    )
    with progress:
        yield Bar(progress, title, unit)
