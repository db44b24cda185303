"""Gemma3ForCausalLM (the text models)."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from .architecture import Architecture
from .rope import read_rope

PERIOD = 6
LAYERS_27B = 62


class Gemma3(Architecture):
    """Norm weights are stored as their difference from 1; five sliding-window layers before each full one."""

    kind = gguf.MODEL_ARCH.GEMMA3
    defaults = {  # noqa: RUF012
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    activation_key = "hidden_activation"
    activations = ("gelu_pytorch_tanh",)
    rope_kinds = ("default", "linear")

    def check(self) -> None:
        """libllama fixes the layer pattern, the attention scale and the direction; other values would be ignored."""
        config = self.config
        if config.flag("use_bidirectional_attention"):
            raise config.refuse("use_bidirectional_attention", "false")
        if config.get("attn_logit_softcapping") is not None:
            raise config.refuse("attn_logit_softcapping", "null")
        types = config.get("layer_types")
        wanted = ["full_attention" if i % PERIOD == PERIOD - 1 else "sliding_attention" for i in range(self.layers)]
        period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or PERIOD
        if (types is not None and types != wanted) or (types is None and period != PERIOD):
            raise MedusaError(f"{config.where}: libllama knows Gemma 3 only with every sixth layer attending fully")
        scale = self.hidden // self.heads if self.layers == LAYERS_27B else self.head_size
        if config.number("query_pre_attn_scalar") != scale:
            raise config.refuse("query_pre_attn_scalar", f"{scale}, which libllama computes for these sizes")
        self.window = config.integer("sliding_window")
        self.local_rope = self._local_rope()

    def _local_rope(self) -> float:
        parameters = self.config.section("rope_parameters")
        if "sliding_attention" in parameters:
            return read_rope(self.config, ("default",), "sliding_attention").theta
        return self.config.number("rope_local_base_freq")

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """With norms of queries and keys, and those behind attention and MLP."""
        norms = {"attn_q_norm.weight": (self.head_size,), "attn_k_norm.weight": (self.head_size,)}
        posts = {"post_attention_norm.weight": (self.hidden,), "post_ffw_norm.weight": (self.hidden,)}
        return {**super().block_shapes(), **norms, **posts}

    def transform(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Norm weights plus the 1 that the checkpoint leaves out."""
        return values.astype(np.float32) + 1 if name.endswith("norm.weight") else values

    def write_parameters(self, writer: gguf.GGUFWriter) -> None:
        """The usual ones, the window and its own rotary base."""
        super().write_parameters(writer)
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", self.local_rope)
        writer.add_sliding_window(self.window)
        if self.config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(self.config.number("final_logit_softcapping"))
