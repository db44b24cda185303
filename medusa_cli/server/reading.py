"""What a stream says while nothing of its answer comes: comments, which clients ignore and the page shows."""

from __future__ import annotations

import time
from dataclasses import dataclass

from medusa_cli.support.reading import SECONDS

PING_SECONDS = 10.0
"""A stream waiting for its turn says so this often, so that nothing in between takes it for dead."""
BETWEEN_SECONDS = 1.0


@dataclass(frozen=True)
class Reading:
    """How many tokens of a prompt are read, of those that were not cached."""

    done: int
    total: int


class Comments:
    """One stream's: whether it waits, and, from SECONDS after the first reading on, how much of its prompt is read."""

    def __init__(self) -> None:
        self._reading: Reading | None = None
        self._is_new = False
        self._due = 0.0
        self._is_answering = False
        self._wrote = 0.0

    @property
    def seconds(self) -> float:
        """After this long without an event, comment() is due."""
        return max(0.0, self._due - time.monotonic()) if self._is_new else PING_SECONDS

    def read(self, reading: Reading) -> None:
        """Takes note of a reading."""
        if self._reading is None:
            self._due = time.monotonic() + SECONDS
        self._reading, self._is_new = reading, True

    def comment(self) -> str:
        """What to say now."""
        if self._is_answering:
            return "writing"
        if self._reading is None:
            return "waiting"
        self._due, self._is_new = time.monotonic() + BETWEEN_SECONDS, False
        return f"reading {self._reading.done} of {self._reading.total} tokens"

    def wrote(self, something: bool) -> bool:
        """The answer has begun. something: this step had something to send; else a comment may be due."""
        now = time.monotonic()
        self._reading, self._is_new = None, False
        is_due = self._is_answering and not something and now - self._wrote > PING_SECONDS
        if something or is_due or not self._is_answering:
            self._wrote = now
        self._is_answering = True
        return is_due
