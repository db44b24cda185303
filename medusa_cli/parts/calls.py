"""Calls of tools within an answer, as it comes."""

from __future__ import annotations

import json
import secrets
import string
from dataclasses import dataclass
from typing import Any

from medusa_cli.parts.call_formats import Format, Schemas, Unfinished
from medusa_cli.parts.marks import begun

ID_LENGTH = 9
"""Mistral's templates refuse any other length."""


@dataclass(frozen=True)
class Call:
    """arguments: JSON text, an object."""

    id: str
    name: str
    arguments: str


class CallReader:
    """Splits a text into what is shown and calls of the tools in `schemas`. What calls no such tool stays text."""

    def __init__(self, form: Format, schemas: Schemas) -> None:
        self._form, self._schemas = form, schemas
        self._held = ""
        self._at_start = True
        self._open: str | None = None  # what the text that is held begins with
        self._after_call = False

    def feed(self, text: str) -> tuple[str, list[Call]]:
        """What is certain after a further piece: text to show, and calls."""
        return self._read(text, final=False)

    def finish(self) -> tuple[str, list[Call]]:
        """What is left."""
        return self._read("", final=True)

    def _read(self, text: str, final: bool) -> tuple[str, list[Call]]:
        self._held += text
        shown, calls = "", list[Call]()
        while True:
            if self._open is None:
                shown += self._text(final)
            if self._open is None:
                return shown, calls
            ends = self._form.opens.get(self._open, "")
            if not final and not (ends and ends in self._held):
                return shown, calls
            try:
                found, rest = self._calls()
            except Unfinished:
                if not final:
                    return shown, calls
                found, rest = [], ""
            if found:
                calls += found
                self._held, self._after_call = rest, True
            else:
                shown += self._held[: len(self._open)] or self._held
                self._held = self._held[len(self._open) :] if self._open else ""
            self._open = None

    def _text(self, final: bool) -> str:
        """The text before a call that may follow, which is held."""
        if self._after_call and not self._skip_ends(final):
            return ""
        if self._at_start:
            begin = "".join(self._held.split())
            if not final and any(start.startswith(begin) for start in self._form.starts):
                return ""
            self._at_start = False
            if begin.startswith(self._form.starts):
                self._open = ""
                return ""
        at, mark = min(
            ((at, mark) for mark in self._form.opens if (at := self._held.find(mark)) >= 0), default=(-1, "")
        )
        if at < 0:
            unsure = 0 if final else max((begun(self._held, mark) for mark in self._form.opens), default=0)
            at = len(self._held) - unsure
        else:
            self._open = mark
        shown, self._held = self._held[:at], self._held[at:]
        return shown

    def _skip_ends(self, final: bool) -> bool:
        """After a call: leaves out white space, and marks that end calls once more. False: more of it may come."""
        while True:
            self._held = self._held.lstrip()
            ends = [mark for mark in self._form.opens.values() if mark]
            if not final and any(mark.startswith(self._held) for mark in ends if mark != self._held):
                return False
            found = next((mark for mark in ends if self._held.startswith(mark)), None)
            if found is None:
                self._after_call = not self._held
                return True
            self._held = self._held.removeprefix(found)

    def _calls(self) -> tuple[list[Call], str]:
        """The calls at the beginning of the text that is held, and what follows them; none: it is text."""
        try:
            found, rest = self._form.read(self._held, self._schemas)
            return [call_of(one, self._schemas) for one in found], rest
        except Unfinished:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return [], ""


def call_of(found: dict[str, Any], schemas: Schemas) -> Call:
    """KeyError, TypeError or ValueError if that does not call one of the tools."""
    name = found["name"]
    if name not in schemas:
        raise ValueError("no such tool")
    arguments = found["arguments"] if "arguments" in found else found.get("parameters", {})
    arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return Call(new_id(), name, written(arguments))


def calls_in(text: str, tool: str, schemas: Schemas) -> list[Call]:
    """The call of a tool with these arguments; none if there is no such tool, or they are not JSON."""
    try:
        return [call_of({"name": tool, "arguments": text.strip() or "{}"}, schemas)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def written(value: Any) -> str:
    """As JSON. ValueError for what JSON lacks (NaN), and for half of a surrogate pair, which is not text."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode("utf-8")
    return text


def new_id() -> str:
    """The id of a call: letters and digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH))
