"""Calls of tools before they are whole: their names, and their arguments by pieces."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medusa_cli.parts.call_formats import LENIENT, NAMED, Format, Schemas
from medusa_cli.parts.json_text import JsonObject
from medusa_cli.parts.parameter_text import ParameterObject
from medusa_cli.parts.records import Call, CallPiece, Ids

LONGEST_HEAD = 1000
"""Characters from the beginning of a call to its arguments. Where there are more, the call comes whole."""


@dataclass
class _Begun:
    id: str
    name: str
    arguments: JsonObject | ParameterObject


class CallStream:
    """Reads a text that calls tools, if the format allows to tell arguments before they are whole.

    A call begins when its name, a tool's, is there, and its arguments begin. What these are in the end, the format's
    own reader decides: `matched`.
    """

    def __init__(self, form: Format, schemas: Schemas, ids: Ids, opens: str = "") -> None:
        """opens: the mark that the text begins with; "": none."""
        self._form, self._schemas, self._ids = form, schemas, ids
        self._several = not (form.one_each and opens)
        self._held = ""
        self._begun: list[_Begun] = []
        self._ended = False

    @classmethod
    def of_arguments(cls, tool: str, schemas: Schemas, ids: Ids) -> CallStream:
        """For a text that is nothing but the arguments of one tool, in JSON."""
        stream = cls(NAMED, schemas, ids, opens=tool)
        stream._begun = [_Begun(ids(), tool, JsonObject())]
        stream._ended = tool not in schemas
        return stream

    @property
    def has_begun(self) -> bool:
        """Whether any call has been told of."""
        return any(one.arguments.text for one in self._begun)

    def feed(self, text: str) -> list[CallPiece]:
        """What is certain after a further piece."""
        self._held += text
        told: list[CallPiece] = []
        while not self._ended and self._held:
            if (not self._begun or self._begun[-1].arguments.done) and not self._next_call():
                break
            told += self._read(self._begun[-1])
        return told

    def _next_call(self) -> bool:
        """Whether a further call has begun."""
        if self._begun and not self._several:
            self._ended = True
            return False
        name, arguments = self._head()
        if arguments is None:
            self._ended = len(self._held) >= LONGEST_HEAD
        elif name in self._schemas:
            self._begun.append(_Begun(self._ids(), name, arguments))
        else:
            self._ended = True
        return arguments is not None and not self._ended

    def _head(self) -> tuple[str, JsonObject | ParameterObject | None]:
        """Takes the beginning of a call: its name, and what reads its arguments; None: it is not there yet."""
        if self._form.head and (found := self._form.head.match(self._held, endpos=LONGEST_HEAD)):
            self._held = self._held[found.end() :]
            return next(filter(None, found.groups())).strip(), JsonObject()
        for notation in self._form.notations:
            if found := notation.head.match(self._held, endpos=LONGEST_HEAD):
                self._held, name = self._held[found.end() :], found[1].strip()
                return name, ParameterObject(notation, self._schemas.get(name, {}))
        return "", None

    def _read(self, begun: _Begun) -> list[CallPiece]:
        before = len(begun.arguments.text)
        try:
            _, self._held = begun.arguments.feed(self._held)
        except ValueError:
            self._ended = True
        added = begun.arguments.text[before:]
        return [CallPiece(begun.id, begun.name, added)] if added else []

    def matched(self, found: Sequence[Mapping[str, Any]]) -> tuple[list[CallPiece], list[Call]]:
        """The calls of the whole text, as it was read in the end, and what has not been told of them.

        KeyError, TypeError or ValueError if it does not call these tools.
        """
        pieces: list[CallPiece] = []
        calls = [call_of(one, self._schemas, self._ids) for one in found]
        for at, (call, begun) in enumerate(zip(calls, self._begun, strict=False)):
            rest = begun.arguments.rest_of(json.loads(call.arguments)) if begun.name == call.name else None
            if rest is not None:
                calls[at] = Call(begun.id, call.name, begun.arguments.text)
                pieces += [CallPiece(begun.id, call.name, rest)] if rest else []
        told = {one.id for one in self._begun}
        return [*pieces, *(CallPiece(one.id, one.name, one.arguments) for one in calls if one.id not in told)], calls


def call_of(found: Mapping[str, Any], schemas: Schemas, ids: Ids) -> Call:
    """KeyError, TypeError or ValueError if that does not call one of the tools."""
    name = found["name"]
    if name not in schemas:
        raise ValueError("no such tool")
    arguments = found["arguments"] if "arguments" in found else found.get("parameters", {})
    arguments = LENIENT.decode(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return Call(ids(), name, written(arguments))


def written(value: Any) -> str:
    """As JSON. ValueError for what JSON lacks (NaN), and for half of a surrogate pair, which is not text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    return text
