"""A JSON object within a text, as it comes: what is certain of it is told before its end is there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 200
"""Objects and lists within each other. Readers of JSON have a limit, too."""

_SPACE = re.compile(r"[ \t\n\r]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_BEGUN_PAIR = re.compile(r"\\u[0-9a-fA-F]{4}(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_SCALAR = re.compile(r"[^\s,:\[\]{}\"]+")
_VALID = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")


class Unfinished(ValueError):
    """More of the text is needed."""


class JsonObject:
    """Reads one object, after white space.

    Line breaks and the like within its strings, which JSON does not allow, are escaped.
    text: the object so far, always the beginning of valid JSON. done: it is whole.
    """

    def __init__(self) -> None:
        self.text = ""
        self.done = False
        self._inside: list[str] = []
        self._in_string = False
        self._next = "value"  # or "key", "first key", "first value", "colon", "comma"
        self._held = ""

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain after a further piece, and the text after the object. ValueError: it is none.

        What was certain before that is in `text`.
        """
        self._held += text
        begin = len(self.text)
        while self._held and not self.done:
            size, written = self._within_string() if self._in_string else self._between()
            if not size:
                break
            self._held, self.text = self._held[size:], self.text + written
        rest = ""
        if self.done:
            rest, self._held = self._held, ""
        return self.text[begin:], rest

    def rest_of(self, arguments: Mapping[str, Any]) -> str | None:
        """ "": it is whole and holds these. None: it does not."""
        return "" if self.done and json.loads(self.text) == arguments else None

    def _within_string(self) -> tuple[int, str]:
        """How many characters of what is held are certain, and how they are written."""
        first = self._held[0]
        if found := _PLAIN.match(self._held):
            return found.end(), found[0]
        if first == '"':
            self._in_string = False
            return 1, first
        if first != "\\":
            return 1, json.dumps(first)[1:-1]
        if found := _PAIR.match(self._held):
            return found.end(), found[0]
        if _HALF.match(self._held):
            if _BEGUN_PAIR.match(self._held):
                return 0, ""
            if len(self._held) >= len(r"\ud800"):
                raise ValueError("half of a surrogate pair")
        if found := _ESCAPE.match(self._held):
            return found.end(), found[0]
        if _BEGUN_ESCAPE.match(self._held):
            return 0, ""
        raise ValueError("no such escape")

    def _between(self) -> tuple[int, str]:
        """The same for what is in no string."""
        if found := _SPACE.match(self._held):
            return found.end(), found[0] if self._inside else ""
        first = self._held[0]
        if first in "{[" and self._next in ("value", "first value") and (first == "{" or self._inside):
            self._inside.append(first)
            self._next = "first key" if first == "{" else "first value"
            if len(self._inside) > DEEPEST:
                raise ValueError("nested too deeply")
        elif first in "}]" and self._may_end(first):
            self._inside.pop()
            self._next, self.done = "comma", not self._inside
        elif first == ":" and self._next == "colon":
            self._next = "value"
        elif first == "," and self._next == "comma":
            self._next = "key" if self._inside[-1] == "{" else "value"
        elif first == '"' and self._next != "comma" and self._next != "colon" and self._inside:
            self._in_string = True
            self._next = "colon" if "key" in self._next else "comma"
        else:
            return self._scalar()
        return 1, first

    def _may_end(self, bracket: str) -> bool:
        opened = self._inside[-1:] == ["{" if bracket == "}" else "["]
        return opened and self._next in ("comma", "first key" if bracket == "}" else "first value")

    def _scalar(self) -> tuple[int, str]:
        """A number or word, once its end is there."""
        found = _SCALAR.match(self._held)
        if found is None or "value" not in self._next or not self._inside:
            raise ValueError("not JSON")
        if found.end() == len(self._held):
            return 0, ""
        if not _VALID.fullmatch(found[0]):
            raise ValueError("no such value")
        value = json.loads(found[0])
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("no finite number")
        self._next = "comma"
        return found.end(), found[0]
