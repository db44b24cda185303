"""Small models for embeddings: architectures with random weights, and one of them with a tokenizer."""

from __future__ import annotations

import string
from pathlib import Path

from architectures import DENSE, HYBRID, MANY_KEYS, TOKENS, WIDE_HEADS, Architecture, Keys
from gguf_edits import edited
from random_models import write_random_model

MEAN, FIRST, LAST, RANK = 1, 2, 3, 4
"""Values of pooling_type."""
WIDTH = 256
ENCODER: Keys = {**MANY_KEYS, "attention.causal": False, "tokenizer.ggml.token_type_count": 2, "pooling_type": MEAN}
WINDOWS: Keys = {"attention.sliding_window": 32, "attention.sliding_window_pattern": 2}
EXPERTS: Keys = {"expert_count": 4, "expert_used_count": 2, "moe_every_n_layers": 2}
WIDE: Keys = {**WIDE_HEADS, "attention.key_length": 128, "attention.value_length": 128}

EMBEDDERS = {
    "bert": Architecture("bert", {**ENCODER, "pooling_type": FIRST}),
    "bert, mean": Architecture("bert", ENCODER),
    "nomic-bert": Architecture("nomic-bert", ENCODER),
    "nomic-bert-moe": Architecture("nomic-bert-moe", {**ENCODER, **EXPERTS}),
    "jina-bert-v2": Architecture("jina-bert-v2", ENCODER),
    "jina-bert-v3": Architecture("jina-bert-v3", ENCODER),
    "modern-bert": Architecture("modern-bert", {**ENCODER, **WINDOWS}),
    "neo-bert": Architecture("neo-bert", {**ENCODER, "pooling_type": FIRST}),
    "eurobert": Architecture("eurobert", ENCODER),
    "gemma-embedding": Architecture("gemma-embedding", {**WIDE, **WINDOWS, "pooling_type": MEAN}),
    "llama-embed": Architecture("llama-embed", {**DENSE, "pooling_type": MEAN}),
    "qwen3": Architecture("qwen3", {**DENSE, "pooling_type": LAST}),
    "qwen3, mean": Architecture("qwen3", {**DENSE, "pooling_type": MEAN}),
    "qwen2, both ways": Architecture("qwen2", {**DENSE, "pooling_type": MEAN, "attention.causal": False}),
    "lfm2": Architecture("lfm2", {**HYBRID, "shortconv.l_cache": 3, "pooling_type": FIRST, "attention.causal": False}),
}


def write_embedder(path: Path, name: str = "bert", **keys: object) -> Path:
    """A model of EMBEDDERS, with other keys. Its tokenizer splits nothing: give token ids."""
    made = EMBEDDERS[name]
    write_random_model(path, Architecture(made.name, {**made.keys, **keys}), seed=1)
    return path


def write_reading_embedder(path: Path) -> Path:
    """A bert that reads texts of small letters, each of them a token."""
    plain = write_embedder(path.with_suffix(".plain"))
    tokens = [f"[{i}]" for i in range(TOKENS)]
    tokens[100:103] = "[UNK]", "[CLS]", "[SEP]"
    for at, letter in enumerate(string.ascii_lowercase):
        tokens[2 * at], tokens[2 * at + 1] = f"\u2581{letter}", letter
    edited(plain, path, {"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens})
    plain.unlink()
    return path
