"""Ctrl-C as a flag, so that work ends between two steps and is saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Stopped(Exception):
    """Leaves work that a Ctrl-C ends before its time."""


class Interrupt:
    """`requested` turns true at the first Ctrl-C; a second one interrupts at once, as usual."""

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Stopped when it was requested."""
        if self.requested:
            raise Stopped


@contextlib.contextmanager
def interrupt_flag() -> Iterator[Interrupt]:
    """Catches SIGINT inside the block. Outside the main thread nothing is caught."""
    flag = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    previous = signal.getsignal(signal.SIGINT)

    def on_signal(number: int, frame: FrameType | None) -> None:
        flag.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, previous)
