"""A checkpoint's tokenizer JSON files, read once, and the token list that both families make from them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gguf import TokenType

from ..checkpoints.checkpoint import Checkpoint
from ..errors import MedusaError

TOKENIZER, TOKENIZER_CONFIG, ADDED_TOKENS = "tokenizer.json", "tokenizer_config.json", "added_tokens.json"
ID = re.compile(r"[0-9]{1,9}")
PADDING_SCORE, ADDED_SCORE = -10000.0, -1000.0


@dataclass(frozen=True)
class AddedToken:
    """A token matched in the raw text before anything else. strips_right: white space after it belongs to it."""

    id: int
    text: str
    special: bool
    strips_right: bool


class TokenizerFiles:
    """tokenizer: tokenizer.json, None if missing. config: tokenizer_config.json, {} if missing.

    MedusaError for damaged ones.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.tokenizer = checkpoint.read_json(TOKENIZER)
        self.config = checkpoint.read_json(TOKENIZER_CONFIG) or {}

    def where(self, file_name: str) -> str:
        """The file's name for messages."""
        return str(self.checkpoint.root / file_name)

    @property
    def model(self) -> dict[str, Any]:
        """The `model` object of tokenizer.json. MedusaError if it is not an object."""
        model = (self.tokenizer or {}).get("model")
        if not isinstance(model, dict):
            raise MedusaError(f"{self.where(TOKENIZER)}: has no model object, download it again")
        return model

    def entries(self, size: int) -> dict[str, int]:
        """The vocabulary of tokenizer.json's model, checked: text -> id below `size`, no id twice."""
        where, entries = self.where(TOKENIZER), self.model.get("vocab")
        if not isinstance(entries, dict):
            raise MedusaError(f"{where}: its vocab is not an object of texts and ids, download it again")
        ids = entries.values()
        if not all(type(id) is int and id >= 0 for id in ids) or len(set(ids)) != len(entries):
            raise MedusaError(f"{where}: its vocab holds an id twice or something that is not an id, download it again")
        if entries and max(ids) >= size:
            raise MedusaError(
                f"{where}: its vocab goes up to id {max(ids)}, but the model has {size} tokens: they do not belong "
                "together"
            )
        return entries

    def space_prefix(self) -> bool | None:
        """add_prefix_space of tokenizer_config.json: whether a blank goes before the text; None if it does not say."""
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
        entries = self.checkpoint.read_json(ADDED_TOKENS) or {}
        return [_added({"content": text}, id, self.where(ADDED_TOKENS)) for text, id in entries.items()]


def looks_special(text: str) -> bool:
    """Texts that look like control tokens, even if the tokenizer does not say so."""
    framed = (("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">"))  # the full-width bars are DeepSeek's
    named = text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
    return named or any(text.startswith(left) and text.endswith(right) for left, right in framed)


def _added(entry: Any, id: Any, where: str) -> AddedToken:
    text = entry.get("content") if isinstance(entry, dict) else None
    if not isinstance(text, str) or isinstance(id, bool) or not isinstance(id, int) or id < 0:
        raise MedusaError(f"{where}: added token {repr(entry)[:60]} lacks a text or an id, download it again")
    return AddedToken(id, text, bool(entry.get("special")), bool(entry.get("rstrip")))


@dataclass
class Tokens:
    """`size` tokens: texts, GGUF token types, scores (SentencePiece only) and merges (byte-level only).

    model, pre: tokenizer.ggml.model and .pre. add_space_prefix None: libllama's default for the model.
    """

    model: str
    pre: str
    size: int
    scores: list[float] | None = None
    merges: list[str] | None = None
    add_space_prefix: bool | None = None
    texts: list[str] = field(init=False)
    types: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = [f"[PAD{id}]" for id in range(self.size)]
        self.types = [int(TokenType.UNUSED)] * self.size

    def put(self, id: int, text: str, kind: TokenType, score: float = 0.0) -> None:
        """Sets one token."""
        self.texts[id], self.types[id] = text, int(kind)
        if self.scores is not None:
            self.scores[id] = score

    def put_added(self, added: Iterable[AddedToken], space: str = " ") -> None:
        """Sets added tokens; those beyond the embedding's rows cannot be used and are left out.

        space: stands for a blank in the texts. libllama looks for user-defined tokens in the raw text.
        """
        for token in added:
            if token.id >= self.size:
                continue
            if token.special or looks_special(token.text):
                self.put(token.id, token.text, TokenType.CONTROL, ADDED_SCORE)
            else:
                self.put(token.id, token.text.replace(space, " "), TokenType.USER_DEFINED, ADDED_SCORE)

    def repeated(self) -> str | None:
        """A text that two tokens share, None if all differ."""
        seen: set[str] = set()
        for text in self.texts:
            if text in seen:
                return text
            seen.add(text)
        return None
