"""Heads beside the base they are to draft for: whether they fit, and what its metadata says for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import MedusaError
from . import schema
from .formats import SourceHeads


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


def prefix_keys(
    heads: SourceHeads, *, head_count: int, head_count_kv: int, rope_freq_base: float, norm_eps: float
) -> dict[str, int | float | str]:
    """The medusa.prefix.* keys of Hydra++ heads from their base, whose attention the prefix layer copies.

    The checkpoint itself does not say them. MedusaError when they do not fit the prefix layer's shapes.
    """
    shapes = {item.name: item.shape for item in heads.tensors}
    query, key = shapes[schema.prefix("attn_q")][0], shapes[schema.prefix("attn_k")][0]
    if head_count < 1 or head_count_kv < 1 or query % head_count or key * head_count != query * head_count_kv:
        raise MedusaError(
            f"the heads' prefix layer has {query} x {key} query and key rows, which do not fit a base of {head_count} "
            f"attention heads ({head_count_kv} for keys): choose the base they were trained for"
        )
    return {
        schema.PREFIX_HEAD_COUNT_KEY: head_count,
        schema.PREFIX_HEAD_COUNT_KV_KEY: head_count_kv,
        schema.PREFIX_ROPE_FREQ_BASE_KEY: float(rope_freq_base),
        schema.PREFIX_NORM_EPS_KEY: float(norm_eps),
    }
