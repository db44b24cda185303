"""Phi3ForCausalLM (Phi-3, Phi-3.5, Phi-4, Phi-4-mini)."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from .architecture import Architecture
from .rope import longrope_attention_factor


class Phi3(Architecture):
    """q, k, v in one matrix, gate and up in another; positions may rotate a part of each head only."""

    kind = gguf.MODEL_ARCH.PHI3
    defaults = {  # noqa: RUF012
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 1.0,
    }
    rope_kinds = ("default", "longrope", "yarn")

    def check(self) -> None:
        """Settles how much of each head rotates, and the context that the model was first trained for."""
        if self.head_size * self.heads != self.hidden:
            raise self.config.refuse("head_dim", f"{self.hidden // self.heads} (hidden_size / num_attention_heads)")
        partial = self.rope.values.get("partial_rotary_factor", self.config.number("partial_rotary_factor"))
        if not isinstance(partial, (int, float)) or not 0 < partial <= 1:
            raise self.config.refuse("partial_rotary_factor", "a number above 0 and at most 1")
        self.rotary = int(partial * self.hidden) // self.heads
        original = self.rope.values.get("original_max_position_embeddings")
        key = "original_max_position_embeddings"
        self.original_context = self.config.integer(key, low=2) if original is None else int(self.rope.number(key))

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """With q, k and v, and gate and up, each in one matrix."""
        shapes = super().block_shapes()
        rows = [shapes.pop(f"attn_{part}.weight")[0] for part in "qkv"]
        del shapes["ffn_gate.weight"]
        fused = {"attn_qkv.weight": (sum(rows), self.hidden), "ffn_up.weight": (2 * self.feed_forward, self.hidden)}
        return {**shapes, **fused}

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        """The factors of longrope, for long and for short contexts."""
        if self.rope.kind == "default":
            return {}
        keys = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
        return {name: self.rope.factors(key, self.rotary // 2) for name, key in keys.items()}

    def write_parameters(self, writer: gguf.GGUFWriter) -> None:
        """Those that libllama reads of a Phi-3, in the order of llama.cpp's converter."""
        writer.add_context_length(self.context_length)
        writer.add_rope_scaling_orig_ctx_len(self.original_context)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_block_count(self.layers)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.heads_kv)
        writer.add_layer_norm_rms_eps(self.config.number("rms_norm_eps"))
        writer.add_rope_dimension_count(self.rotary)
        writer.add_rope_freq_base(self.rope.theta)
        writer.add_sliding_window(self.config.integer("sliding_window", 0) if self.config.get("sliding_window") else 0)
        if self.rope.kind != "default":
            # Phi's older configs say yarn or su where they mean longrope; transformers reads them so, and so do we.
            factor = longrope_attention_factor(self.rope, self.context_length, self.original_context)
            writer.add_rope_scaling_attn_factors(factor)
