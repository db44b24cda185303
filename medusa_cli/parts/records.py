"""The parts of an answer."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass

ID_LENGTH = 9
"""Mistral's templates refuse any other length."""


@dataclass(frozen=True)
class Call:
    """A whole call of a tool. arguments: JSON text, an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class CallPiece:
    """A piece of a call that is being written: `arguments` goes on where the piece before it ended.

    The first piece with an id begins a call. The call is whole when there is a Call with that id, and its arguments
    are those of the pieces. Without one, the model wrote no such call in the end: its text is a text.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Parts:
    """What a piece of an answer adds to it."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    call_pieces: tuple[CallPiece, ...] = ()

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            self.text + other.text,
            self.thinking + other.thinking,
            self.calls + other.calls,
            self.call_pieces + other.call_pieces,
        )


class Ids:
    """The ids of an answer's calls: letters and digits."""

    def __init__(self) -> None:
        self._given: list[str] = []
        self._again = 0

    def __call__(self) -> str:
        """The next one."""
        self._again += 1
        if self._again > len(self._given):
            self._given.append("".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH)))
        return self._given[self._again - 1]

    def from_the_first(self) -> None:
        """Gives the same ones again, to whoever reads the same answer once more."""
        self._again = 0
