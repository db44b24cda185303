"""Tells a person who has begun to wonder how far the reading of a prompt has come."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence

from medusa_cli.support import units, wrapping

SECONDS = 2.0
"""Prompts that are read within this time show nothing."""
_AWAY = "\r\x1b[K"
_DIM = "\x1b[2m"


def described(reads: Sequence[tuple[int, float]], total: int) -> str:
    """For example "3,072 of 16,000 tokens, 245 tokens/s, 53 s left". reads: (tokens read, seconds), in order."""
    done, seconds = reads[-1]
    text = f"{done:,} of {total:,} tokens"
    if done <= 0 or seconds <= 0:
        return text
    speed = done / seconds
    shown = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{text}, {shown} tokens/s, {units.duration(_left(reads, total))} left"


def _left(reads: Sequence[tuple[int, float]], total: int) -> float:
    """Seconds that the rest will take. A token takes longer the more there are before it: a line through two points,
    the last one and one in the middle."""
    done, seconds = reads[-1]
    middle, then = min(reads, key=lambda read: abs(read[0] - done / 2))
    growth = (seconds / done - then / middle) / (done - middle) if 0 < middle < done else 0.0
    return (total - done) * (seconds / done + max(0.0, growth) * total)


class ReadingLine:
    """Called with how many tokens of how many are read: from SECONDS after the first call on, a line on stderr says so.

    The line is rewritten in place; end() removes it, and the next call begins anew. Nothing is written if stderr is not
    a terminal that can do that, or the line is not wanted.
    """

    def __init__(self, wanted: bool = True) -> None:
        self._wanted = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._begun = 0.0
        self._reads: list[tuple[int, float]] = []
        self._total = 0
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if not self._wanted:
            return
        with self._lock:
            if self._timer is None:
                self._begun, self._reads = time.monotonic(), []
                # The next call may be a long way off: a slow machine needs its time for 512 tokens.
                self._timer = threading.Timer(SECONDS, self._show_first)
                self._timer.daemon = True
                self._timer.start()
            self._reads.append((done, time.monotonic() - self._begun))
            self._total = total
            if self._shown:
                self._write()

    def end(self) -> None:
        """Removes the line, if one is shown."""
        timer, self._timer = self._timer, None
        if timer is None:
            return
        timer.cancel()
        with self._lock:
            if self._shown:
                self._shown = False
                print(_AWAY, end="", file=sys.stderr, flush=True)

    def _show_first(self) -> None:
        with self._lock:
            if self._timer is threading.current_thread():
                self._shown = True
                self._write()

    def _write(self) -> None:
        text = described(self._reads, self._total)
        width = (wrapping.columns(sys.stderr) or 80) - 1
        long = f"reading the prompt: {text}"
        line = (long if len(long) <= width else f"reading {text}")[:width]
        print(
            _AWAY + (f"{_DIM}{line}{wrapping.RESET}" if wrapping.styled(sys.stderr) else line), end="", file=sys.stderr
        )
        sys.stderr.flush()
