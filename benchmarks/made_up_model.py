"""A model of a real one's shape and of random weights, and draft heads for it.

What a pass costs depends on shapes and types alone. Matrices are random blocks of the types that llama.cpp's Q4_K_M
recipe gives them, with scales that keep activations finite; what such a model says is noise. A pool of blocks serves
all matrices, each from a place of its own, so that 4 GB take seconds. The same seed makes the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import schema

from medusa_cli import native
from medusa_cli.support.atomic import atomic_path

Kind = gguf.GGMLQuantizationType
HEADS = 4
BLOCKS = {"medusa": 1, "hydra": 2}
"""Residual blocks of a head: what `medusa train` gives each kind."""
SURE = 2.0
"""What logits are multiplied by, so that the likeliest token is about as likely as in a trained model."""
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True)
class Size:
    """Of a model of the llama architecture. draft_vocabulary: rows that its draft heads choose from."""

    hidden: int
    layers: int
    inner: int
    heads: int
    key_heads: int
    vocabulary: int
    draft_vocabulary: int
    context: int = 16384


SIZES = {
    "8b": Size(4096, 32, 14336, 32, 8, 128256, 32000),  # Llama 3.1 8B, and EAGLE-3's vocabulary for it
    "7b": Size(4096, 32, 14336, 32, 8, 32000, 8192),  # Mistral 7B
    "1b": Size(2048, 22, 5632, 32, 4, 32000, 8192),  # TinyLlama
    "tiny": Size(256, 2, 512, 4, 2, 512, 128, 4096),  # to try the scripts out
}
HYBRID = Size(2560, 32, 9216, 16, 4, 32000, 8192)  # Qwen3.5 4B
HYBRID_1B = Size(1536, 24, 4608, 8, 2, 32000, 8192)
STRENGTHS = {0.67: 1.2, 0.9: 1.65}
"""For HYBRID_1B: the share of right drafts, and the strength that write_hybrid needs for it."""
DENSE = Size(2560, 36, 9728, 20, 4, 32000, 8192)  # of about as many bytes

HEAD_SIZE, STATE, VALUE_HEADS, KEY_HEADS, CONVOLUTION, INTERVAL = 256, 128, 32, 16, 4, 4
"""Of the hybrid: sizes of its attention heads and delta nets; every INTERVAL-th layer has attention."""


class Blocks:
    """Random matrices of one type, as views of one pool."""

    def __init__(self, kind: Kind, largest: int, rng: np.random.Generator) -> None:
        """largest: weights of the largest matrix that will be asked for."""
        self.kind = kind
        self._weights, self._bytes = gguf.GGML_QUANT_SIZES[kind]
        self._rng = rng
        count = largest // self._weights
        self._pool = rng.integers(0, 256, (count + count // 4 + 1, self._bytes), np.uint8)

    def matrix(self, rows: int, columns: int) -> np.ndarray:
        """[rows, bytes of a row]; weights of about the size that keeps the length of a vector."""
        count = rows * columns // self._weights
        first = int(self._rng.integers(0, len(self._pool) - count + 1))
        return self._pool[first : first + count].reshape(rows, -1)

    def set_scales(self, columns: int) -> None:
        """Random bits make scales and offsets of groups; the half floats that multiply them must not be random."""
        deviation = 1 / math.sqrt(columns)
        if self.kind == Kind.Q4_K:  # d * group scale * 0..15 - dmin * group offset, groups' 0..63: mean 0
            self._set(0, deviation / 258)
            self._set(2, 7.5 * deviation / 258)
        elif self.kind == Kind.Q6_K:  # d * group scale (-128..127) * (-32..31)
            self._set(self._bytes - 2, deviation / 1367)
        else:  # Q8_0: d * (-128..127)
            self._set(0, deviation / 74)

    def _set(self, at: int, value: float) -> None:
        self._pool[:, at : at + 2] = np.array([value], "<f2").view(np.uint8)


def _more_bits(layer: int, layers: int) -> bool:
    """Whether the recipe gives attn_v and ffn_down of this layer Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def write_base(path: Path, size: Size, seed: int = 0) -> None:
    """Whole or not at all."""
    rng = np.random.default_rng(seed)
    largest = size.hidden * max(size.inner, size.vocabulary)
    pools = {kind: Blocks(kind, largest, rng) for kind in (Kind.Q4_K, Kind.Q6_K)}
    for pool in pools.values():
        pool.set_scales(size.hidden)
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "llama")
        write_metadata(writer, size)

        def matrix(name: str, rows: int, columns: int, more: bool = False) -> None:
            kind = Kind.Q6_K if more else Kind.Q4_K
            writer.add_tensor(f"{name}.weight", pools[kind].matrix(rows, columns), raw_dtype=kind)

        def ones(name: str) -> None:
            writer.add_tensor(f"{name}.weight", np.ones(size.hidden, np.float32))

        matrix("token_embd", size.vocabulary, size.hidden)
        matrix("output", size.vocabulary, size.hidden, more=True)
        ones("output_norm")
        keys = size.hidden // size.heads * size.key_heads
        for layer in range(size.layers):
            name, more = f"blk.{layer}", _more_bits(layer, size.layers)
            ones(f"{name}.attn_norm")
            ones(f"{name}.ffn_norm")
            matrix(f"{name}.attn_q", size.hidden, size.hidden)
            matrix(f"{name}.attn_k", keys, size.hidden)
            matrix(f"{name}.attn_v", keys, size.hidden, more)
            matrix(f"{name}.attn_output", size.hidden, size.hidden)
            matrix(f"{name}.ffn_gate", size.inner, size.hidden)
            matrix(f"{name}.ffn_up", size.inner, size.hidden)
            matrix(f"{name}.ffn_down", size.hidden, size.inner, more)
        finish(writer)


def write_eagle(path: Path, size: Size, seed: int = 0) -> None:
    """An EAGLE-3 drafter for a base of this size, with a vocabulary of its own. Whole or not at all."""
    rng = np.random.default_rng(seed)
    largest = size.hidden * max(size.inner, size.draft_vocabulary, 3 * size.hidden)
    pools = {kind: Blocks(kind, largest, rng) for kind in (Kind.Q4_K, Kind.Q6_K)}
    for pool in pools.values():
        pool.set_scales(2 * size.hidden)
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "eagle3")
        write_metadata(writer, replace(size, layers=1))
        writer.add_array("eagle3.target_layers", [min(2, size.layers - 1), size.layers // 2, max(size.layers - 3, 1)])
        writer.add_uint32("eagle3.target_hidden_size", size.hidden)

        def matrix(name: str, rows: int, columns: int, kind: Kind = Kind.Q4_K) -> None:
            writer.add_tensor(f"{name}.weight", pools[kind].matrix(rows, columns), raw_dtype=kind)

        keys = size.hidden // size.heads * size.key_heads
        matrix("fc", size.hidden, 3 * size.hidden)
        matrix("blk.0.attn_q", size.hidden, 2 * size.hidden)
        matrix("blk.0.attn_k", keys, 2 * size.hidden)
        matrix("blk.0.attn_v", keys, 2 * size.hidden)
        matrix("blk.0.attn_output", size.hidden, size.hidden)
        matrix("blk.0.ffn_gate", size.inner, size.hidden)
        matrix("blk.0.ffn_up", size.inner, size.hidden)
        matrix("blk.0.ffn_down", size.hidden, size.inner)
        matrix("output", size.draft_vocabulary, size.hidden, Kind.Q6_K)
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
            writer.add_tensor(f"{norm}.weight", np.ones(size.hidden, np.float32))
        rows = rng.permutation(size.vocabulary)[: size.draft_vocabulary]
        writer.add_tensor("d2t", np.sort(rows).astype(np.int64))
        finish(writer)


class HybridTensors:
    """Writes the layers of a hybrid, from one pool."""

    def __init__(self, writer: gguf.GGUFWriter, size: Size, rng: np.random.Generator) -> None:
        self.writer, self.size = writer, size
        self.inner = STATE * VALUE_HEADS
        self.pool = Blocks(Kind.Q4_K, size.hidden * max(size.inner, size.vocabulary), rng)
        self.pool.set_scales(size.hidden)

    def matrix(self, name: str, rows: int, columns: int) -> None:
        self.writer.add_tensor(f"{name}.weight", self.pool.matrix(rows, columns), raw_dtype=Kind.Q4_K)

    def plain(self, name: str, *shape: int, value: float = 1.0) -> None:
        self.writer.add_tensor(name, np.full(shape, value, np.float32))

    def norm(self, name: str) -> None:
        self.plain(f"{name}.weight", self.size.hidden)

    def layer(self, name: str, attention: bool) -> None:
        size = self.size
        self.norm(f"{name}.attn_norm")
        self.norm(f"{name}.post_attention_norm")
        self.matrix(f"{name}.ffn_gate", size.inner, size.hidden)
        self.matrix(f"{name}.ffn_up", size.inner, size.hidden)
        self.matrix(f"{name}.ffn_down", size.hidden, size.inner)
        if attention:
            self._attention(name)
        else:
            self._delta_net(name)

    def _attention(self, name: str) -> None:
        size = self.size
        self.matrix(f"{name}.attn_q", 2 * HEAD_SIZE * size.heads, size.hidden)  # with a gate for each value
        self.matrix(f"{name}.attn_k", HEAD_SIZE * size.key_heads, size.hidden)
        self.matrix(f"{name}.attn_v", HEAD_SIZE * size.key_heads, size.hidden)
        self.matrix(f"{name}.attn_output", size.hidden, HEAD_SIZE * size.heads)
        self.plain(f"{name}.attn_q_norm.weight", HEAD_SIZE)
        self.plain(f"{name}.attn_k_norm.weight", HEAD_SIZE)

    def _delta_net(self, name: str) -> None:
        channels, hidden = self.inner + 2 * STATE * KEY_HEADS, self.size.hidden
        self.matrix(f"{name}.attn_qkv", channels, hidden)
        self.matrix(f"{name}.attn_gate", self.inner, hidden)
        self.matrix(f"{name}.ssm_beta", VALUE_HEADS, hidden)
        self.matrix(f"{name}.ssm_alpha", VALUE_HEADS, hidden)
        self.matrix(f"{name}.ssm_out", hidden, self.inner)
        self.plain(f"{name}.ssm_conv1d.weight", channels, CONVOLUTION, value=0.25)
        self.plain(f"{name}.ssm_dt.bias", VALUE_HEADS)
        self.plain(f"{name}.ssm_a", VALUE_HEADS, value=-1.0)
        self.plain(f"{name}.ssm_norm.weight", STATE)


def write_hybrid(path: Path, size: Size, seed: int = 0, mtp: float | None = None) -> None:
    """Three gated delta nets to each layer of attention, as Qwen3.5 has them. Whole or not at all.

    mtp: with a next-token layer, and this is how strong a token's embedding is beside what the layers add to it: it
    tells which token is next, see `_follow`. 0: the layer and the model know nothing of each other.
    """
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, "qwen35")
        tensors = HybridTensors(writer, size, np.random.default_rng(seed))
        write_metadata(writer, size if mtp is None else replace(size, layers=size.layers + 1))
        for key, value in (("conv_kernel", CONVOLUTION), ("inner_size", tensors.inner), ("state_size", STATE),
                           ("time_step_rank", VALUE_HEADS), ("group_count", KEY_HEADS)):  # fmt: skip
            writer.add_uint32(f"qwen35.ssm.{key}", value)
        writer.add_uint32("qwen35.full_attention_interval", INTERVAL)
        writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
        writer.add_key_length(HEAD_SIZE)
        writer.add_value_length(HEAD_SIZE)
        if mtp:
            _follow(writer, size, mtp, tensors.pool.matrix(size.vocabulary, size.hidden), seed)
        else:
            tensors.matrix("token_embd", size.vocabulary, size.hidden)
            tensors.matrix("output", size.vocabulary, size.hidden)
        tensors.norm("output_norm")
        for layer in range(size.layers):
            tensors.layer(f"blk.{layer}", attention=(layer + 1) % INTERVAL == 0)
        if mtp is not None:
            writer.add_uint32("qwen35.nextn_predict_layers", 1)
            name = f"blk.{size.layers}"
            tensors.layer(name, attention=True)
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                tensors.norm(f"{name}.nextn.{norm}")
            _add_projection(writer, f"{name}.nextn.eh_proj.weight", size, mtp, seed)
        finish(writer)


def _follow(writer: gguf.GGUFWriter, size: Size, strength: float, rows: np.ndarray, seed: int) -> None:
    """Embeddings, and an output matrix that has each word's embedding in the row of the word that follows it.

    All words follow one another in one round; special tokens and bytes come before the words and lead to any word.
    What the layers add depends on the text and wins sometimes: so often are drafts wrong. rows: random, of Q4_K.
    """
    first = len(SPECIAL_TOKENS) + 256
    output = scaled(rows, SURE)
    order = first + np.random.default_rng(seed + 1).permutation(size.vocabulary - first)
    output[np.roll(order, -1)] = output[order].copy()
    embeddings = scaled(rows, strength * math.sqrt(size.hidden))  # their deviation was hidden^-0.5
    writer.add_tensor("token_embd.weight", embeddings, raw_dtype=Kind.Q4_K)
    writer.add_tensor("output.weight", output, raw_dtype=Kind.Q4_K)


def scaled(rows: np.ndarray, factor: float) -> np.ndarray:
    """Q4_K rows times a factor."""
    blocks = rows.reshape(len(rows), -1, gguf.GGML_QUANT_SIZES[Kind.Q4_K][1]).copy()
    scales = blocks[..., :4].view("<f2")  # both half floats of each block
    scales *= np.float16(factor)
    return blocks.reshape(rows.shape)


def _add_projection(writer: gguf.GGUFWriter, name: str, size: Size, strength: float, seed: int) -> None:
    """The token's half of a next-token layer's input comes through, the state's half is mixed."""
    random = np.random.default_rng(seed + 2).standard_normal((size.hidden, 2 * size.hidden)) / math.sqrt(
        2 * size.hidden
    )
    if strength:
        random[:, : size.hidden] = strength * np.eye(size.hidden)
    data = native.quantize_rows("q8_0", random.astype(np.float32))
    rows = np.frombuffer(data, np.uint8).reshape(size.hidden, -1)
    writer.add_tensor(name, rows, raw_dtype=Kind.Q8_0)


def write_metadata(writer: gguf.GGUFWriter, size: Size) -> None:
    writer.add_name("made up")
    writer.add_context_length(size.context)
    writer.add_embedding_length(size.hidden)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.inner)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.key_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(size.hidden // size.heads)
    writer.add_vocab_size(size.vocabulary)
    tokens = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]
    words = size.vocabulary - len(tokens)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([*tokens, "▁", *(f"▁w{number}" for number in range(words - 1))])
    writer.add_token_scores([-float(number) for number in range(size.vocabulary)])
    writer.add_token_types([int(kind) for kind in kinds] + [int(gguf.TokenType.NORMAL)] * words)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def write_heads(path: Path, base: Path, kind: schema.Kind, size: Size, seed: int = 0) -> None:
    """Heads of Q8_0 with a draft vocabulary. Whole or not at all."""
    rng = np.random.default_rng(seed)
    widest = size.hidden * (HEADS + 1 if kind == "hydra" else 1)
    pool = Blocks(Kind.Q8_0, size.hidden * widest, rng)
    pool.set_scales(widest)
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, schema.ARCHITECTURE)
        writer.add_uint32(schema.VERSION_KEY, schema.VERSION)
        writer.add_string(schema.KIND_KEY, kind)
        writer.add_uint32(schema.HEAD_COUNT_KEY, HEADS)
        writer.add_uint32(schema.BLOCK_COUNT_KEY, BLOCKS[kind])
        writer.add_string(schema.LM_HEAD_KEY, "draft_vocab")
        writer.add_uint32(schema.DRAFT_VOCAB_SIZE_KEY, size.draft_vocabulary)
        writer.add_string(schema.INPUT_KEY, schema.INPUT)
        writer.add_string(schema.BASE_FINGERPRINT_KEY, fingerprint(native.read_gguf(str(base)).metadata))
        for head in range(HEADS):
            for block in range(BLOCKS[kind]):
                columns = size.hidden * (head + 2 if kind == "hydra" and block == 0 else 1)
                names = [schema.block(head, block, "weight")]
                names += [schema.residual(head, "weight")] if columns > size.hidden else []
                for name in names:
                    writer.add_tensor(name, pool.matrix(size.hidden, columns), raw_dtype=Kind.Q8_0)
        writer.add_tensor(schema.D2T, np.arange(size.draft_vocabulary, dtype=np.int32))
        finish(writer)


def write_experts(path: Path, layers: int, experts: int, used: int, type_name: str) -> None:
    """A Qwen3 MoE in the shapes of Qwen3-30B-A3B, matrices in one ggml type, all experts alike.

    Its vocabulary has no words; the output matrix has the share of the weights that it has in the whole model.
    """
    hidden, inner, heads, key_heads, head_size, vocabulary = 2048, 768, 32, 4, 128, 16384
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType[type_name.upper()]
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner * used)
    writer.add_expert_feed_forward_length(inner)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    writer.add_head_count(heads)
    writer.add_head_count_kv(key_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(vocabulary)

    def random(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

    def quantized(rows: int, columns: int) -> np.ndarray:
        data = native.quantize_rows(type_name, random(rows, columns))
        return np.frombuffer(data, np.uint8).reshape(rows, -1)

    def matrix(name: str, data: np.ndarray) -> None:
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    # One array for all layers: the writer keeps what it is given.
    attention = {
        "attn_q": quantized(heads * head_size, hidden),
        "attn_k": quantized(key_heads * head_size, hidden),
        "attn_v": quantized(key_heads * head_size, hidden),
        "attn_output": quantized(hidden, heads * head_size),
    }
    up, down = (
        np.tile(quantized(rows, columns), (experts, 1, 1)) for rows, columns in ((inner, hidden), (hidden, inner))
    )
    matrix("token_embd", quantized(vocabulary, hidden))
    matrix("output", quantized(vocabulary, hidden))
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(layers):
        for name, size in (("attn_norm", hidden), ("attn_q_norm", head_size), ("attn_k_norm", head_size)):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.ones(hidden, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", random(experts, hidden))
        for name, data in attention.items():
            matrix(f"blk.{layer}.{name}", data)
        for name, data in (("gate", up), ("up", up), ("down", down)):
            matrix(f"blk.{layer}.ffn_{name}_exps", data)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
