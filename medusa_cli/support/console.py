"""Consoles: data goes to stdout, messages to stderr. NO_COLOR switches every style off."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from medusa_cli.support import wrapping
from medusa_cli.support.errors import visible
from medusa_cli.support.wrapping import styled as styled

# Control characters that a model has no business sending to a terminal: escape sequences begin with one.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Model output without control characters other than tab and newline, safe to show on a terminal."""
    return _CONTROL.sub("", text)


def print_json(content: Any) -> None:
    """One object on one line of stdout; characters that could steer a terminal are escaped."""
    text = json.dumps(content, ensure_ascii=False)
    if not text.isprintable():
        text = "".join(one if visible(one) == one else json.dumps(one)[1:-1] for one in text)
    print(text, flush=True)


def messages() -> Console:
    """Console for people: stderr, no markup highlighting of numbers and paths."""
    return _console(sys.stderr)


def data() -> Console:
    """Console for reports on stdout; when stdout is not a terminal, lines are never wrapped."""
    return _console(sys.stdout)


class _Console(Console):
    """Breaks lines of text between words on a terminal, and only there. Rich lays out everything else that is printed.

    A text after a label (markup, end="") continues below its own beginning. no_wrap: the terminal breaks the line.
    Words from files cannot steer the terminal: the only escape sequences are those of styles.
    """

    _column = 0

    def print(self, *objects: Any, **options: Any) -> None:
        if len(objects) == 1 and isinstance(objects[0], str):
            text, width = visible(objects[0]), wrapping.columns(self.file)
            marked = options.get("markup", True) and "[" in text
            if not marked and not options.get("no_wrap"):
                text = wrapping.fill(text, width, self._column)
            options["soft_wrap"] = not (marked and width)
            objects = (text,)
            self._column = Text.from_markup(text).cell_len if marked and options.get("end") == "" else 0
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def _console(stream: TextIO) -> Console:
    width = None if stream.isatty() else 200
    return _Console(file=stream, highlight=False, width=width, color_system="auto" if styled(stream) else None)
