"""Calls of tools before they are whole: their names, and their arguments by pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from medusa_cli.parts.call_formats import LENIENT, Format, Schemas
from medusa_cli.parts.json_text import JsonObject
from medusa_cli.parts.records import Call, CallPiece, new_id

LONGEST_HEAD = 1000
"""Characters from the beginning of a call to its arguments. Where there are more, the call comes whole."""


@dataclass
class _Begun:
    name: str
    arguments: JsonObject = field(default_factory=JsonObject)
    id: str = field(default_factory=new_id)


class CallStream:
    """Reads a text that calls tools, if the format writes arguments as JSON.

    A call begins when its name, a tool's, and the first bracket of its arguments are there. What its arguments are in
    the end, the format's own reader decides: `matched`.
    """

    def __init__(self, schemas: Schemas, head: re.Pattern[str] | None, several: bool = True) -> None:
        """head: of a call, up to the first bracket of its arguments. several: others may follow the first one."""
        self._schemas, self._head, self._several = schemas, head, several
        self._held = ""
        self._begun: list[_Begun] = []
        self._ended = head is None

    @classmethod
    def of_format(cls, form: Format, schemas: Schemas, opens: str) -> CallStream:
        """For a text that begins with one of the format's marks, or with "", none."""
        return cls(schemas, form.head, not (form.one_each and opens))

    @classmethod
    def of_arguments(cls, tool: str, schemas: Schemas) -> CallStream:
        """For a text that is nothing but arguments."""
        stream = cls(schemas, re.compile(r"\s*(?=\{)"), several=False)
        stream._ended = not stream._begin(tool)
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
        found = self._head.match(self._held, endpos=LONGEST_HEAD) if self._head else None
        if found is None:
            self._ended = len(self._held) >= LONGEST_HEAD
            return False
        self._held = self._held[found.end() :]
        self._ended = not self._begin(next(filter(None, found.groups())).strip())
        return not self._ended

    def _begin(self, name: str) -> bool:
        if name in self._schemas:
            self._begun.append(_Begun(name))
        return name in self._schemas

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
        calls = [call_of(one, self._schemas) for one in found]
        for at, call in enumerate(calls):
            begun = self._begun[at] if at < len(self._begun) else None
            if begun is not None and _is_that(begun, call):
                calls[at] = Call(begun.id, call.name, begun.arguments.text)
            else:
                pieces.append(CallPiece(call.id, call.name, call.arguments))
        return pieces, calls


def _is_that(begun: _Begun, call: Call) -> bool:
    arguments = begun.arguments
    return arguments.done and begun.name == call.name and json.loads(arguments.text) == json.loads(call.arguments)


def call_of(found: Mapping[str, Any], schemas: Schemas) -> Call:
    """KeyError, TypeError or ValueError if that does not call one of the tools."""
    name = found["name"]
    if name not in schemas:
        raise ValueError("no such tool")
    arguments = found["arguments"] if "arguments" in found else found.get("parameters", {})
    arguments = LENIENT.decode(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return Call(new_id(), name, written(arguments))


def written(value: Any) -> str:
    """As JSON. ValueError for what JSON lacks (NaN), and for half of a surrogate pair, which is not text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    return text
