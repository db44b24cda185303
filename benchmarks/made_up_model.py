"""A model of a real one's shape and of random weights, and draft heads for it.

What a pass costs depends on shapes and types alone. Matrices are random blocks of the types that llama.cpp's Q4_K_M
recipe gives them, with scales that keep activations finite; what such a model says is noise. A pool of blocks serves
all matrices, each from a place of its own, so that 4 GB take seconds. The same seed makes the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
    "7b": Size(4096, 32, 14336, 32, 8, 32000, 8192),  # Mistral 7B
    "1b": Size(2048, 22, 5632, 32, 4, 32000, 8192),  # TinyLlama
    "tiny": Size(256, 2, 512, 4, 2, 512, 128, 4096),  # to try the scripts out
}


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


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
