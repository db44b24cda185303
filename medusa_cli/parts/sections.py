"""An answer's thinking apart from the rest, in pieces as they come."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

from medusa_cli.parts.marks import CHANNEL, MESSAGE, START, Channels, Marks, begun, marked, plain

QUOTES = "`'\""


@dataclass(frozen=True)
class Section:
    """A part of a thinking, or of the rest.

    tool: whose arguments the text is, if the format says so. They come by pieces, and then as a whole.
    """

    text: str
    is_thinking: bool = False
    tool: str = ""
    is_piece: bool = False


class Sections(Protocol):
    """What the readers of all families have."""

    thinking: bool
    """Whether what comes next is thinking, as far as one knows."""

    @property
    def answering(self) -> bool:
        """Whether what comes next is the answer: no thinking, no mark, no arguments of a tool."""

    def feed(self, text: str) -> list[Section]:
        """What is certain after a further piece."""

    def end_thinking(self, ending: str) -> list[Section]:
        """The thinking ends here, with that text. What is left of it."""

    def finish(self) -> list[Section]:
        """What is left."""


def sections(marks: Marks | None, prompt: str) -> Sections:
    """The reader of an answer to a prompt with that end."""
    if marks is None:
        return Undivided()
    return ChannelSections(marks, prompt) if isinstance(marks, Channels) else ThinkingFirst(marks, prompt)


class Undivided:
    """A model that does not think."""

    thinking = False
    answering = True

    def feed(self, text: str) -> list[Section]:
        return [Section(text)] if text else []

    def end_thinking(self, ending: str) -> list[Section]:
        return []

    def finish(self) -> list[Section]:
        return []


class ThinkingFirst:
    """An answer may begin with one thinking between marks. White space around both is left out.

    Later marks are text, and so is one in quotes or backticks.
    """

    def __init__(self, marks: Marks, prompt: str) -> None:
        self._opens, self._closes = marks.written(marks.opens) + marks.kind, marks.written(marks.closes)
        self.thinking = marks.is_open(prompt)
        self._undecided = not self.thinking
        self._has_thought = prompt.rstrip().endswith(marks.closes)  # or was kept from it
        self._between = self.thinking  # the white space before or after a thinking
        self._held = ""
        self._last = ""

    @property
    def answering(self) -> bool:
        return not self.thinking and (not self._undecided or self._has_thought)

    def feed(self, text: str) -> list[Section]:
        self._held += text
        if self._undecided and not self._decide():
            return []
        found = self._thinking(final=False) if self.thinking else []
        return found if self.thinking else [*found, *self._rest()]

    def _decide(self) -> bool:
        begin = self._held.lstrip()
        if len(begin) < len(self._opens) and self._opens.startswith(begin):
            return False
        self._undecided = False
        if begin.startswith(self._opens):
            self._held, self.thinking, self._between = begin[len(self._opens) :], True, True
        return True

    def _thinking(self, final: bool) -> list[Section]:
        self._skip_space()
        at = self._end(final)
        if at >= 0:
            text, self._held = self._held[:at].rstrip(), self._held[at + len(self._closes) :]
            self.thinking, self._between = False, True
            return [Section(plain(text), True)] if text else []
        text = self._held if final else self._held[: len(self._held) - self._unsure()]
        text = text.rstrip()
        self._held, self._last = self._held[len(text) :], text[-1:] or self._last
        return [Section(plain(text), True)] if text else []

    def _end(self, final: bool) -> int:
        """Where the mark is that ends the thinking; -1: not there yet."""
        at = self._held.find(self._closes)
        while at >= 0:
            before, after = self._held[at - 1 : at] if at else self._last, self._held[at + len(self._closes) :][:1]
            if not before or before not in QUOTES or (after != before and (after or final)):
                return at
            if not after:
                return -1
            at = self._held.find(self._closes, at + 1)
        return -1

    def _unsure(self) -> int:
        """Characters at the end that may belong to the mark, with the quote before it."""
        at = self._held.find(self._closes)
        while at >= 0 and at + len(self._closes) < len(self._held):
            at = self._held.find(self._closes, at + 1)
        if at >= 0:
            return len(self._held) - max(at - 1, 0)
        return begun(self._held, self._closes)

    def _rest(self) -> list[Section]:
        self._skip_space()
        text, self._held = self._held, ""
        return [Section(plain(text))] if text else []

    def _skip_space(self) -> None:
        if self._between:
            self._held = self._held.lstrip()
            self._between = not self._held

    def end_thinking(self, ending: str) -> list[Section]:
        found = self._thinking(final=True)
        self._held, self.thinking, self._between = "", False, True
        return found

    def finish(self) -> list[Section]:
        if self.thinking:
            found = self._thinking(final=True)
            return found if self.thinking else [*found, *self._rest()]
        return self._rest()


class ChannelSections:
    """Harmony: `<|channel|>analysis<|message|>thinking<|end|><|start|>assistant<|channel|>final<|message|>text`."""

    def __init__(self, marks: Marks, prompt: str) -> None:
        self._marked = functools.partial(marked, marks=marks)
        self._marks = {marks.written(mark): mark for mark in marks.names}
        self._header: str | None = ""
        self._tool, self._arguments = "", ""
        self._held = ""
        self.thinking = False
        _, start, after = prompt.rpartition(START)
        if start:
            self.feed(self._marked(after))
        self._of_prompt = self._header or ""

    @property
    def answering(self) -> bool:
        return self._header is None and not self.thinking and not self._tool

    def feed(self, text: str) -> list[Section]:
        self._held += text
        found: list[Section] = []
        while True:
            at, written = min(((at, one) for one in self._marks if (at := self._held.find(one)) >= 0), default=(-1, ""))
            if at < 0:
                break
            self._take(self._held[:at], found)
            self._held = self._held[at + len(written) :]
            self._mark(self._marks[written], found)
        sure = len(self._held) - max(begun(self._held, one) for one in self._marks)
        self._take(self._held[:sure], found)
        self._held = self._held[sure:]
        return found

    def end_thinking(self, ending: str) -> list[Section]:
        return self.feed(self._marked(ending))

    def _take(self, text: str, found: list[Section]) -> None:
        if self._header is not None:
            self._header += text
        elif self._tool:
            self._arguments += text
            found.append(Section(plain(text), tool=self._tool, is_piece=True))
        elif text:
            found.append(Section(plain(text), self.thinking))

    def _mark(self, mark: str, found: list[Section]) -> None:
        if mark == MESSAGE:
            header, self._header = self._header or "", None
            recipient = header.partition("to=functions.")[2].split()
            self._tool = recipient[0].partition(CHANNEL)[0] if recipient else ""
            self.thinking = header.rpartition(CHANNEL)[2].strip().startswith("analysis") and not self._tool
        elif self._header is None:
            self._end_message(found)
        if mark == CHANNEL:
            self._header = (self._header or "") + CHANNEL

    def _end_message(self, found: list[Section]) -> None:
        if self._tool:
            found.append(Section(plain(self._arguments), tool=self._tool))
        self._header, self._tool, self._arguments, self.thinking = "", "", "", False

    def finish(self) -> list[Section]:
        found: list[Section] = []
        self._take(self._held, found)
        self._held = ""
        if self._header is None:
            self._end_message(found)
        elif (left := self._header.removeprefix(self._of_prompt)) and CHANNEL not in left:  # no message at all
            found.append(Section(plain(left)))
        return found
