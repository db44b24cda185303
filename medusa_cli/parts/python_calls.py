"""Calls of tools that are written as Python: `name(key="value", ...)`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from medusa_cli.parts.json_text import Unfinished

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)\s*")
_QUOTE = re.compile(r"'''|\"\"\"|'|\"")
_SCALAR = re.compile(r"[-+\w.]+")
_ESCAPE = re.compile(r"\\(\r?\n|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SHORT = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", "\r\n": ""}
_WORDS = {"True": True, "False": False, "None": None}


class PythonCalls:
    """Reads calls from a text. It knows literals, and the words of JSON for them; anything else is a ValueError."""

    def __init__(self, text: str, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """schemas: of the tools, whose properties are the names of arguments that come without one."""
        self._text, self._schemas = text, schemas
        self.rest = text.lstrip()
        """What follows that which was read."""

    def listed(self) -> list[dict[str, Any]]:
        """`[name(...), name(...)]`."""
        return self._items("[", "]", self._call)

    def lines(self, end: str) -> list[dict[str, Any]]:
        """Calls on lines of their own, each perhaps within `print(...)`, up to an end, which is left."""
        calls = []
        while self.rest and not self.rest.startswith(end):
            is_printed = self.rest.startswith("print(") and "print" not in self._schemas
            if is_printed:
                self._take("print(")
            calls.append(self._call())
            if is_printed:
                self._take(")")
            self.rest = self.rest.lstrip("; \n")
        return calls

    def _take(self, mark: str) -> None:
        if not self.rest.startswith(mark):
            raise ValueError(f"no {mark}") if self.rest else Unfinished
        self.rest = self.rest[len(mark) :].lstrip()

    def _matched(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.rest)
        if found is None:
            raise ValueError("not read") if self.rest else Unfinished
        self.rest = self.rest[found.end() :].lstrip()
        return found[0]

    def _items(self, opens: str, closes: str, item: Any) -> list[Any]:
        self._take(opens)
        found = []
        while not self.rest.startswith(closes):
            found.append(item())
            if not self.rest.startswith(closes):
                self._take(",")
        self._take(closes)
        return found

    def _call(self) -> dict[str, Any]:
        name = self._matched(_NAME)
        arguments = self._items("(", ")", self._argument)
        keys = iter(self._schemas.get(name, {}).get("properties", {}))
        named = {key or next(keys, ""): value for key, value in arguments}
        if len(named) < len(arguments) or "" in named:
            raise ValueError("an argument that has no name")
        return {"name": name, "arguments": named}

    def _argument(self) -> tuple[str, Any]:
        found = _KEY.match(self.rest)
        if found is None:
            return "", self._value()
        self.rest = self.rest[found.end() :]
        return found[1], self._value()

    def _value(self) -> Any:
        if self.rest.startswith("{"):
            return dict(self._items("{", "}", self._pair))
        if self.rest.startswith(("[", "(")):
            opens = self.rest[0]
            return self._items(opens, "]" if opens == "[" else ")", self._value)
        if _QUOTE.match(self.rest):
            text = self._string()
            while _QUOTE.match(self.rest):
                text += self._string()
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        word = self._matched(_SCALAR)
        return _WORDS[word] if word in _WORDS else json.loads(word)

    def _pair(self) -> tuple[str, Any]:
        key = self._string()
        self._take(":")
        return key, self._value()

    def _string(self) -> str:
        found = _QUOTE.match(self.rest)
        if found is None:
            raise ValueError("no text") if self.rest else Unfinished
        quote = found[0]
        whole = re.compile(rf"{quote}((?:[^\\]|\\.)*?){quote}", re.DOTALL).match(self.rest)
        if whole is None:
            raise Unfinished
        self.rest = self.rest[whole.end() :].lstrip()
        return _ESCAPE.sub(_unescaped, whole[1])


def _unescaped(found: re.Match[str]) -> str:
    escape = found[1]
    if escape[0] in "xu" and len(escape) > 1:
        return chr(int(escape[1:], 16))
    return _SHORT.get(escape, escape if escape in "\\'\"" else found[0])


def as_python(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls in this form, as a list."""
    return f"[{', '.join(map(_written, calls))}]"


def _written(call: Mapping[str, Any]) -> str:
    pairs = call["arguments"].items()
    return f"{call['name']}({', '.join(f'{key}={json.dumps(value, ensure_ascii=False)}' for key, value in pairs)})"
