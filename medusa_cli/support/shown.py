"""Answers on standard output, as they come."""

from __future__ import annotations

import sys

from medusa_cli.support import console, wrapping

DIM = "\x1b[2m"
BEFORE, AFTER = "Thinking...\n", "\n...done thinking.\n\n"


class ShownAnswer:
    """At a terminal, lines break between words, and the thinking stands dimmed before the answer. A program gets the
    answer alone. empty_line: an answer without a character has one, too."""

    def __init__(self, empty_line: bool) -> None:
        self._tty = sys.stdout.isatty()
        self._dim = DIM if console.styled(sys.stdout) else ""
        self._wrap = wrapping.on_terminal(sys.stdout)
        self._thinks = False
        self._last = self._before = "" if empty_line else "\n"

    def piece(self, text: str, thinking: str = "", style: str = "") -> None:
        """A part of the thinking, and then of the answer. style: the escape sequence of the latter."""
        if thinking and self._tty:
            self._write(thinking if self._thinks else BEFORE + thinking, self._dim)
            self._thinks = True
        if text:
            self._end_thinking()
            self._write(text, style)

    def _end_thinking(self) -> None:
        if self._thinks:
            self._write(AFTER, self._dim)
            self._thinks = False

    def _write(self, text: str, style: str) -> None:
        text = console.printable(text) if self._tty else text
        if text:
            self._last = text[-1]
            sys.stdout.write(self._wrap.piece(text, style))
            sys.stdout.flush()

    def end(self) -> None:
        """Closes the line."""
        self._end_thinking()
        sys.stdout.write(self._wrap.end())
        if self._last != "\n":
            sys.stdout.write("\n")
        sys.stdout.flush()
        self._last = self._before
