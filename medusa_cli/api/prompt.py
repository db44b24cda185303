"""What a model is asked, as token ids: a text, the messages of a conversation, or tokens as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding.fields import check_text
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine

Message = Mapping[str, Any]
"""{"role": "user", "content": "..."}, as chat templates have it; assistants may call tools in place of content."""
Tools = Sequence[Mapping[str, Any]]
"""JSON schemas of functions, in the way of OpenAI, for the model's template."""
Prompt = str | Sequence[Message] | Sequence[int]


def tokens_of(engine: Engine, prompt: Prompt, tools: Tools | None, raw: bool) -> list[int]:
    """Token ids. MedusaError, one line, for what is no prompt or does not go through the model's template."""
    if isinstance(prompt, str):
        if not prompt:
            raise MedusaError("the prompt is empty: give some text")
        check_text("the prompt", prompt)
        if raw:
            return engine.raw_tokens(prompt)
        return engine.chat_tokens([{"role": "user", "content": prompt}], tools=tools)
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise MedusaError(f"a prompt is text, messages or token ids, not {type(prompt).__name__}")
    if not prompt:
        raise MedusaError("the prompt is empty: give some messages or tokens")
    if raw:
        raise MedusaError("raw=True needs a prompt that is text")
    if isinstance(prompt[0], Mapping):
        return engine.chat_tokens([_message(one, number) for number, one in enumerate(prompt)], tools=tools)
    if tools:
        raise MedusaError("tools need the chat template: give text or messages, not tokens")
    return [_token(one, engine.model.n_vocab) for one in prompt]


def _token(value: Any, vocabulary: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 <= int(value) < vocabulary:
        raise MedusaError(f"{value!r:.60} is not a token id: they go from 0 to {vocabulary - 1}")
    return int(value)


def _message(value: Any, number: int) -> dict[str, Any]:
    """A message with its content as one text."""
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        raise MedusaError(f"message {number} is not like {{'role': 'user', 'content': '...'}}: {value!r:.60}")
    message = dict(value)
    content = message.get("content")
    if isinstance(content, (list, tuple)):
        content = message["content"] = "".join(_part(part, number) for part in content)
    if content is None and message.get("tool_calls"):
        message["content"] = ""
    elif not isinstance(content, str):
        raise MedusaError(f"message {number}: its content must be text, not {type(content).__name__}")
    else:
        check_text(f"message {number}", content)
    return message


def _part(part: Any, number: int) -> str:
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise MedusaError(f"message {number}: only parts of type 'text' can be read, not {part!r:.60}")
