"""Tools for models whose chat template says nothing of any: described in the system prompt, in Hermes's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

DESCRIPTION = """\
You may call functions. These are on offer, one JSON object per line:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as JSON in these tags:
<tool_call>
{{"name": "NAME", "arguments": {{"KEY": "VALUE"}}}}
</tool_call>
The result comes in <tool_response> tags. If no function helps, answer in words."""


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """The conversation with the tools in its system prompt, and their results as user messages.

    Results, and what the user says after them, are one message: many templates want turns to alternate.
    """
    found: list[dict[str, Any]] = []
    if tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        system = [message["content"] for message in messages[:1] if message["role"] == "system"]
        found.append({"role": "system", "content": "\n\n".join([*system, DESCRIPTION.format(tools=lines)])})
        messages = messages[len(system) :]
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        content = f"<tool_response>\n{message['content']}\n</tool_response>" if is_result else message["content"]
        if follows_result and message["role"] in ("tool", "user"):
            found[-1]["content"] += f"\n{content}"
        else:
            found.append({**message, "role": "user" if is_result else message["role"], "content": content})
        follows_result = is_result
    return found
