"""A cheap name for a base model that all its quantizations share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ..errors import MedusaError


def fingerprint(metadata: Mapping[str, Any]) -> str:
    """Name of the form architecture-{blocks}x{embedding}-{vocabulary}-{12 hex} from a GGUF's metadata (lists as lists).

    The hex digits are the start of a SHA-256 over the head counts and the token list, so equal shapes with another
    tokenizer differ, while the quantization, the name and the chat template do not matter. MedusaError if a key that
    every language model has is missing.
    """
    architecture = metadata.get("general.architecture")
    shapes = [metadata.get(f"{architecture}.{key}") for key in ("block_count", "embedding_length")]
    if not isinstance(architecture, str) or not all(isinstance(shape, int) for shape in shapes):
        raise MedusaError("not a language model: its GGUF metadata names no architecture, block count or hidden size")
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    vocabulary = len(tokens) or metadata.get(f"{architecture}.vocab_size", 0)
    heads = metadata.get(f"{architecture}.attention.head_count")
    heads_kv = metadata.get(f"{architecture}.attention.head_count_kv", heads)
    digest = hashlib.sha256(json.dumps([heads, heads_kv, metadata.get("tokenizer.ggml.model")]).encode())
    for token in tokens:
        data = token.encode("utf-8", errors="replace")
        digest.update(len(data).to_bytes(4, "little") + data)
    return f"{architecture}-{shapes[0]}x{shapes[1]}-{vocabulary}-{digest.hexdigest()[:12]}"
