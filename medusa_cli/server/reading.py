"""What a stream says before its answer begins: comments, which clients pass over and the page shows."""

from __future__ import annotations

import time
from dataclasses import dataclass

from medusa_cli.support.reading import SECONDS

PING_SECONDS = 10.0
"""A stream that waits for its turn says so this often, so that nothing in between takes it for dead."""
BETWEEN_SECONDS = 1.0


@dataclass(frozen=True)
class Reading:
    """Tokens of a prompt that are read, of those that were not cached."""

    done: int
    total: int


class Comments:
    """Of one stream: whether it waits, and how far its prompt is read from SECONDS after the first reading on."""

    def __init__(self) -> None:
        self._reading: Reading | None = None
        self._is_new = False
        self._due = 0.0

    @property
    def seconds(self) -> float:
        """After so many without an event comes comment()."""
        return max(0.0, self._due - time.monotonic()) if self._is_new else PING_SECONDS

    def read(self, reading: Reading) -> None:
        """It was told."""
        if self._reading is None:
            self._due = time.monotonic() + SECONDS
        self._reading, self._is_new = reading, True

    def comment(self) -> str:
        """What is to be said now."""
        if self._reading is None:
            return "waiting"
        self._due, self._is_new = time.monotonic() + BETWEEN_SECONDS, False
        return f"reading {self._reading.done} of {self._reading.total} tokens"

    def end(self) -> None:
        """The answer has begun."""
        self._reading, self._is_new = None, False
