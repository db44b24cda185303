"""Heads beside the base they are to draft for: whether they fit, and what its metadata says for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import MedusaError
from . import schema
from .formats import SourceHeads, prefix_keys


def fitted(source: SourceHeads, heads_name: str, base: Mapping[str, Any], base_name: str) -> SourceHeads:
    """`source` for the base of this GGUF metadata, with the keys of a prefix layer where it has one.

    MedusaError, which calls them by their names, for a base of another hidden size or vocabulary.
    """
    architecture = base.get("general.architecture")
    hidden = base.get(f"{architecture}.embedding_length")
    vocabulary = len(base.get("tokenizer.ggml.tokens") or [])
    found = wanted = None
    if source.hidden != hidden:
        found, wanted = f"of hidden size {source.hidden}", hidden
    elif source.lm_head == "own" and source.rows != vocabulary:
        found, wanted = f"over {source.rows} tokens", vocabulary
    if found is not None:
        raise MedusaError(f"{heads_name}: heads {found}, the base {base_name} has {wanted}: give their own base")
    return _with_prefix_keys(source, base, str(architecture)) if source.has_prefix else source


def _with_prefix_keys(source: SourceHeads, base: Mapping[str, Any], architecture: str) -> SourceHeads:
    """What the checkpoint does not say of its attention layer, which then has the shape of the base's."""

    def value(key: str, base_key: str, default: float) -> Any:
        return source.metadata.get(key, base.get(f"{architecture}.{base_key}", default))

    count = int(value(schema.PREFIX_HEAD_COUNT_KEY, "attention.head_count", 0))
    keys = prefix_keys(
        source,
        head_count=count,
        head_count_kv=int(value(schema.PREFIX_HEAD_COUNT_KV_KEY, "attention.head_count_kv", count)),
        rope_freq_base=float(value(schema.PREFIX_ROPE_FREQ_BASE_KEY, "rope.freq_base", 10000.0)),
        norm_eps=float(value(schema.PREFIX_NORM_EPS_KEY, "attention.layer_norm_rms_epsilon", 1e-5)),
    )
    return replace(source, metadata={**source.metadata, **keys})
