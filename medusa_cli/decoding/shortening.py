"""The oldest turns leave a prompt that does not fit the context: one rule for chats, programs and the server.

A turn is a user's message with everything up to the next one: answers, tool calls and their results.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from medusa_cli.decoding.prompts import Message
from medusa_cli.support.errors import OptionError

ANSWER_SHARE = 8
"""1/ANSWER_SHARE of the context is kept free for an answer."""
KEPT_SHARE = 2
"""A cut leaves 1/KEPT_SHARE of the context in use, so that the next one is far away."""
MANY_BYTES = 8
"""A prompt with more bytes per token of the context is hardly worth trying as it is."""
INSTRUCTIONS = ("system", "developer")
"""Roles of messages that stay if a conversation begins with them."""


class MessageTooLong(OptionError):
    """A message so long that too much would have to leave for it."""


@dataclass(frozen=True)
class Room:
    """What a context of n_ctx tokens has room for. most: tokens that the answer may get; -1: any number.

    begun: tokens that the answer already has.
    """

    n_ctx: int
    most: int = -1
    begun: int = 0

    @property
    def answer(self) -> int:
        """Tokens that stay free for the rest of the answer."""
        free = self.n_ctx // ANSWER_SHARE
        return max(min(free, self.most) if self.most >= 0 else free, 1)

    @property
    def kept(self) -> int:
        """The most tokens of a prompt after a cut."""
        return self.n_ctx // KEPT_SHARE

    def fits(self, tokens: float) -> bool:
        """Whether a prompt of that many tokens needs no cut."""
        return tokens + self.begun + self.answer <= self.n_ctx

    def first_kept(self, starts: Sequence[int], size: Callable[[int], float]) -> int:
        """Index in `starts` of the first turn that a cut keeps; len(starts) if even the last turn is too large.

        size: tokens of the prompt from a start on, fewer for later starts.
        """
        return bisect_left(starts, True, key=lambda start: size(start) + self.begun <= self.kept)


class Shortener:
    """Leaves out of a whole conversation what a chat that had asked for each of its answers would have left out.

    So the same messages stay out from turn to turn, until the next cut. For that, what came before is counted message
    by message, with what the template adds to each; what the model gets is counted as it is.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        room: Room,
        tokens_of: Callable[[Sequence[Message]], list[int]],
        count: Callable[[str], int],
        longest: int | None = None,
    ) -> None:
        """tokens_of: tokens of a prompt. count: how many a text has. longest: bytes of the longest token, given if
        texts that cannot fit need not be counted."""
        self._messages, self._room, self._tokens_of, self._count = messages, room, tokens_of, count
        roles = [one["role"] for one in messages]
        self._head = next((at for at, role in enumerate(roles) if role not in INSTRUCTIONS), len(roles))
        self._starts = [at for at, role in enumerate(roles) if role == "user"]
        self._ends = [at for at, role in enumerate(roles) if role == "assistant" and at > self._head] + [len(roles)]
        self._texts = [_text_of(one) for one in messages]
        self._bytes = [len(text.encode("utf-8", "replace")) for text in self._texts]
        self._most_bytes = math.inf if longest is None else room.n_ctx * longest

    def tokens(self) -> tuple[list[int], int]:
        """The prompt, and how many messages after the instructions it leaves out.

        MessageTooLong if others would have to leave for one of more than half of the context.
        """
        if sum(self._bytes) <= min(self._room.n_ctx * MANY_BYTES, self._most_bytes):
            tokens = self._tokens_of(self._messages)
            if self._room.fits(len(tokens)):
                return tokens, 0
        left = self._first()
        tokens, starts = self._tokens_of(self._prompt(left)), self._between(left, len(self._messages))
        if starts and not self._room.fits(len(tokens)):
            left = self._cut(starts, lambda start: len(self._tokens_of(self._prompt(start))))
            tokens = self._tokens_of(self._prompt(left))
        if self._between(self._head, left + 1) and not self._between(left, len(self._messages)):
            self._check_newest(left, len(tokens))
        return tokens, left - self._head

    def _prompt(self, start: int) -> list[Message]:
        return [*self._messages[: self._head], *self._messages[start:]]

    def _between(self, left: int, end: int) -> list[int]:
        """Where turns begin, after `left` and before `end`."""
        return self._starts[bisect_right(self._starts, left) : bisect_left(self._starts, end)]

    def _cut(self, starts: Sequence[int], size: Callable[[int], float]) -> int:
        """Which of the turns that begin at `starts` is the first one from now on."""
        return starts[min(self._room.first_kept(starts, size), len(starts) - 1)]

    def _first(self) -> int:
        """The first message after the instructions that a chat would not have left out."""
        fixed, until = self._counted()
        left, asked = self._head, 0

        def size(start: int, end: int) -> float:
            return fixed + until[end] - until[start]

        while True:
            asked = bisect_left(self._ends, True, asked, key=lambda end: not self._room.fits(size(left, end)))
            if asked == len(self._ends):
                return left
            end = self._ends[asked]
            if starts := self._between(left, end):
                left = self._cut(starts, functools.partial(size, end=end))
            elif later := self._between(left, len(self._messages)):
                asked = bisect_right(self._ends, later[0])  # this turn is alone already
            else:
                return left

    def _counted(self) -> tuple[float, list[float]]:
        """Tokens that all prompts have, and those of the messages up to each place after the instructions."""
        question, answer = {"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}
        one, alone = self._count("x"), len(self._tokens_of([question]))
        added = (len(self._tokens_of([question, answer, question])) - alone) / 2 - one
        fixed = len(self._tokens_of([*self._messages[: self._head], question])) - added - one
        sizes = [
            added + (self._count(text) if length <= self._most_bytes else self._room.n_ctx)
            for text, length in zip(self._texts[self._head :], self._bytes[self._head :], strict=True)
        ]
        return fixed, [0.0] * self._head + [0.0, *itertools.accumulate(sizes)]

    def _check_newest(self, start: int, tokens: int) -> None:
        """MessageTooLong if the newest turn, which all others leave for, has too large a message or leaves no room."""
        n_ctx, advice = self._room.n_ctx, "shorten it, or give a larger {ctx_size}"
        for text, length in zip(self._texts[start:], self._bytes[start:], strict=True):
            what, size = "a message has", length  # at most one token per byte
            if start == len(self._messages) - 1:
                what = "the message and the instructions have" if self._head else "the message has"
                size = tokens
            elif length > self._room.kept:
                size = self._count(text)
            if size > self._room.kept:
                raise MessageTooLong(
                    what + " {tokens} tokens, more than half of the context of {n_ctx}, and older messages would have "
                    "to be left out for it: " + advice, tokens=size, n_ctx=n_ctx,
                )  # fmt: skip
        if not self._room.fits(tokens):
            text = "the newest turn has {tokens} tokens and leaves no room in a context of {n_ctx}: "
            raise MessageTooLong(text + advice, tokens=tokens, n_ctx=n_ctx)


def _text_of(message: Message) -> str:
    calls = json.dumps(message["tool_calls"], ensure_ascii=False) if message.get("tool_calls") else ""
    return str(message["content"]) + calls
