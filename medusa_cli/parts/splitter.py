"""From the tokens of an answer to its parts, as they come."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from medusa_cli.parts.call_formats import HERMES, Format, Schemas, format_of
from medusa_cli.parts.calls import ArgumentsReader, CallReader
from medusa_cli.parts.marks import AROUND, Marks, begun, marks_of
from medusa_cli.parts.records import Ids, Parts
from medusa_cli.parts.sections import Section, sections


@dataclass(frozen=True)
class Grammar:
    """How the answers of a model are read. marks: None if it does not think. names: of tokens that are marks."""

    marks: Marks | None = None
    calls: Format = HERMES
    names: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, template: str | None, tokenize: Callable[[str], Sequence[int]]) -> Grammar:
        """That of a chat template and a vocabulary."""
        marks = marks_of(template, lambda mark: len(tokenize(mark)) == 1)
        calls = format_of(template or "")
        names = {found[0]: mark for mark in calls.marks if len(found := tokenize(mark)) == 1}
        return cls(marks, calls, names | {tokenize(mark)[0]: mark for mark in (marks.tokens if marks else ())})


PLAIN = Grammar()
"""Everything is text."""


class Splitter:
    """Reads one answer. stop: texts that end it, if they are not in its thinking; what comes after is left out.

    tools: those that may be called, with the schemas of their arguments. stopped: a text of `stop` came.
    """

    def __init__(
        self,
        grammar: Grammar,
        prompt: str,
        stop: Sequence[str] = (),
        tools: Schemas | None = None,
        ids: Ids | None = None,
    ) -> None:
        """prompt: its end, as text with all marks. ids: of the calls."""
        self._grammar, self._schemas, self._ids = grammar, tools or {}, ids or Ids()
        self._sections = sections(grammar.marks, prompt)
        self._calls = CallReader(grammar.calls, self._schemas, self._ids) if tools else None
        self._arguments: ArgumentsReader | None = None  # those that are being written
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    @property
    def thinking(self) -> bool:
        """Whether what comes next is thinking."""
        return self._sections.thinking

    @property
    def answering(self) -> bool:
        """Whether what comes next is the answer."""
        return self._sections.answering

    def feed(self, text: str, token: int = -1) -> Parts:
        """The parts that are certain after a further token. text: what it wrote."""
        if (mark := self._grammar.names.get(token)) is not None:
            around = self._grammar.marks is not None and mark in self._grammar.marks.tokens
            text = f"{AROUND}{mark}{AROUND}" if around else mark
        return self._parts(self._sections.feed(text))

    def end_thinking(self, ending: str) -> Parts:
        """The thinking ends here, with that text, which is no part of the answer. Returns what is left of it."""
        return self._parts(self._sections.end_thinking(ending))

    def finish(self) -> Parts:
        """What is left at the end."""
        parts = self._parts(self._sections.finish())
        held, self._held = self._held, ""
        parts += self._said(held)
        if self._calls is not None:
            parts += self._calls.finish()
        return parts

    def _parts(self, found: Sequence[Section]) -> Parts:
        parts = Parts()
        for one in found:
            if one.is_thinking:
                parts += Parts(thinking=one.text)
            else:
                parts += self._argued(one) if one.tool else self._said(self._unstopped(one.text))
        return parts

    def _argued(self, one: Section) -> Parts:
        """What a tool is called with."""
        reader = self._arguments or ArgumentsReader(one.tool, self._schemas, self._ids)
        self._arguments = reader if one.is_piece else None
        parts = reader.feed(one.text) if one.is_piece else reader.finish(one.text)
        return dataclasses.replace(parts, text="") + self._said(self._unstopped(parts.text))

    def _said(self, text: str) -> Parts:
        return Parts(text) if self._calls is None else self._calls.feed(text)

    def _unstopped(self, text: str) -> str:
        """The part of it that is certainly before any text that stops."""
        if not self._stop or self.stopped:
            return "" if self.stopped else text
        self._held += text
        at = min((at for stop in self._stop if (at := self._held.find(stop)) >= 0), default=-1)
        self.stopped = at >= 0
        sure = at if self.stopped else len(self._held) - max(begun(self._held, stop) for stop in self._stop)
        text, self._held = self._held[:sure], "" if self.stopped else self._held[sure:]
        return text
