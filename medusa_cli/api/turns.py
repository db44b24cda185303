"""Who may use an engine: one answer at a time, in the order in which they were asked for."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(eq=False)
class Turn:
    """A place in a queue. owner: who asked. interrupt: ends the work of this turn, which may not have begun yet."""

    owner: object
    interrupt: Callable[[], None]
    cancelled: bool = False
    waited_for: bool = False


class Turns:
    """A queue of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Turn] = deque()

    def join(self, turn: Turn) -> None:
        """The place is kept from here on: until taken() ends, or leave()."""
        with self._changed:
            self._queue.append(turn)

    def leave(self, turn: Turn) -> None:
        """Gives the place back."""
        with self._changed:
            if turn in self._queue:
                self._queue.remove(turn)
                self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self, turn: Turn) -> Iterator[bool]:
        """Waits until it is first in the queue. False: it was cancelled before."""
        try:
            with self._changed:
                turn.waited_for = True
                self._changed.wait_for(lambda: turn.cancelled or self._queue[0] is turn)
            yield not turn.cancelled
        finally:
            self.leave(turn)

    def cancel(self, turn: Turn) -> None:
        """Whoever waits for this turn gives up; work that is done in it is interrupted."""
        with self._changed:
            self._cancel([turn])

    def cancel_all(self, owner: object = None) -> None:
        """All turns, or those of one owner."""
        with self._changed:
            self._cancel([turn for turn in self._queue if owner is None or turn.owner is owner])

    def _cancel(self, turns: list[Turn]) -> None:
        for turn in turns:
            turn.cancelled = True
            if self._queue and self._queue[0] is turn:
                turn.interrupt()
            if not turn.waited_for and turn in self._queue:
                self._queue.remove(turn)  # perhaps nobody ever comes for it
        self._changed.notify_all()

    def wait_empty(self) -> None:
        """Waits until nobody has a turn or waits for one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)

    @property
    def length(self) -> int:
        """Turns in the queue, the running one among them."""
        with self._changed:
            return len(self._queue)
