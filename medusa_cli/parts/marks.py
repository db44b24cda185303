"""The marks around a model's thinking: which family of models has which, by chat template and vocabulary."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

AROUND = "\0"
"""Stands on both sides of a mark that came as a token of its own. No text of a model holds it."""


@dataclass(frozen=True)
class Marks:
    """opens, closes: around the thinking. kind: what follows the first. end: what is written to end it.

    tokens: which marks are tokens of the vocabulary. These count only as that token, never as text.
    """

    opens: str
    closes: str
    end: str
    kind: str = ""
    tokens: frozenset[str] = frozenset()

    @property
    def names(self) -> tuple[str, ...]:
        """All its marks."""
        return self.opens, self.closes

    def are_in(self, template: str) -> bool:
        """Whether a template has to do with them."""
        return self.opens in template or self.closes in template

    def written(self, mark: str) -> str:
        """A mark as it is read."""
        return f"{AROUND}{mark}{AROUND}" if mark in self.tokens else mark

    def is_open(self, prompt: str) -> bool:
        """Whether the model goes on thinking after a prompt with that end."""
        return prompt.rstrip().endswith((self.opens + self.kind).rstrip())

    def ending(self, tools: bool) -> str:
        """What ends the thinking in the model's place. tools: it may call some."""
        return self.end

    def without_thinking(self, prompt: str, tools: bool) -> str:
        """What goes after a prompt with that end, so that the model does not think; "" if that is there."""
        if prompt.rstrip().endswith(self.closes):
            return ""
        return self.ending(tools).lstrip("\n") if self.is_open(prompt) else self.opens + self.kind + self.ending(tools)


CHANNEL, MESSAGE, START, END = "<|channel|>", "<|message|>", "<|start|>", "<|end|>"
CALL, CONSTRAIN, RETURN = "<|call|>", "<|constrain|>", "<|return|>"
ANALYSIS = f"{CHANNEL}analysis{MESSAGE}"


@dataclass(frozen=True)
class Channels(Marks):
    """Harmony, the format of gpt-oss: messages, each with a header that names a channel."""

    @property
    def names(self) -> tuple[str, ...]:
        return CHANNEL, MESSAGE, START, END, CALL, CONSTRAIN, RETURN

    def are_in(self, template: str) -> bool:
        return CHANNEL in template and MESSAGE in template

    def is_open(self, prompt: str) -> bool:
        return prompt.endswith(ANALYSIS)

    def ending(self, tools: bool) -> str:
        # Calls are in the commentary, whose header the model ends with the name of a tool.
        return f"{END}{START}assistant{CHANNEL}" + ("commentary" if tools else f"final{MESSAGE}")

    def without_thinking(self, prompt: str, tools: bool) -> str:
        return ANALYSIS + self.ending(tools)


FAMILIES = (
    Channels("", "", ""),
    Marks("<|channel>", "<channel|>", "\n<channel|>", "thought\n"),  # Gemma 4
    Marks("[THINK]", "[/THINK]", "[/THINK]"),  # Magistral, Ministral
    Marks("<seed:think>", "</seed:think>", "\n</seed:think>\n"),  # Seed-OSS
    Marks("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),  # Command
    Marks("<|inner_prefix|>", "<|inner_suffix|>", "<|inner_suffix|>"),  # Apertus
    Marks("◁think▷", "◁/think▷", "◁/think▷"),  # Kimi-VL
    Marks("<think>", "</think>", "\n</think>\n\n"),  # Qwen, DeepSeek, GLM and many others
)


def marks_of(template: str | None, is_token: Callable[[str], bool]) -> Marks | None:
    """Those that the template has to do with, else those that the vocabulary has; None: neither."""
    in_template = (family for family in FAMILIES if family.are_in(template or ""))
    in_vocabulary = (family for family in FAMILIES if all(map(is_token, family.names)))
    found = next(in_template, None) or next(in_vocabulary, None)
    return found and dataclasses.replace(found, tokens=frozenset(filter(is_token, found.names)))


def begun(text: str, mark: str) -> int:
    """How many characters at the end of `text` may become `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if mark.startswith(text[-size:])), 0)


def plain(text: str) -> str:
    """Marks that nobody has read are text."""
    return text.replace(AROUND, "") if AROUND in text else text


def marked(text: str, marks: Marks) -> str:
    """A text in which the marks of the vocabulary stand as text, as it is read."""
    if not marks.tokens:
        return text
    return re.sub("|".join(map(re.escape, marks.tokens)), lambda found: marks.written(found[0]), text)
