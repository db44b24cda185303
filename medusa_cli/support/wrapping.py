"""Breaks lines between words on a terminal while their text is still coming."""

from __future__ import annotations

import functools
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import IO

RESET = "\x1b[0m"
_SAVE = "\x1b7"
_BACK = "\x1b8\x1b[K"
"""Back to where the cursor was saved, and nothing right of it."""

_TAB = 8
_NARROWEST = 20
_JOINER, _WIDENER = "\u200d", "\ufe0f"
_NEVER_FIRST = frozenset(".,;:!?%、。・…ー々")

Run = tuple[str, str]
"""A text and the escape sequence of its colour, empty for none."""


def columns(stream: IO[str]) -> int:
    """The width of the terminal behind `stream`; 0 if there is none, or it does not tell its size."""
    try:
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):
        return 0


def styled(stream: IO[str]) -> bool:
    """True when `stream` is a terminal that may get colours and attributes."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def on_terminal(stream: IO[str]) -> Wrap:
    """Wraps what is written to `stream`; changes nothing if that is not a terminal."""
    return Wrap(lambda: columns(stream), hold=os.environ.get("TERM") == "dumb")


def fill(text: str, width: int, column: int = 0) -> str:
    """All of `text` in lines of `width` columns; as it is when the width is 0. column: where its lines begin."""
    wrap = Wrap(lambda: width, hold=True, column=column)
    return wrap.piece(text) + wrap.end()


@functools.lru_cache(maxsize=4096)
def cells(character: str) -> int:
    """Columns of a character. Where terminals disagree, the largest number."""
    if character.isascii():
        return 1
    from wcwidth import wcwidth

    return max(wcwidth(character), unicodedata.category(character) == "Mc")


class Wrap:
    """`piece` takes text as it comes and returns what to write for it; `end` closes the text.

    A word is shown as it comes. When it runs into the edge, it is erased and begins again on the next line. A word
    longer than a line breaks anywhere. Spaces at the edge are left out. The terminal itself breaks the lines of fenced
    code and long words in ASCII, so that copied code and addresses are whole.

    hold: a word is shown only once it has ended, without escape sequences. column: where the text and its lines begin.

    The cursor is never right of `_column`: otherwise the terminal would break lines, too.
    """

    def __init__(self, width: Callable[[], int], hold: bool = False, column: int = 0) -> None:
        self._current_width = width
        self._hold = hold
        self._indent = column
        self._width = 0
        self._out: list[Run] = []
        self._word: list[Run] = []
        self._last = ""
        self._column = 0
        self._begin_text()

    def piece(self, text: str, colour: str = "") -> str:
        """What to write for the next part of the text."""
        width = self._current_width()
        if width != self._width:
            # The saved position no longer exists, and a line wider than the window is full.
            self._column = min(self._column, width)
            self._end_word()
            self._width = width
        for character in text if width else ():
            self._put(character, colour)
        if not width:
            self._out.append((text, colour))
        return self._take()

    def end(self) -> str:
        """What is still to be written. The next piece begins a new text at the left edge."""
        self._end_word()
        self._begin_text()
        return self._take()

    def _begin_text(self) -> None:
        self._fence = ""
        self._begin_line(self._indent)

    def _begin_line(self, column: int) -> None:
        self._line: list[str] = []
        self._column = self._margin = self._start = column

    def _end_word(self) -> None:
        if self._hold:
            self._out += self._word
        self._word = []
        self._last = ""
        self._start = self._column

    def _take(self) -> str:
        out, self._out = self._out, []
        return _coloured(out)

    def _put(self, character: str, colour: str) -> None:
        if character == "\n":
            self._end_word()
            self._out.append((character, colour))
            self._fence = _fence_after("".join(self._line), self._fence)
            self._begin_line(0)
            return
        self._line.append(character)
        if self._fence:
            self._out.append((character, colour))
        elif character in " \t":
            self._put_space(character, colour)
        else:
            self._put_letter(character, colour)

    def _put_space(self, character: str, colour: str) -> None:
        self._end_word()
        end = self._column + (1 if character == " " else _TAB - self._column % _TAB)
        if end < self._width or (end == self._width and character == " "):
            self._out.append((character, colour))
        self._column = self._start = min(end, self._width)

    def _put_letter(self, character: str, colour: str) -> None:
        joined = self._joins(character)
        if not joined and _may_break(self._last, character):
            self._end_word()
        width = cells(character)
        if character == _WIDENER and self._last and cells(self._last) == 1:
            width = 1
        while self._column + width > self._width and self._break(character, joined):
            pass
        if self._start > self._margin and not self._word and not self._hold:
            self._out.append((_SAVE, ""))
        self._show(character, colour)
        self._column = min(self._column + width, self._width)
        self._last = character

    def _joins(self, character: str) -> bool:
        """Whether a character belongs to the one before it, so that no line can end between them."""
        flag = all("\U0001f1e6" <= c <= "\U0001f1ff" for c in (self._last or " ", character)) and len(self._word) == 1
        mark = not cells(character) or unicodedata.category(character) == "Mc"
        return mark or flag or self._last == _JOINER or "\U0001f3fb" <= character <= "\U0001f3ff"

    def _break(self, character: str, joined: bool) -> bool:
        """Makes room for `character` on the next line; False if there is none there, either."""
        margin = self._indent if self._width - self._indent >= _NARROWEST else 0
        if self._start > self._margin:
            # The word moves to the next line, with what is known of it.
            if self._word and not self._hold:
                self._out.append((_BACK, ""))
            self._out.append(("\n" + " " * margin, ""))
            if not self._hold:
                self._out += self._word
            self._column += margin - self._start
            self._start = self._margin = margin
            return True
        if joined or self._column <= self._margin:
            return False
        if character.isascii() and all(text.isascii() for text, _ in self._word):
            margin = 0
        else:
            self._show("\n" + " " * margin, "")
        self._column = self._start = self._margin = margin
        return True

    def _show(self, text: str, colour: str) -> None:
        self._word.append((text, colour))
        if not self._hold:
            self._out.append((text, colour))


def _coloured(runs: Iterable[Run]) -> str:
    parts = []
    for colour, group in itertools.groupby(runs, key=lambda run: run[1]):
        text = "".join(part for part, _ in group)
        parts.append(f"{colour}{text}{RESET}" if colour and text else text)
    return "".join(parts)


def _may_break(before: str, after: str) -> bool:
    """Whether a line may end between two characters without a space: next to wide ones, as their scripts allow."""
    if not before or unicodedata.category(before) in ("Ps", "Pi") or unicodedata.category(after) in ("Pe", "Pf"):
        return False
    if unicodedata.normalize("NFKC", after) in _NEVER_FIRST:
        return False
    return before == _WIDENER or cells(before) == 2 or cells(after) == 2


def _fence_after(line: str, fence: str) -> str:
    """The fence of the code that continues after `line`, empty for none. fence: the one that was open before it."""
    stripped = line.strip()
    if fence:
        return "" if stripped.startswith(fence) and not stripped.strip(fence[0]) else fence
    opening = re.match(r"(`{3,})[^`]*$|(~{3,})", stripped)
    return (opening[1] or opening[2]) if opening else ""
