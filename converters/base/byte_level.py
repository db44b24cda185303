"""Byte-level BPE (GPT-2's kind) from tokenizer.json."""

from __future__ import annotations

from typing import Any

from gguf import TokenType

from ..errors import MedusaError
from .pretokenizers import find_pretokenizer
from .tokenizer_files import TOKENIZER, TokenizerFiles, Tokens

ENCODED_SPACE = "Ġ"


def is_byte_level(files: TokenizerFiles) -> bool:
    """True for a BPE whose tokens are bytes written as printable characters."""
    model = files.model
    return model.get("type") == "BPE" and not model.get("byte_fallback") and _mentions_byte_level(files.tokenizer)


def read_byte_level(files: TokenizerFiles, size: int) -> Tokens:
    """Tokens and merges. MedusaError when they are damaged, too many, or need an unknown pre-tokenizer."""
    where = files.where(TOKENIZER)
    tokens = Tokens("gpt2", find_pretokenizer(files.tokenizer or {}, where), size, merges=read_merges(files))
    for text, id in read_entries(files, size).items():
        tokens.put(id, text, TokenType.NORMAL)
    tokens.put_added(files.listed_tokens())
    tokens.add_space_prefix = files.space_prefix()
    return tokens


def read_entries(files: TokenizerFiles, size: int) -> dict[str, int]:
    """The vocabulary of tokenizer.json's model, checked: text -> id below `size`, no id twice."""
    where, entries = files.where(TOKENIZER), files.model.get("vocab")
    if not isinstance(entries, dict):
        raise MedusaError(f"{where}: its vocab is not an object of texts and ids, download it again")
    ids = entries.values()
    if not all(type(id) is int and id >= 0 for id in ids) or len(set(ids)) != len(entries):
        raise MedusaError(f"{where}: its vocab holds an id twice or something that is not an id, download it again")
    if entries and max(ids) >= size:
        raise MedusaError(
            f"{where}: its vocab goes up to id {max(ids)}, but the model has {size} tokens: they do not belong together"
        )
    return entries


def read_merges(files: TokenizerFiles) -> list[str]:
    """The merges, each as two texts with a blank between (blanks inside the texts encoded)."""
    merges = files.model.get("merges")
    if isinstance(merges, list) and merges:
        if all(isinstance(merge, str) for merge in merges):
            return merges
        if all(isinstance(merge, list) and [type(part) for part in merge] == [str, str] for merge in merges):
            return [" ".join(part.replace(" ", ENCODED_SPACE) for part in merge) for merge in merges]
    raise MedusaError(f"{files.where(TOKENIZER)}: its merges are not a list of pairs, download it again")


def _mentions_byte_level(tokenizer: dict[str, Any] | None) -> bool:
    """Whether the pre-tokenizer or the decoder works on bytes."""
    for key, parts in (("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        step = (tokenizer or {}).get(key)
        if isinstance(step, dict):
            steps = step.get(parts, [step])
            if isinstance(steps, list) and any(isinstance(s, dict) and s.get("type") == "ByteLevel" for s in steps):
                return True
    return False
