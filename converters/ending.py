"""SIGTERM and SIGHUP while something unfinished lies on the disk: it is removed first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def ending_signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP become SystemExit for a while, so that clean-up code runs; only the first one counts.

    Signals that are ignored (nohup) or handled otherwise stay so, and nothing changes outside the main thread.
    """
    before = {}
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:
            ended = True
            raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        usual = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
        before = {number: signal.signal(number, end) for number in usual}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
