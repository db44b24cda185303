"""Terminal I/O of the chat: line input with history, streamed output. No conversation logic."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from medusa_cli.support import console, paths, wrapping
from medusa_cli.support.errors import print_error, visible
from medusa_cli.support.reading import ReadingLine
from medusa_cli.support.shown import ShownAnswer

if TYPE_CHECKING:
    from prompt_toolkit.history import History

PROMPT = "> "
CONTINUED = ". "
PLACEHOLDER = "Send a message (/help for help)"
DRAFTED = "\x1b[36m"


class PlainReader:
    """Lines of standard input, for pipes and terminals without cursor control."""

    def __init__(self, stream: BinaryIO, interactive: bool) -> None:
        self.stream = stream
        self.interactive = interactive

    def read(self, continued: bool = False) -> str:
        """The next line without its end; bytes that are not UTF-8 are replaced.

        EOFError at the end of input, KeyboardInterrupt on Ctrl-C.
        """
        if self.interactive:
            print(CONTINUED if continued else PROMPT, end="", file=sys.stderr, flush=True)
        try:
            line = self.stream.readline()
        except KeyboardInterrupt:
            if self.interactive:
                print(file=sys.stderr)
            raise
        if not line:
            if self.interactive:
                print(file=sys.stderr)
            raise EOFError
        return line.decode("utf-8", "replace").rstrip("\r\n")


class PromptReader:
    """prompt_toolkit's input line: editing, history across chats, multi-line paste, Tab for commands."""

    interactive = True

    def __init__(self, commands: Sequence[str]) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
        from prompt_toolkit.output import ColorDepth, create_output
        from prompt_toolkit.shortcuts import CompleteStyle

        bindings = KeyBindings()

        @bindings.add("c-c")
        def _(event: KeyPressEvent) -> None:
            if event.current_buffer.text:
                event.current_buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt)

        plain = not console.styled(sys.stderr)
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=WordCompleter(sorted(commands), sentence=True),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,
            enable_history_search=False,
            key_bindings=bindings,
            output=create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr),
            color_depth=ColorDepth.DEPTH_1_BIT if plain else None,
        )

    def read(self, continued: bool = False) -> str:
        """Like PlainReader's. Ctrl-C with text on the line only clears it."""
        from prompt_toolkit.formatted_text import FormattedText

        placeholder = FormattedText([("fg:ansibrightblack", "" if continued else PLACEHOLDER)])
        line: str = self._session.prompt(CONTINUED if continued else PROMPT, placeholder=placeholder)
        return line


Reader = PlainReader | PromptReader
"""Where lines come from."""


def _history() -> History:
    """History in the state folder, readable by its owner only; in memory when that folder cannot be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path: Path = paths.state_dir() / "history"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600))
        return FileHistory(str(path))
    return InMemoryHistory()


def open_reader(commands: Sequence[str]) -> Reader:
    """The best reader for this standard input."""
    if not sys.stdin.isatty():
        return PlainReader(sys.stdin.buffer, interactive=False)
    if os.environ.get("TERM") == "dumb" or not (sys.stdout.isatty() or sys.stderr.isatty()):
        return PlainReader(sys.stdin.buffer, interactive=True)
    return PromptReader(commands)


class TerminalScreen:
    """Answers on stdout; notes and statistics on stderr, and those only for a person at a terminal.

    reading: shows that person how much of a prompt is read; ended before anything else is shown.
    """

    def __init__(self, interactive: bool, color_drafts: bool) -> None:
        self._person = interactive and sys.stderr.isatty()
        self.reading = ReadingLine(self._person)
        self._color = color_drafts and console.styled(sys.stdout)
        self._messages = console.messages()
        self._answer = ShownAnswer(empty_line=True)

    def piece(self, text: str, drafted: bool, thinking: str) -> None:
        """A part of the answer, and of the thinking before it."""
        self._answer.piece(text, thinking, DRAFTED if drafted and self._color else "")

    def end_answer(self, stats: str | None) -> None:
        """Closes the answer's line; stats is the muted last line, if one is to be shown."""
        self._answer.end()
        if stats and self._person and sys.stdout.isatty():
            self._messages.print(stats, style="dim", markup=False)
            self._messages.print()

    def note(self, text: str) -> None:
        """A message for a person at a terminal; nothing is shown to a program."""
        if self._person:
            self._messages.print(text, style="dim", markup=False)

    def show(self, text: str) -> None:
        """The output of a command (stderr)."""
        if self._person:
            self._messages.print(text, markup=False)
        else:
            print(visible(text), file=sys.stderr, flush=True)

    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        """The same in two columns, the right one wrapped within itself."""
        left = max(len(name) for name, _ in rows) + 2
        width = self._messages.width if self._person else 0
        self.show("\n".join(name.ljust(left) + wrapping.fill(text, width, left) for name, text in rows))

    def error(self, text: str) -> None:
        """What went wrong, one line (stderr)."""
        print_error(text)
