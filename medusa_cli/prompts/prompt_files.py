"""The records of a prompt file, one at a time: JSON lines, or one JSON array of them.

Only the current record of the file stays in memory, and a record's size is limited: neither a large file nor an endless
line takes much memory.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from medusa_cli.support.errors import MedusaError

MAX_RECORD = 8 << 20
"""Bytes of a line, characters of an array's element: thousands of times what fits into a prompt."""
CHUNK = 1 << 16
SPACE = " \t\r\n"


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, JSON value) of each record; `where` is FILE:LINE, or FILE with the element's number in an array.

    MedusaError with that place for text that is not UTF-8, not JSON or too long for a record.
    """
    try:
        with path.open("rb") as file:
            is_array = _first_character(file) == b"["
            file.seek(0)
            yield from _elements(file, path) if is_array else _lines(file, path)
    except OSError as error:
        raise MedusaError(f"{path}: cannot be read ({error.strerror or error})") from error


def _first_character(file: BinaryIO) -> bytes:
    start = file.read(CHUNK).removeprefix(codecs.BOM_UTF8)
    return start.lstrip(SPACE.encode())[:1]


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[str, Any]]:
    number = 0
    while line := file.readline(MAX_RECORD + 1):
        number += 1
        where = f"{path}:{number}"
        if len(line) > MAX_RECORD:
            raise MedusaError(f"{where}: a line of over {MAX_RECORD >> 20} MiB, give one conversation per line")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError:
            raise MedusaError(f"{where}: not UTF-8 text, convert the file first") from None
        if not text:
            continue
        try:
            yield where, json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MedusaError(f"{where}: not a JSON object on one line ({error})") from None


class _Window:
    """The text of a file from a moving position on."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False
        self._json = json.JSONDecoder()

    def _more(self) -> bool:
        """Doubles the text at hand, so that a long record is parsed a few times and not once per chunk."""
        if self._ended:
            return False
        data = self._file.read(max(CHUNK, len(self._text) - self._at))
        self._ended = not data
        try:
            self._text, self._at = self._text[self._at :] + self._decoder.decode(data, final=self._ended), 0
        except UnicodeDecodeError:
            raise MedusaError(f"{self._path}: not UTF-8 text, convert the file first") from None
        return True

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, character: str) -> bool:
        """Moves past `character` if it comes next."""
        found = self.peek() == character
        self._at += found
        return found

    def value(self, where: str) -> Any:
        """The next JSON value."""
        self.peek()
        while True:
            try:
                value, self._at = self._json.raw_decode(self._text, self._at)
                return value
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._at > MAX_RECORD:
                    raise MedusaError(f"{where}: no JSON value within {MAX_RECORD >> 20} MiB") from None
                if not self._more():
                    raise MedusaError(f"{where}: not a JSON value ({error})") from None


def _elements(file: BinaryIO, path: Path) -> Iterator[tuple[str, Any]]:
    window, number = _Window(file, path), 0
    window.take("[")
    while not window.take("]"):
        if number and not window.take(","):
            raise MedusaError(f"{path}: element {number} is followed by neither a comma nor the array's end")
        number += 1
        where = f"{path}: element {number}"
        yield where, window.value(where)
    if window.peek():
        raise MedusaError(f"{path}: holds more than one JSON array, give one array or one object per line")
