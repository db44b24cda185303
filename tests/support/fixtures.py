"""Tiny models and heads, written with gguf-py from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

BASE_HIDDEN, BASE_VOCAB, BASE_LAYERS, BASE_HEADS, BASE_FF = 64, 320, 2, 4, 128


def byte_vocabulary(size: int) -> tuple[list[str], list[float], list[int]]:
    """A SentencePiece-style vocabulary: three specials, 256 bytes, then letters and made-up words."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.BYTE] * 256
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    words += [first + second for first in "abcdefgh" for second in "aeiou"]
    tokens += words[: size - len(tokens)]
    types += [gguf.TokenType.NORMAL] * (size - len(types))
    return tokens, [-float(i) for i in range(size)], [int(kind) for kind in types]


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    tokens, scores, types = byte_vocabulary(size)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_byte_vocabulary(writer: gguf.GGUFWriter, size: int, pre: str) -> None:
    """A byte-level vocabulary without merges but for pairs of "a"; pre: libllama's name of what splits texts."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    tokens = [chr(byte) for byte in shown] + [chr(256 + place) for place in range(len(hidden))]
    tokens += ["aa", *(f"<{number}>" for number in range(size - 257))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * (size - 257))
    writer.add_token_merges(["a a"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_base(
    path: Path,
    *,
    seed: int = 0,
    chat_template: str | None = None,
    context: int = 256,
    heads: int = BASE_HEADS,
    experts: int = 0,
    tied: bool = False,
    tensors_per_part: int = 0,
    pre: str = "",
) -> Path:
    """A llama of two layers with F32 weights; with batch-width noise far below the gaps between its logits.

    `experts`: of a Mixtral-like model, which sends each token to two of them. `tied`: its output
    matrix is that of the embeddings. `tensors_per_part`: of a model split into several files, PATH-0000n-of-0000m.
    `pre`: of a byte-level vocabulary, libllama's name of the rule that splits texts into words.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_per_part)
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(BASE_HIDDEN)
    writer.add_block_count(BASE_LAYERS)
    writer.add_feed_forward_length(BASE_FF)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(BASE_HIDDEN // heads)
    writer.add_vocab_size(BASE_VOCAB)
    if pre:
        add_byte_vocabulary(writer, BASE_VOCAB, pre)
    else:
        add_vocabulary(writer, BASE_VOCAB)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    def matrix(name: str, *shape: int) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    def ones(name: str) -> None:
        writer.add_tensor(name, np.ones(BASE_HIDDEN, np.float32))

    writer.add_tensor("token_embd.weight", rng.standard_normal((BASE_VOCAB, BASE_HIDDEN)).astype(np.float32))
    for layer in range(BASE_LAYERS):
        ones(f"blk.{layer}.attn_norm.weight")
        for part in ("q", "k", "v"):
            matrix(f"blk.{layer}.attn_{part}.weight", BASE_HIDDEN, BASE_HIDDEN)
        matrix(f"blk.{layer}.attn_output.weight", BASE_HIDDEN, BASE_HIDDEN)
        ones(f"blk.{layer}.ffn_norm.weight")
        if experts:
            matrix(f"blk.{layer}.ffn_gate_inp.weight", experts, BASE_HIDDEN)
        for name, shape in (
            ("gate", (BASE_FF, BASE_HIDDEN)),
            ("up", (BASE_FF, BASE_HIDDEN)),
            ("down", (BASE_HIDDEN, BASE_FF)),
        ):
            if experts:
                matrix(f"blk.{layer}.ffn_{name}_exps.weight", experts, *shape)
            else:
                matrix(f"blk.{layer}.ffn_{name}.weight", *shape)
    ones("output_norm.weight")
    if not tied:
        matrix("output.weight", BASE_VOCAB, BASE_HIDDEN)
    finish(writer)
    return path


def tiny_recurrent(path: Path, *, seed: int = 0, chat_template: str | None = None) -> Path:
    """A Mamba of one layer: its state cannot follow a tree."""
    rng = np.random.default_rng(seed)
    inner, state, convolution, rank = 2 * BASE_HIDDEN, 8, 4, 4
    writer = gguf.GGUFWriter(path, "mamba")
    writer.add_name("tiny recurrent")
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    writer.add_context_length(256)
    writer.add_embedding_length(BASE_HIDDEN)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(1)
    writer.add_ssm_conv_kernel(convolution)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(BASE_VOCAB)
    add_vocabulary(writer, BASE_VOCAB)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    tensor("token_embd.weight", BASE_VOCAB, BASE_HIDDEN)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(BASE_HIDDEN, np.float32))
    tensor("blk.0.ssm_in.weight", 2 * inner, BASE_HIDDEN)
    tensor("blk.0.ssm_conv1d.weight", inner, convolution)
    writer.add_tensor("blk.0.ssm_conv1d.bias", np.zeros(inner, np.float32))
    tensor("blk.0.ssm_x.weight", rank + 2 * state, inner)
    tensor("blk.0.ssm_dt.weight", inner, rank)
    writer.add_tensor("blk.0.ssm_dt.bias", np.zeros(inner, np.float32))
    writer.add_tensor("blk.0.ssm_a", -np.ones((inner, state), np.float32))
    writer.add_tensor("blk.0.ssm_d", np.ones(inner, np.float32))
    tensor("blk.0.ssm_out.weight", BASE_HIDDEN, inner)
    writer.add_tensor("output_norm.weight", np.ones(BASE_HIDDEN, np.float32))
    finish(writer)
    return path


@dataclass
class HeadsFile:
    """What write_heads() put into the file."""

    head_count: int
    block_count: int
    lm_head: str
    weight: list[list[np.ndarray]]
    bias: list[list[np.ndarray]] | None
    output: list[np.ndarray] | None
    d2t: np.ndarray | None


def write_heads(
    path: Path,
    *,
    heads: int,
    blocks: int,
    lm_head: str,
    bias: bool = True,
    hidden: int = BASE_HIDDEN,
    vocab: int = BASE_VOCAB,
    d2t: np.ndarray | None = None,
    draft_output: np.ndarray | None = None,
    weight_type: Any = np.float16,
    bias_type: Any = np.float32,
    skip: str | None = None,
    declared_heads: int | None = None,
    declared_blocks: int | None = None,
    tree: list[list[int]] | None = None,
    flat_tree: list[int] | None = None,
    version: int = 1,
    kind: str = "medusa",
    input: str = "post_norm",
    layer_offset: int = 0,
    accuracy: list[float] | None = None,
    lm_head_name: str | None = None,
    fill: float | None = None,
    seed: int = 0,
) -> HeadsFile:
    """A sidecar, right or wrong in one chosen way."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "medusa")
    writer.add_uint32("medusa.version", version)
    writer.add_string("medusa.kind", kind)
    writer.add_uint32("medusa.head_count", heads if declared_heads is None else declared_heads)
    writer.add_uint32("medusa.block_count", blocks if declared_blocks is None else declared_blocks)
    writer.add_string("medusa.lm_head", lm_head_name or lm_head)
    writer.add_string("medusa.input", input)
    if layer_offset:
        writer.add_uint32("medusa.input_layer_offset", layer_offset)
    if accuracy is not None:
        writer.add_array("medusa.accuracy", accuracy)
        writer.add_uint32("medusa.accuracy_ranks", 3)
    if tree is not None:
        flat_tree = [number for choice in tree for number in (len(choice), *choice)]
    if flat_tree is not None:
        writer.add_key_value("medusa.tree", flat_tree, gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)

    def add(name: str, data: np.ndarray) -> np.ndarray:
        if name != skip:
            writer.add_tensor(name, data)
        return data

    def weights(*shape: int) -> np.ndarray:
        values = np.full(shape, fill) if fill is not None else rng.standard_normal(shape) / np.sqrt(shape[-1])
        return values.astype(weight_type)

    weight = [
        [add(f"medusa.{k}.block.{j}.weight", weights(hidden, hidden)) for j in range(blocks)] for k in range(heads)
    ]
    biases = None
    if bias:
        biases = [
            [add(f"medusa.{k}.block.{j}.bias", rng.standard_normal(hidden).astype(bias_type)) for j in range(blocks)]
            for k in range(heads)
        ]
    output = None
    if lm_head == "own":
        output = [add(f"medusa.{k}.output.weight", weights(vocab, hidden)) for k in range(heads)]
    if lm_head == "draft_vocab":
        rows = 40 if draft_output is None else len(draft_output)
        d2t = np.sort(rng.permutation(vocab)[:rows]) if d2t is None else d2t
        writer.add_uint32("medusa.draft_vocab_size", len(d2t))
        add("medusa.d2t", d2t.astype(np.int32))
        if draft_output is not None:
            add("medusa.output.weight", draft_output)
    finish(writer)
    return HeadsFile(heads, blocks, lm_head, weight, biases, output, d2t)
