"""Qwen2ForCausalLM and Qwen3ForCausalLM."""

from __future__ import annotations

import gguf

from .architecture import Architecture


class Qwen2(Architecture):
    """Biases on q, k and v."""

    kind = gguf.MODEL_ARCH.QWEN2
    defaults = {"max_position_embeddings": 32768}  # noqa: RUF012
    biases = ("attn_q", "attn_k", "attn_v")

    def check(self) -> None:
        """No sliding windows, and heads that fill the hidden size."""
        self.refuse_sliding_window()
        if self.head_size * self.heads != self.hidden:
            raise self.config.refuse("head_dim", f"{self.hidden // self.heads} (hidden_size / num_attention_heads)")


class Qwen3(Architecture):
    """Norms on the queries and keys of each head, a head size of its own."""

    kind = gguf.MODEL_ARCH.QWEN3
    defaults = {"max_position_embeddings": 32768, "head_dim": 128}  # noqa: RUF012
    biases = ("attn_q", "attn_k", "attn_v")

    def check(self) -> None:
        """No sliding windows."""
        self.refuse_sliding_window()

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """With norms of queries and keys."""
        norms = {"attn_q_norm.weight": (self.head_size,), "attn_k_norm.weight": (self.head_size,)}
        return {**super().block_shapes(), **norms}
