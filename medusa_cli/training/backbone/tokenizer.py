"""The tokenizer in a GGUF as the files that transformers reads: the other direction of converters/base."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguf import TokenType

from medusa_cli.converters.base.pretokenizers import KNOWN
from medusa_cli.converters.base.sentencepiece import BLANK
from medusa_cli.converters.base.tokenizer_files import TOKENIZER, TOKENIZER_CONFIG

SPECIAL = ("bos", "eos", "unknown", "padding")
NAMES = {"unknown": "unk", "padding": "pad"}
"""What transformers calls them, where GGUF says something else."""


def tokenizer_files(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """File name -> content. Without tokenizer.json where GGUF does not say enough: it comes from the original then."""
    tokens: list[str] = list(metadata.get("tokenizer.ggml.tokens") or [])
    types = list(metadata.get("tokenizer.ggml.token_type") or [int(TokenType.NORMAL)] * len(tokens))
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for kind in SPECIAL:
        token = metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if token is not None and token < len(tokens):
            config[f"{NAMES.get(kind, kind)}_token"] = tokens[token]
    for kind in ("bos", "eos"):
        if (adds := metadata.get(f"tokenizer.ggml.add_{kind}_token")) is not None:
            config[f"add_{kind}_token"] = bool(adds)
    if (prefix := metadata.get("tokenizer.ggml.add_space_prefix")) is not None:
        config["add_prefix_space"] = bool(prefix)
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    described = _byte_level(metadata, tokens) or _byte_fallback(metadata, tokens, types)
    if described is None:
        return {TOKENIZER_CONFIG: config}
    added = [
        {
            "id": id,
            "content": tokens[id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == TokenType.CONTROL,
        }
        for id, kind in enumerate(types)
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    vocabulary = {text: id for id, text in enumerate(tokens) if types[id] != TokenType.UNUSED}
    described["model"]["vocab"] = vocabulary
    return {TOKENIZER_CONFIG: config, TOKENIZER: {"version": "1.0", "added_tokens": added, **described}}


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any] | None:
    pre = metadata.get("tokenizer.ggml.pre")
    found = next((steps for steps, name in KNOWN.items() if name == pre), None)
    if metadata.get("tokenizer.ggml.model") != "gpt2" or found is None:
        return None
    regexes, ignores_merges = found
    split = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in regexes
    ]
    bytes_: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split, bytes_]},
        "post_processor": None,
        "decoder": bytes_,
        "model": {
            "type": "BPE",
            "byte_fallback": False,
            "ignore_merges": ignores_merges,
            "merges": list(metadata.get("tokenizer.ggml.merges") or []),
        },
    }


def _byte_fallback(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any] | None:
    """SentencePiece: its merges are all ways to make a token of two others, the best score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if metadata.get("tokenizer.ggml.model") != "llama" or scores is None:
        return None
    places = {text: id for id, text in enumerate(tokens) if types[id] == TokenType.NORMAL}
    merges = [
        (-scores[id], id, [text[:at], text[at:]])
        for text, id in places.items()
        for at in range(1, len(text))
        if text[:at] in places and text[at:] in places
    ]
    unknown = [tokens[id] for id, kind in enumerate(types) if kind == TokenType.UNKNOWN]
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": BLANK})
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": BLANK}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "byte_fallback": True,
            "fuse_unk": True,
            "unk_token": unknown[0] if unknown else None,
            "merges": [pair for _, _, pair in sorted(merges)],
        },
    }
