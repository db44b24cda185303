"""Random draft heads of every kind, as the converters hold them and as a file the engine reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from fixtures import BASE_HIDDEN, BASE_VOCAB
from medusa_cli.converters.heads.formats import HeadTensor, SourceHeads
from medusa_cli.converters.heads.write import HeadsPlan, write_heads_file

from medusa_cli import native

DRAFT_VOCABULARY = 48

Kind = Literal["medusa", "hydra", "hydra++"]
PREFIX_HEADS, PREFIX_HEADS_KV, PREFIX_INNER = 4, 2, 96
LmHead = Literal["own", "base", "draft_vocab"]


def random_heads(
    kind: Kind,
    lm_head: LmHead = "own",
    *,
    heads: int = 3,
    blocks: int = 2,
    bias: bool = True,
    type_: str = "f16",
    embedding_scale: float = 1.0,
    hidden: int = BASE_HIDDEN,
    seed: int = 0,
) -> SourceHeads:
    """Values that `type_` holds exactly. An own lm_head has a bias where `bias` and `kind` call for one."""
    rng = np.random.default_rng(seed)
    tensors: list[HeadTensor] = []

    def add(name: str, values: np.ndarray, role: Any) -> None:
        if values.ndim == 2:
            packed = native.quantize_rows(type_, values.astype(np.float32))
            values = native.dequantize_rows(type_, packed, values.shape[1])
        tensors.append(HeadTensor(name, values.shape, role, lambda: values))

    def linear(name: str, rows: int, columns: int, role: Literal["block", "output"], with_bias: bool) -> None:
        add(f"{name}.weight", rng.standard_normal((rows, columns)) / np.sqrt(columns), role)
        if with_bias:
            role_of_bias = "bias" if role == "block" else "output_bias"
            add(f"{name}.bias", rng.standard_normal(rows).astype(np.float32), role_of_bias)

    rows = DRAFT_VOCABULARY if lm_head == "draft_vocab" else BASE_VOCAB
    for k in range(heads):
        for j in range(blocks):
            reads_path = kind != "medusa" and j == 0
            width = hidden * (k + 2) if reads_path else hidden
            linear(f"medusa.{k}.block.{j}", hidden, width, "block", bias)
            if reads_path:
                linear(f"medusa.{k}.block.0.residual", hidden, width, "block", bias)
        if lm_head == "own":
            linear(f"medusa.{k}.output", rows, hidden, "output", bias and kind != "medusa")
    if lm_head == "draft_vocab":
        d2t = rng.permutation(BASE_VOCAB)[:rows].astype(np.int32)
        tensors.append(HeadTensor("medusa.d2t", d2t.shape, "map", lambda: d2t))
    metadata: dict[str, int | float | str] = {"medusa.embedding_scale": embedding_scale} if kind != "medusa" else {}
    if kind == "hydra++":
        width = hidden // PREFIX_HEADS * PREFIX_HEADS_KV
        shapes = {"attn_q": (hidden, hidden), "attn_k": (width, hidden), "attn_v": (width, hidden)}
        shapes |= {"attn_output": (hidden, hidden), "ffn_gate": (PREFIX_INNER, hidden)}
        shapes |= {"ffn_up": (PREFIX_INNER, hidden), "ffn_down": (hidden, PREFIX_INNER)}
        for name, shape in shapes.items():
            add(f"medusa.prefix.{name}.weight", rng.standard_normal(shape) / np.sqrt(shape[1]), "prefix")
        for name in ("attn_norm", "ffn_norm", "output_norm"):
            add(f"medusa.prefix.{name}.weight", rng.uniform(0.5, 1.5, hidden).astype(np.float32), "prefix")
        metadata |= {"medusa.prefix.head_count": PREFIX_HEADS, "medusa.prefix.head_count_kv": PREFIX_HEADS_KV}
        metadata |= {"medusa.prefix.rope_freq_base": 10000.0, "medusa.prefix.norm_eps": 1e-5}
    return SourceHeads("random", kind, heads, blocks, lm_head, hidden, rows, tensors, metadata=metadata)


def write(path: Path, source: SourceHeads, type_: str = "f16") -> Path:
    write_heads_file(path, source, HeadsPlan("", "", type_, type_))
    return path
