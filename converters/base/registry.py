"""The architectures that can be converted: one small class each, found by config.json's `architectures`.

What they share comes first: sizes from the config, the tensors to expect, the metadata libllama reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from .config import MAX_LAYERS, Config
from .rope import Rope, llama3_factors, longrope_attention_factor, read_rope, write_scaling

SHARED_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
BLOCK_BIASES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
GEMMA_PERIOD = 6
GEMMA_LAYERS_27B = 62


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
    """Whether a byte-level tokenizer's add_prefix_space is written to the file, as llama.cpp's converter does."""

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
        """GGUF name -> torch shape of every tensor that must be there (except output.weight: it may be tied)."""
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
        """Like shapes(), for tensors that may be missing."""
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
        """The values of the tensor with GGUF name `name`, as libllama wants them."""
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


class Llama(Architecture):
    """Rotary pairs are neighbours in libllama and half a head apart in transformers, so q and k are reordered."""

    kind = gguf.MODEL_ARCH.LLAMA
    defaults = {"max_position_embeddings": 2048}  # noqa: RUF012
    rope_kinds = ("default", "linear", "llama3", "yarn", "dynamic")
    biases = BLOCK_BIASES
    states_space_prefix = True

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        """The frequency factors of Llama 3's scaling."""
        return {"rope_freqs.weight": llama3_factors(self.rope, self.head_size)} if self.rope.kind == "llama3" else {}

    def transform(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Rows of q and k in libllama's order."""
        part = name.split(".")[-2]
        if part == "attn_q":
            return interleave_halves(values, self.heads)
        if part == "attn_k":
            return interleave_halves(values, self.heads_kv)
        return values

    def write_parameters(self, writer: gguf.GGUFWriter) -> None:
        """The usual keys, and sizes that libllama asks for here."""
        super().write_parameters(writer)
        writer.add_vocab_size(self.vocabulary)
        writer.add_rope_dimension_count(self.head_size)
        if self.config.get("head_dim") is None:
            writer.add_key_length(self.head_size)
            writer.add_value_length(self.head_size)


class Mistral(Llama):
    """Llama with grouped heads by default. libllama attends fully here: its sliding window is not applied."""

    defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 8}  # noqa: RUF012


def interleave_halves(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows (first half, second half) of each head become pairs: row i and row i + half end up side by side."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(values.shape)


class Qwen2(Architecture):
    """Biases on q, k and v."""

    kind = gguf.MODEL_ARCH.QWEN2
    defaults = {"max_position_embeddings": 32768}  # noqa: RUF012
    biases = ("attn_q", "attn_k", "attn_v")

    def check(self) -> None:
        """No sliding windows, and in Qwen2, heads that fill the hidden size."""
        if self.config.flag("use_sliding_window"):
            raise MedusaError(
                f"{self.config.where}: sliding-window attention is not supported by libllama for this architecture: "
                "set use_sliding_window to false there (contexts within the window are not affected)"
            )
        if self.kind is gguf.MODEL_ARCH.QWEN2 and self.head_size * self.heads != self.hidden:
            raise self.config.refuse("head_dim", f"{self.hidden // self.heads} (hidden_size / num_attention_heads)")


class Qwen3(Qwen2):
    """Norms on the queries and keys of each head, a head size of its own."""

    kind = gguf.MODEL_ARCH.QWEN3
    defaults = {"max_position_embeddings": 32768, "head_dim": 128}  # noqa: RUF012

    def block_shapes(self) -> dict[str, tuple[int, ...]]:
        """With norms of queries and keys."""
        norms = {"attn_q_norm.weight": (self.head_size,), "attn_k_norm.weight": (self.head_size,)}
        return {**super().block_shapes(), **norms}


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
        numbers = range(1, self.layers + 1)
        wanted = ["sliding_attention" if i % GEMMA_PERIOD else "full_attention" for i in numbers]
        period = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or GEMMA_PERIOD
        if (types is not None and types != wanted) or (types is None and period != GEMMA_PERIOD):
            raise MedusaError(f"{config.where}: libllama knows Gemma 3 only with every sixth layer attending fully")
        scale = self.hidden // self.heads if self.layers == GEMMA_LAYERS_27B else self.head_size
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
        """With norms of queries and keys, and those after attention and MLP."""
        norms = {"attn_q_norm.weight": (self.head_size,), "attn_k_norm.weight": (self.head_size,)}
        posts = {"post_attention_norm.weight": (self.hidden,), "post_ffw_norm.weight": (self.hidden,)}
        return {**super().block_shapes(), **norms, **posts}

    def transform(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Norm weights plus the 1 that the checkpoint leaves out."""
        return values.astype(np.float32) + 1 if name.endswith("norm.weight") else values

    def write_parameters(self, writer: gguf.GGUFWriter) -> None:
        """The usual keys, the window and its own rotary base."""
        super().write_parameters(writer)
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", self.local_rope)
        writer.add_sliding_window(self.window)
        if self.config.get("final_logit_softcapping"):
            writer.add_final_logit_softcapping(self.config.number("final_logit_softcapping"))


class Phi3(Architecture):
    """Phi-3 to Phi-4: q, k, v in one matrix, gate and up in another; positions may rotate only part of each head."""

    kind = gguf.MODEL_ARCH.PHI3
    defaults = {  # noqa: RUF012
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 1.0,
    }
    rope_kinds = ("default", "longrope", "yarn")

    def check(self) -> None:
        """Determines how much of each head rotates, and the context that the model was first trained for."""
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
        """The keys that libllama reads for a Phi-3, in the order of llama.cpp's converter."""
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


ARCHITECTURES: dict[str, type[Architecture]] = {
    "LlamaForCausalLM": Llama,
    "MistralForCausalLM": Mistral,
    "Qwen2ForCausalLM": Qwen2,
    "Qwen3ForCausalLM": Qwen3,
    "Gemma3ForCausalLM": Gemma3,
    "Phi3ForCausalLM": Phi3,
}


def find_architecture(config: Mapping[str, Any], where: str) -> type[Architecture]:
    """The class for a config.json. MedusaError that names the architecture if there is none."""
    names = config.get("architectures")
    # Full Medusa models name their class after the base's: MedusaLlamaForCausalLM.
    plain = [str(name).replace("Medusa", "") for name in names] if isinstance(names, list) else []
    known = [name for name in plain if name in ARCHITECTURES]
    if known:
        return ARCHITECTURES[known[0]]
    found = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else "none"
    raise MedusaError(
        f"{where}: architecture {found[:60]} cannot be converted (only {', '.join(ARCHITECTURES)}): "
        "give a GGUF of that model as the base"
    )
