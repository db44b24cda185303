"""Calls of tools within an answer, as it comes."""

from __future__ import annotations

from medusa_cli.parts.call_formats import Format, Schemas
from medusa_cli.parts.call_stream import CallStream
from medusa_cli.parts.json_text import Unfinished
from medusa_cli.parts.marks import begun
from medusa_cli.parts.records import CallPiece, Ids, Parts

NO_CALL = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What readers of a format raise for texts that are no calls."""


class CallReader:
    """Splits a text into what is shown and calls of the tools in `schemas`. What calls no such tool stays text."""

    def __init__(self, form: Format, schemas: Schemas, ids: Ids) -> None:
        self._form, self._schemas, self._ids = form, schemas, ids
        self._held = ""
        self._at_start = True
        self._open: str | None = None  # what the text that is held begins with
        self._stream = CallStream(form, schemas, ids)
        self._after_call = False
        self._broken = False  # a call that had begun

    def feed(self, text: str) -> Parts:
        """What is certain after a further piece."""
        return self._read(text, final=False)

    def finish(self) -> Parts:
        """What is left."""
        return self._read("", final=True)

    def _read(self, text: str, final: bool) -> Parts:
        self._held += text
        parts = Parts(call_pieces=self._streamed(text))
        while True:
            if self._open is None:
                parts += Parts(self._text(final))
                if self._open is None:
                    return parts
                self._stream = CallStream(self._form, self._schemas, self._ids, self._open)
                parts += Parts(call_pieces=self._streamed(self._held))
            ends = self._form.opens.get(self._open, "")
            if not final and not (ends and self._held.find(ends, len(self._open)) >= 0):
                return parts
            try:
                found, rest = self._calls()
            except Unfinished:
                if not final:
                    return parts
                found, rest = Parts(), ""
            if found.calls:
                parts += found
                self._held, self._after_call = rest, True
            else:
                self._broken = self._broken or self._stream.has_begun
                parts += Parts(self._held[: len(self._open)] or self._held)
                self._held = self._held[len(self._open) :] if self._open else ""
            self._open = None

    def _streamed(self, text: str) -> tuple[CallPiece, ...]:
        """Pieces of calls that are not whole yet. After one that broke off, calls come whole."""
        return () if self._open is None or self._broken else tuple(self._stream.feed(text))

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
            opens, closes = self._form.opens, self._form.opens.values()
            ends = [mark for mark in closes if mark and not any(one.startswith(mark) for one in opens)]
            if not final and any(mark.startswith(self._held) for mark in ends if mark != self._held):
                return False
            found = next((mark for mark in ends if self._held.startswith(mark)), None)
            if found is None:
                self._after_call = not self._held
                return True
            self._held = self._held.removeprefix(found)

    def _calls(self) -> tuple[Parts, str]:
        """The calls at the beginning of the text that is held, and what follows them; none: it is text."""
        try:
            found, rest = self._form.read(self._held, self._schemas)
            pieces, calls = self._stream.matched(found)
            return Parts(calls=tuple(calls), call_pieces=tuple(pieces)), rest
        except Unfinished:
            raise
        except NO_CALL:
            return Parts(), ""


class ArgumentsReader:
    """Reads the arguments of a tool that the format has named before. What are none is text."""

    def __init__(self, tool: str, schemas: Schemas, ids: Ids) -> None:
        self._tool = tool
        self._stream = CallStream.of_arguments(tool, schemas, ids)

    def feed(self, text: str) -> Parts:
        """What is certain after a further piece."""
        return Parts(call_pieces=tuple(self._stream.feed(text)))

    def finish(self, whole: str) -> Parts:
        """What is left, once the whole text is there."""
        try:
            pieces, calls = self._stream.matched([{"name": self._tool, "arguments": whole.strip() or "{}"}])
        except NO_CALL:
            return Parts(whole)
        return Parts(calls=tuple(calls), call_pieces=tuple(pieces))
