"""Conversations as files have them: five forms, each one JSON object per conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from medusa_cli.decoding.prompts import Message
from medusa_cli.prompts.prompt_files import read_records
from medusa_cli.support.errors import MedusaError

ROLES = {"user": "user", "human": "user", "system": "system", "assistant": "assistant", "gpt": "assistant"}
"""Those that are read, by their names in files."""
ANSWERS = ("completion", "response", "output")
"""Fields beside a prompt or an instruction."""
FORMS = "'prompt', 'messages', 'turns', 'conversations' or 'instruction'"


def read_dialogs(path: Path) -> Iterator[tuple[str, list[Message]]]:
    """(where, messages) of each record: JSON lines, or one JSON array, of any of five forms.

    {"prompt": str, "completion": str} (the answer, in any form, may be missing) | {"messages": [{"role", "content"}]} |
    {"turns": [str]} (MT-Bench) | {"conversations": [{"from", "value"}]} (ShareGPT) | {"instruction", "input", "output"}
    (Alpaca). A message of another role has its own name as its role. MedusaError with file and place for anything else.
    """
    for where, record in read_records(path):
        yield where, _messages(record, where)


def _messages(record: Any, where: str) -> list[Message]:
    if not isinstance(record, dict):
        raise MedusaError(f"{where}: not a JSON object")
    for field, role_key, text_key in (("messages", "role", "content"), ("conversations", "from", "value")):
        if field in record:
            items = record[field]
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise MedusaError(f"{where}: {field!r} must be a list of objects")
            return _checked([(item.get(role_key), item.get(text_key)) for item in items], field, where)
    if "turns" in record:
        turns = record["turns"]
        return _checked([("user", turn) for turn in turns] if isinstance(turns, list) else [], "turns", where)
    field = "prompt" if "prompt" in record else "instruction"
    if field not in record:
        raise MedusaError(f"{where}: no {FORMS} in it")
    asked = record[field]
    if field == "instruction" and isinstance(asked, str) and isinstance(more := record.get("input"), str) and more:
        asked = f"{asked}\n\n{more}"
    return _checked([("user", asked), *_answer(record)], field, where)


def _answer(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    found = next((name for name in ANSWERS if name in record), None)
    if found is not None:
        yield "assistant", record[found]


def _checked(pairs: list[tuple[Any, Any]], field: str, where: str) -> list[Message]:
    messages = [
        {"role": ROLES.get(role, role) if isinstance(role, str) else "", "content": text} for role, text in pairs
    ]
    asked = [message["content"] for message in messages if message["role"] in ("user", "system")]
    has_turn = any(message["role"] == "user" for message in messages)
    if not has_turn or not all(isinstance(text, str) and text.strip() for text in asked):
        raise MedusaError(f"{where}: {field!r} holds no user text, or a turn that is not text")
    return messages
