"""What chat templates are told about thinking, and how they get what was thought earlier."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medusa_cli.decoding.options import Effort

SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates that say whether the model thinks."""
EFFORT = "reasoning_effort"
REMEMBERED = "reasoning_content"
"""The key of a message for what was thought before it was said."""


@dataclass(frozen=True)
class Thinking:
    """What is wanted of an answer. on: whether the model thinks; None: as it usually does. effort: a level."""

    on: bool | None = None
    effort: str | None = None

    def has_switch(self, variables: Collection[str]) -> bool:
        """Whether a template with these variables can be told."""
        return any(name in variables for name in SWITCHES)

    def names(self, variables: Collection[str]) -> dict[str, Any]:
        """The values of a template's variables. One that has `enable_thinking` usually thinks."""
        level = Effort(self.effort).value if self.effort else None
        told: dict[str, Any] = {SWITCHES[0]: self.on is not False, SWITCHES[1]: self.on, EFFORT: level}
        return {name: value for name, value in told.items() if name in variables and value is not None}


NOTHING_SAID = Thinking()


def remembered(messages: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, Any]]:
    """The messages with their thinking where the template looks for it; it decides what becomes of that."""
    return [_remembered(dict(message), source) if message.get(REMEMBERED) else dict(message) for message in messages]


def _remembered(message: dict[str, Any], source: str) -> dict[str, Any]:
    thought, said = message[REMEMBERED], message["content"]
    if re.search(r"\.reasoning\b|['\"]reasoning['\"]", source):
        message["reasoning"] = thought
    if re.search(r"\bmessage\.thinking\b|message\[['\"]thinking", source):
        # Harmony's template takes one text before a call.
        called = bool(said and message.get("tool_calls"))
        message |= {"thinking": f"{thought}\n\n{said}", "content": ""} if called else {"thinking": thought}
    elif re.search(r"\[['\"]thinking['\"]\]", source):
        said_part = [{"type": "text", "text": said}] if said else []
        message["content"] = [{"type": "thinking", "thinking": thought}, *said_part]
    return message
