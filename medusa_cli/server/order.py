"""What the pieces of an answer add to it, in the order in which clients are told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from medusa_cli.api.answer import Answer, Call, CallPiece, Piece


@dataclass(frozen=True)
class Thought:
    """Something that the model thinks."""

    text: str


@dataclass(frozen=True)
class Said:
    """Something of the answer's text."""

    text: str


Added = Thought | Said | CallPiece | Call
"""A Call says that the call with that id is whole; its pieces came before."""


class Order:
    """Of one answer. open: ids of calls that have begun and are not whole."""

    def __init__(self) -> None:
        self.open: set[str] = set()

    def of(self, pieces: Iterable[Piece]) -> list[Added]:
        """What these add. Neighbours of a kind are one."""
        found: list[Added] = []
        for one in (one for piece in pieces for one in self._added(piece)):
            last = found[-1] if found else None
            if isinstance(one, Thought) and isinstance(last, Thought):
                found[-1] = Thought(last.text + one.text)
            elif isinstance(one, Said) and isinstance(last, Said):
                found[-1] = Said(last.text + one.text)
            elif isinstance(one, CallPiece) and isinstance(last, CallPiece) and one.id == last.id:
                found[-1] = replace(last, arguments=last.arguments + one.arguments)
            else:
                found.append(one)
        return found

    def _added(self, piece: Piece) -> Iterator[Added]:
        begun = frozenset(self.open)
        yield from self._calls(piece, [one for one in piece.call_pieces if one.id in begun], begun)
        if piece.thinking:
            yield Thought(piece.thinking)
        if piece.text:
            yield Said(piece.text)
        others = [one for one in piece.call_pieces if one.id not in begun]
        yield from self._calls(piece, others, frozenset(one.id for one in others))

    def _calls(self, piece: Piece, pieces: Sequence[CallPiece], ids: frozenset[str]) -> Iterator[Added]:
        yield from pieces
        self.open |= {one.id for one in pieces}
        for call in piece.calls:
            if call.id in ids:
                self.open.remove(call.id)
                yield call


def of_whole_calls(answer: Answer, pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces without those of calls that never became whole."""
    ids = {call.id for call in answer.calls}
    return [replace(one, call_pieces=tuple(part for part in one.call_pieces if part.id in ids)) for one in pieces]
