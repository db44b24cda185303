"""Small base models of several architectures, with random F32 weights: nothing in them is zero, one or alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from fixtures import BASE_VOCAB, add_vocabulary, finish

HIDDEN, HEADS, HEADS_KV, HEAD_SIZE, FEED_FORWARD = 64, 4, 2, 32, 128
"""HEADS * HEAD_SIZE is not HIDDEN, but for llama and qwen2, which cannot have that."""


@dataclass(frozen=True)
class Kind:
    """What an architecture has besides norms and the seven matrices."""

    biases: bool = False
    head_norms: bool = False
    post_norms: bool = False
    window: int = 0


KINDS = {
    "llama": Kind(),
    "qwen2": Kind(biases=True),
    "qwen3": Kind(head_norms=True),
    "gemma3": Kind(head_norms=True, post_norms=True, window=12),
}


def random_base(
    path: Path, architecture: str, *, layers: int = 7, seed: int = 0, tied: bool = True, rope_factors: bool = False
) -> Path:
    """A base model of `architecture` (one of KINDS). gemma3's window is shorter than the texts of tests."""
    rng, kind = np.random.default_rng(seed), KINDS[architecture]
    head = HEAD_SIZE if kind.head_norms else HIDDEN // HEADS
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"random {architecture}")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS_KV)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(5e4)
    writer.add_layer_norm_rms_eps(1e-5)
    if architecture == "llama":
        writer.add_rope_dimension_count(head)
    if kind.window:
        writer.add_sliding_window(kind.window)
    writer.add_vocab_size(BASE_VOCAB)
    add_vocabulary(writer, BASE_VOCAB)

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        values = rng.standard_normal((rows, columns)) * (scale / np.sqrt(columns))
        writer.add_tensor(name, values.astype(np.float32))

    def norm(name: str, size: int = HIDDEN) -> None:
        writer.add_tensor(name, rng.uniform(0.7, 1.3, size).astype(np.float32))

    matrix("token_embd.weight", BASE_VOCAB, HIDDEN, 2.0)
    if rope_factors:
        writer.add_tensor("rope_freqs.weight", rng.uniform(1, 4, head // 2).astype(np.float32))
    for layer in range(layers):
        block = f"blk.{layer}."
        norm(f"{block}attn_norm.weight")
        for part, heads in (("q", HEADS), ("k", HEADS_KV), ("v", HEADS_KV)):
            matrix(f"{block}attn_{part}.weight", heads * head, HIDDEN, 1.5)
            if kind.biases:
                writer.add_tensor(f"{block}attn_{part}.bias", rng.standard_normal(heads * head).astype(np.float32))
        matrix(f"{block}attn_output.weight", HIDDEN, HEADS * head)
        if kind.head_norms:
            norm(f"{block}attn_q_norm.weight", head)
            norm(f"{block}attn_k_norm.weight", head)
        if kind.post_norms:
            norm(f"{block}post_attention_norm.weight")
            norm(f"{block}post_ffw_norm.weight")
        norm(f"{block}ffn_norm.weight")
        matrix(f"{block}ffn_gate.weight", FEED_FORWARD, HIDDEN)
        matrix(f"{block}ffn_up.weight", FEED_FORWARD, HIDDEN)
        matrix(f"{block}ffn_down.weight", HIDDEN, FEED_FORWARD)
    norm("output_norm.weight")
    if not tied:
        matrix("output.weight", BASE_VOCAB, HIDDEN, 2.0)
    finish(writer)
    return path
