"""Random draft heads of every kind, as the converters hold them and as a file the engine reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import _native_testing as testing
import numpy as np
from fixtures import BASE_HIDDEN, BASE_VOCAB
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.formats import HeadTensor, SourceHeads
from medusa_cli.converters.heads.stream_heads import Adapter, StreamHeads
from medusa_cli.converters.heads.write import HeadsPlan, write_heads_file
from stream_numpy import Base

from medusa_cli import native

DRAFT_VOCABULARY = 48

CELL_INNER = 128
PREFIX_HEADS, PREFIX_HEADS_KV, PREFIX_INNER = 4, 2, 96


def random_heads(
    kind: schema.Kind | Literal["recurrent"],
    lm_head: schema.LmHead = "own",
    *,
    heads: int = 3,
    blocks: int = 2,
    bias: bool = True,
    type_: str = "f16",
    embedding_scale: float = 1.0,
    from_answer: bool = False,
    prefix: bool = False,
    hidden: int = BASE_HIDDEN,
    seed: int = 0,
) -> SourceHeads:
    """Values that `type_` holds exactly. An own lm_head has a bias where `bias` and `kind` call for one; a recurrent
    head has none, and one block. prefix: a prefix layer before heads of another kind than hydra++."""
    rng = np.random.default_rng(seed)
    tensors: list[HeadTensor] = []

    def add(name: str, values: np.ndarray, role: Any) -> None:
        if values.ndim == 2:
            packed = native.quantize_rows(type_, values.astype(np.float32))
            values = testing.dequantize_rows(type_, packed, values.shape[1])
        tensors.append(HeadTensor(name, values.shape, role, lambda: values))

    def linear(
        named: Callable[[schema.Part], str],
        rows: int,
        columns: int,
        role: Literal["block", "output"],
        with_bias: bool,
    ) -> None:
        add(named("weight"), rng.standard_normal((rows, columns)) / np.sqrt(columns), role)
        if with_bias:
            role_of_bias = "bias" if role == "block" else "output_bias"
            add(named("bias"), rng.standard_normal(rows).astype(np.float32), role_of_bias)

    rows = DRAFT_VOCABULARY if lm_head == "draft_vocab" else BASE_VOCAB
    if kind == "recurrent":
        blocks, lm_head = 1, "base" if lm_head == "own" else lm_head
        for name, shape in schema.cell_shapes(hidden, CELL_INNER).items():
            add(schema.cell(name), rng.standard_normal(shape) / np.sqrt(shape[1]), "block")
    for k in range(0 if kind == "recurrent" else heads):
        for j in range(blocks):
            reads_path = kind != "medusa" and j == 0
            width = hidden * (k + 2) if reads_path else hidden
            linear(partial(schema.block, k, j), hidden, width, "block", bias)
            if reads_path:
                linear(partial(schema.residual, k), hidden, width, "block", bias)
        if lm_head == "own":
            linear(partial(schema.output, k), rows, hidden, "output", bias and kind != "medusa")
    if lm_head == "draft_vocab":
        d2t = rng.permutation(BASE_VOCAB)[:rows].astype(np.int32)
        tensors.append(HeadTensor(schema.D2T, d2t.shape, "map", lambda: d2t))
    metadata: dict[str, int | float | str] = {}
    if kind != "medusa":
        metadata[schema.EMBEDDING_SCALE_KEY] = embedding_scale
    if prefix or kind == "hydra++":
        width = hidden // PREFIX_HEADS * PREFIX_HEADS_KV
        shapes = schema.prefix_shapes(hidden, hidden, width, PREFIX_INNER)
        for name in schema.PREFIX_MATRICES:
            add(schema.prefix(name), rng.standard_normal(shapes[name]) / np.sqrt(shapes[name][1]), "prefix")
        for name in schema.PREFIX_NORMS:
            add(schema.prefix(name), rng.uniform(0.5, 1.5, hidden).astype(np.float32), "prefix")
        metadata[schema.PREFIX_HEAD_COUNT_KEY] = PREFIX_HEADS
        metadata[schema.PREFIX_HEAD_COUNT_KV_KEY] = PREFIX_HEADS_KV
        metadata[schema.PREFIX_ROPE_FREQ_BASE_KEY] = 10000.0
        metadata[schema.PREFIX_NORM_EPS_KEY] = 1e-5
        metadata[schema.PREFIX_FROM_ANSWER_KEY] = from_answer
    return SourceHeads("random", kind, heads, blocks, lm_head, hidden, rows, tensors, metadata=metadata)


def write(path: Path, source: SourceHeads, type_: str = "f16", *, base: str | None = None) -> Path:
    """base: file of the model that they name as theirs, which the command line checks."""
    made_for = fingerprint(native.read_gguf(base).metadata) if base is not None else ""
    write_heads_file(path, source, HeadsPlan("", made_for, type_, type_, encode=native.quantize_rows))
    return path


RootInput = Literal["matrix", "factors", "none"]
"""How streams see the root's token embedding; trained ones through a matrix."""


def random_streams(
    base: Base,
    *,
    gamma: int = 4,
    layers: int = 2,
    rank: int = 8,
    root: RootInput = "matrix",
    rows: int = DRAFT_VOCABULARY,
    strength: float = 0.3,
    seed: int = 0,
) -> StreamHeads:
    """Streams through the top `layers` of a base, whose adapters add about `strength` of what a matrix gives.

    rank 0: shared mode, without adapters.
    """
    rng = np.random.default_rng(seed)
    first = base.layers - layers

    def half(*shape: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal(shape) * scale / np.sqrt(shape[1])).astype(np.float16)

    def adapters(layer: int) -> dict[str, Adapter]:
        out = {}
        for name in schema.STREAM_MATRICES:
            outputs, inputs = base.tensors[f"blk.{first + layer}.{name}.weight"].shape
            out[name] = half(rank, inputs), half(outputs, rank, scale=strength)
        return out

    return StreamHeads(
        embedding=rng.standard_normal((gamma, base.hidden)).astype(np.float32),
        first_layer=first,
        layers=layers,
        d2t=rng.permutation(len(base.tensors["token_embd.weight"]))[:rows].astype(np.int32),
        base_name=base.name,
        base_fingerprint=base.fingerprint,
        root_scale=rng.standard_normal(base.hidden).astype(np.float32) / 2 if root == "factors" else None,
        root=(half(8, base.hidden), half(base.hidden, 8)) if root == "matrix" else None,
        adapters=[adapters(layer) for layer in range(layers if rank else 0)],
        alpha=2.0 * rank,
        mode="lossless" if rank else "shared",
        accuracy=[[0.5, 0.2, 0.1]] * gamma,
        tree=[[0], [1], [0, 0]],
    )
