"""Consoles: data goes to stdout, messages to stderr. NO_COLOR switches every style off."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from rich.console import Console

# Control characters a model has no business sending to a terminal: escape sequences begin with one.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Model output without control characters other than tab and newline, safe to show on a terminal."""
    return _CONTROL.sub("", text)


def styled(stream: TextIO) -> bool:
    """True when `stream` is a terminal that may get colours and attributes."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def messages() -> Console:
    """Console for people: stderr, no markup highlighting of numbers and paths."""
    return _console(sys.stderr)


def data() -> Console:
    """Console for reports on stdout; when stdout is not a terminal, lines are never wrapped."""
    return _console(sys.stdout)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else 200
    console = Console(file=stream, highlight=False, width=width)
    if not styled(stream):
        console = Console(file=stream, highlight=False, width=width, color_system=None)
    return console
