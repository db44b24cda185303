"""Conversations to generate answers for: given in a file, or made up from seeds."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from medusa_cli.prompts.prompt_files import read_records
from medusa_cli.support.errors import MedusaError

MAX_PASSES = 8
"""How often a file of prompts is gone through (each pass but the first at higher temperatures) before it is used up."""
MAX_TURN = 1 << 16
"""Characters of a turn: far more than the longest prompt that is answered, few enough to tokenize."""


@dataclass(frozen=True)
class Conversation:
    """User turns; the answers between them are the model's own. source: a word for where they came from."""

    turns: tuple[str, ...]
    system: str | None = None
    source: str = "given"

    @property
    def group(self) -> str:
        """Conversations that open alike belong together: they are held out together."""
        return hashlib.sha256(self.turns[0].strip().lower().encode("utf-8", "replace")).hexdigest()[:16]


class PromptSource(Protocol):
    """Where conversations come from: a fixed order, addressed by position, so that a run can continue."""

    def take(self, cursor: int, count: int) -> list[Conversation]:
        """Conversations cursor .. cursor + count - 1; fewer at the end."""

    def is_repeat(self, cursor: int) -> bool:
        """Whether the conversation at `cursor` was given before."""


class SeedSource:
    """Endless made-up conversations."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._at = 0
        self._iterator = self._start()

    def _start(self) -> Iterator[Conversation]:
        from medusa_cli.prompts.seeds.prompts import iter_conversations

        return (Conversation(item.turns, item.system, item.kind) for item in iter_conversations(self._seed))

    def take(self, cursor: int, count: int) -> list[Conversation]:
        if cursor < self._at:
            self._iterator, self._at = self._start(), 0
        skipped = cursor - self._at
        self._at = cursor + count
        return list(itertools.islice(self._iterator, skipped, skipped + count))

    def is_repeat(self, cursor: int) -> bool:
        return False


class FileSource:
    """The conversations of a file, gone through MAX_PASSES times. too_long: those left out for their length."""

    def __init__(self, path: Path) -> None:
        """MedusaError when the file holds no conversation that can be used."""
        everything = load_conversations(path)
        self._all = [short for conversation in everything if (short := _shortened(conversation)) is not None]
        self.too_long = len(everything) - len(self._all)
        if not self._all:
            raise MedusaError(f"{path}: every prompt is longer than {MAX_TURN} characters, give shorter ones")

    def take(self, cursor: int, count: int) -> list[Conversation]:
        size = len(self._all)
        return [self._all[at % size] for at in range(cursor, min(cursor + count, MAX_PASSES * size))]

    def is_repeat(self, cursor: int) -> bool:
        return cursor >= len(self._all)


def _shortened(conversation: Conversation) -> Conversation | None:
    """The conversation up to its first turn that no prompt could hold; None when that is the opening."""
    lengths = [len(turn) for turn in conversation.turns]
    kept = next((at for at, length in enumerate(lengths) if length > MAX_TURN), len(lengths))
    if kept == 0 or len(conversation.system or "") > MAX_TURN:
        return None
    return Conversation(conversation.turns[:kept], conversation.system)


def load_conversations(path: Path) -> list[Conversation]:
    """Reads JSON lines, or one JSON array, of any of four forms; answers in it are ignored, the model writes its own.

    {"prompt": str} | {"messages": [{"role", "content"}]} | {"turns": [str]} (MT-Bench) | {"conversations":
    [{"from", "value"}]} (ShareGPT). MedusaError with file and place for anything else.
    """
    conversations = [_conversation(record, where) for where, record in read_records(path)]
    if not conversations:
        raise MedusaError(f"{path}: holds no prompts, give one JSON object per line")
    return conversations


def _conversation(record: Any, where: str) -> Conversation:
    """One record of any of the four forms."""
    if not isinstance(record, dict):
        raise MedusaError(f"{where}: not a JSON object")
    if "prompt" in record:
        return _checked([("user", record["prompt"])], "prompt", where)
    if "turns" in record:
        turns = record["turns"]
        return _checked([("user", turn) for turn in turns] if isinstance(turns, list) else None, "turns", where)
    for field, role_key, text_key in (("messages", "role", "content"), ("conversations", "from", "value")):
        if field in record:
            items = record[field]
            if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
                raise MedusaError(f"{where}: {field!r} must be a list of objects")
            return _checked([(item.get(role_key), item.get(text_key)) for item in items], field, where)
    raise MedusaError(f"{where}: no 'prompt', 'messages', 'turns' or 'conversations' in it")


def _checked(pairs: list[tuple[Any, Any]] | None, field: str, where: str) -> Conversation:
    """User turns and system text from (role, text) pairs; other roles are left out."""
    wanted = [(role, text) for role, text in pairs or [] if role in ("user", "human", "system")]
    turns = [text for role, text in wanted if role != "system"]
    if not turns or not all(isinstance(text, str) and text.strip() for _, text in wanted):
        raise MedusaError(f"{where}: {field!r} holds no user text, or a turn that is not text")
    system = next((text for role, text in wanted if role == "system"), None)
    return Conversation(tuple(turns), system)
