"""The tokenizer's JSON files of a checkpoint, read once, and the small facts that both tokenizer families need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.strict_json import parse_json
from ..errors import MedusaError

TOKENIZER, TOKENIZER_CONFIG, ADDED_TOKENS = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
ID = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class AddedToken:
    """A token matched in the raw text before anything else. strips_right: white space behind it belongs to it."""

    id: int
    text: str
    special: bool
    strips_right: bool


@dataclass(frozen=True)
class TokenizerFiles:
    """tokenizer: tokenizer.json, None when absent. config: tokenizer_config.json, {} when absent."""

    checkpoint: Checkpoint
    tokenizer: dict[str, Any] | None
    config: dict[str, Any]

    def where(self, file_name: str) -> str:
        """The file's name for messages."""
        return str(self.checkpoint.root / file_name)

    @property
    def model(self) -> dict[str, Any]:
        """The `model` object of tokenizer.json. MedusaError when it is none."""
        model = (self.tokenizer or {}).get("model")
        if not isinstance(model, dict):
            raise MedusaError(f"{self.where(TOKENIZER)}: has no model object, download it again")
        return model

    def space_prefix(self) -> bool | None:
        """add_prefix_space of tokenizer_config.json: whether a blank goes before the text; None when it is silent."""
        value = self.config.get("add_prefix_space")
        if value is not None and not isinstance(value, bool):
            raise MedusaError(f"{self.where(TOKENIZER_CONFIG)}: add_prefix_space is neither true nor false")
        return value

    def listed_tokens(self) -> list[AddedToken]:
        """The added tokens of tokenizer.json."""
        where = self.where(TOKENIZER)
        entries = (self.tokenizer or {}).get("added_tokens") or []
        if not isinstance(entries, list):
            raise MedusaError(f"{where}: added_tokens is not a list, download it again")
        return [_added(entry, isinstance(entry, dict) and entry.get("id"), where) for entry in entries]

    def decoder_tokens(self) -> list[AddedToken]:
        """The added tokens of tokenizer_config.json (added_tokens_decoder)."""
        where = self.where(TOKENIZER_CONFIG)
        entries = self.config.get("added_tokens_decoder") or {}
        if not isinstance(entries, dict):
            raise MedusaError(f"{where}: added_tokens_decoder is not an object, download it again")
        return [_added(entry, int(key) if ID.fullmatch(key) else None, where) for key, entry in entries.items()]

    def extra_tokens(self) -> list[AddedToken]:
        """The tokens of added_tokens.json, which has texts and ids only."""
        entries = read_json(self.checkpoint, ADDED_TOKENS) or {}
        return [_added({"content": text}, id, self.where(ADDED_TOKENS)) for text, id in entries.items()]


def read_tokenizer_files(checkpoint: Checkpoint) -> TokenizerFiles:
    """The JSON files of the checkpoint's tokenizer. MedusaError for damaged ones."""
    return TokenizerFiles(checkpoint, read_json(checkpoint, TOKENIZER), read_json(checkpoint, TOKENIZER_CONFIG) or {})


def read_json(checkpoint: Checkpoint, file_name: str) -> dict[str, Any] | None:
    """The object in a file beside the weights, None when there is no such file."""
    text = checkpoint.read_text(file_name)
    return None if text is None else parse_json(text, str(checkpoint.root / file_name))


def looks_special(text: str) -> bool:
    """Texts that are control tokens by their look, also where the tokenizer does not say so."""
    framed = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))  # the full-width bars are DeepSeek's
    named = text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return named or any(text.startswith(left) and text.endswith(right) for left, right in framed)


def _added(entry: Any, id: Any, where: str) -> AddedToken:
    text = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(text, str) or isinstance(id, bool) or not isinstance(id, int) or id < 0:
        raise MedusaError(f"{where}: added token {repr(entry)[:60]} lacks a text or an id, download it again")
    return AddedToken(id, text, bool(entry.get("special")), bool(entry.get("rstrip")))
