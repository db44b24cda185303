"""What all supported architectures share: sizes from the config, the tensors to expect, the metadata libllama reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gguf
import numpy as np
from numpy.typing import NDArray

from .config import MAX_LAYERS, Config
from .rope import Rope, read_rope, write_scaling

SHARED_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
BLOCK_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


class Architecture:
    """A decoder with RMS norms, rotary positions and a gated MLP: Llama's shape, which the subclasses vary.

    kind: GGUF's name of it. defaults: what transformers assumes for keys that config.json leaves out.
    """

    kind: ClassVar[gguf.MODEL_ARCH]
    defaults: ClassVar[Mapping[str, Any]] = {}
    activation_key: ClassVar[str] = "hidden_act"
    activations: ClassVar[tuple[str, ...]] = ("silu", "swish")
    rope_kinds: ClassVar[tuple[str, ...]] = ("default", "linear", "yarn", "dynamic")
    biases: ClassVar[tuple[str, ...]] = ()
    """Parts of a block whose bias libllama reads when it is there; every other bias is refused."""
    states_space_prefix: ClassVar[bool] = False
    """Whether add_prefix_space of a byte-level tokenizer is stated in the file, as llama.cpp's converter does it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        """values: config.json. where: its name for messages. MedusaError for sizes that cannot be a model's."""
        self.config = Config(values, where, {**SHARED_DEFAULTS, **self.defaults})
        integer = self.config.integer
        self.vocabulary = integer("vocab_size")
        self.hidden = integer("hidden_size")
        self.layers = integer("num_hidden_layers", high=MAX_LAYERS)
        self.feed_forward = integer("intermediate_size")
        self.heads = integer("num_attention_heads")
        self.heads_kv = integer("num_key_value_heads") if self.config.get("num_key_value_heads") else self.heads
        self.context_length = integer("max_position_embeddings", high=1 << 31)
        states_size = self.config.get("head_dim") is not None
        if not states_size and self.hidden % self.heads:
            raise self.config.refuse("hidden_size", f"a multiple of the {self.heads} attention heads")
        self.head_size = integer("head_dim") if states_size else self.hidden // self.heads
        self.tied = self.config.flag("tie_word_embeddings")
        if self.heads % self.heads_kv:
            raise self.config.refuse("num_key_value_heads", f"a divisor of the {self.heads} attention heads")
        if self.head_size % 2:
            raise self.config.refuse("head_dim", "an even number")
        if self.config.get(self.activation_key) not in self.activations:
            raise self.config.refuse(self.activation_key, f"{self.activations[0]!r}, all libllama has here")
        self.rope: Rope = read_rope(self.config, self.rope_kinds)
        self.check()

    def check(self) -> None:
        """Refuses settings that libllama would ignore, so that its results would differ from the checkpoint's."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """GGUF name -> torch shape of every tensor that must be there (output.weight apart: it may be tied)."""
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (self.vocabulary, self.hidden),
            "output_norm.weight": (self.hidden,),
        }
        block = self.block_shapes()
        for layer in range(self.layers):
            shapes.update({f"blk.{layer}.{name}": shape for name, shape in block.items()})
        return shapes

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name inside a block -> torch shape."""
        queries, keys = self.heads * self.head_size, self.heads_kv * self.head_size
        return {
            "attn_norm.weight": (self.hidden,),
            "attn_q.weight": (queries, self.hidden),
            "attn_k.weight": (keys, self.hidden),
            "attn_v.weight": (keys, self.hidden),
            "attn_output.weight": (self.hidden, queries),
            "ffn_norm.weight": (self.hidden,),
            "ffn_gate.weight": (self.feed_forward, self.hidden),
            "ffn_up.weight": (self.feed_forward, self.hidden),
            "ffn_down.weight": (self.hidden, self.feed_forward),
        }

    def optional_shapes(self) -> dict[str, tuple[int, ...]]:
        """As shapes(), for tensors that may be absent."""
        block = self.block_shapes()
        shapes: dict[str, tuple[int, ...]] = {"output.weight": (self.vocabulary, self.hidden)}
        for layer in range(self.layers):
            for part in self.biases:
                shapes[f"blk.{layer}.{part}.bias"] = block[f"{part}.weight"][:1]
        return shapes

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        """GGUF name -> values of tensors that come from the config; they lead the file."""
        return {}

    def transform(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """The values of the tensor with GGUF name `name` as libllama wants them."""
        return values

    def write_parameters(self, writer: gguf.GGUFWriter) -> None:
        """The hyperparameters."""
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context_length)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.feed_forward)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.heads_kv)
        writer.add_layer_norm_rms_eps(self.config.number("rms_norm_eps"))
        writer.add_rope_freq_base(self.rope.theta)
        write_scaling(writer, self.rope, self.context_length)
        if self.config.get("head_dim") is not None:
            writer.add_key_length(self.head_size)
            writer.add_value_length(self.head_size)
