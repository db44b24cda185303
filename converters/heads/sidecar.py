"""Heads sidecar files: a GGUF of architecture "medusa" that holds draft heads and nothing of the base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from medusa_cli.support.atomic import atomic_path
from medusa_cli.support.errors import MedusaError

from .schema import (
    ARCHITECTURE,
    KINDS,
    LM_HEADS,
    PREFIX_MATRICES,
    PREFIX_NORMS,
    VERSION,
    WEIGHT_TYPES,
    flatten_tree,
)


@dataclass(frozen=True)
class Block:
    """A linear map: weight [out, in], bias [out]. As a residual block: x + SiLU(Wx + b), of size [h, h]."""

    weight: NDArray[np.floating]
    bias: NDArray[np.floating]


@dataclass(frozen=True)
class Prefix:
    """Hydra++'s decoder layer: its matrices [out, in] and norms by name. Rotary embedding over halves.

    from_answer: it sees an answer's hidden states alone, from that of the last prompt token on; else the prompt's too.
    """

    tensors: Mapping[str, NDArray[np.floating]]
    head_count: int
    head_count_kv: int
    rope_freq_base: float
    norm_eps: float
    from_answer: bool


@dataclass(frozen=True)
class DraftHeads:
    """Draft heads as a sidecar stores them.

    blocks: [head][block]; the first block of head k of Hydra heads is [h, h * (k + 2)] wide (k from 0), and residuals
    holds its linear residual of the same size. prefix: for Hydra++ alone. embedding_scale: what the base's token
    embeddings are multiplied with before Hydra heads read them. weight_type: of the matrices, one of WEIGHT_TYPES.
    lm_head "own": outputs[head] is [V, h]; "base": nothing more; "draft_vocab": d2t [D] holds
    the base token of each row, and output, where present, the rows [D, h] themselves (absent: the engine takes
    rows d2t of the base's output matrix when it loads).
    accuracy: [head][rank] = P(rank is right | its parent is right). tree: choice paths, parents first.
    """

    blocks: Sequence[Sequence[Block]]
    lm_head: str
    base_name: str
    base_fingerprint: str
    d2t: NDArray[np.integer] | None = None
    output: NDArray[np.floating] | None = None
    outputs: Sequence[NDArray[np.floating]] = ()
    accuracy: Sequence[Sequence[float]] = ()
    tree: Sequence[Sequence[int]] = field(default=())
    kind: str = "medusa"
    residuals: Sequence[Block] = ()
    prefix: Prefix | None = None
    embedding_scale: float = 1.0
    weight_type: str = "f16"

    def check(self) -> int:
        """The hidden size. MedusaError for parts that do not fit together."""
        for name, known in (("lm_head", LM_HEADS), ("kind", KINDS), ("weight_type", WEIGHT_TYPES)):
            if getattr(self, name) not in known:
                raise MedusaError(f"heads: unknown {name} {getattr(self, name)!r}, one of {', '.join(known)}")
        if not self.blocks or len({len(row) for row in self.blocks}) != 1 or not self.blocks[0]:
            raise MedusaError("heads: every head needs the same number of blocks, at least one")
        hidden = self.blocks[0][0].bias.size
        self._check_blocks(hidden)
        self._check_prefix(hidden)
        matrices = [*self.outputs] if self.output is None else [self.output, *self.outputs]
        if any(matrix.ndim != 2 or matrix.shape[1] != hidden for matrix in matrices):
            raise MedusaError(f"heads: output matrices must be [rows, {hidden}]")
        if (self.lm_head == "own") != (len(self.outputs) == len(self.blocks)):
            raise MedusaError("heads: lm_head 'own' needs one output matrix for each head, the others none")
        if (self.lm_head == "draft_vocab") != (self.d2t is not None):
            raise MedusaError("heads: lm_head 'draft_vocab' needs d2t, the others none")
        if self.output is not None and (self.d2t is None or len(self.output) != len(self.d2t)):
            raise MedusaError("heads: the draft vocabulary's output matrix must have one row for each entry of d2t")
        if len({len(row) for row in self.accuracy}) > 1 or len(self.accuracy) not in (0, len(self.blocks)):
            raise MedusaError("heads: accuracy must be a table of heads x ranks")
        return hidden

    def _check_blocks(self, hidden: int) -> None:
        grounded = self.kind != "medusa"
        if len(self.residuals) != (len(self.blocks) if grounded else 0):
            raise MedusaError("heads: every Hydra head needs one linear residual, Medusa heads none")
        for k, row in enumerate(self.blocks):
            first = hidden * (k + 2) if grounded else hidden
            widths = [first, *[hidden] * (len(row) - 1), first]
            for j, (block, columns) in enumerate(zip([*row, *self.residuals[k : k + 1]], widths, strict=False)):
                if block.weight.shape != (hidden, columns) or block.bias.shape != (hidden,):
                    raise MedusaError(
                        f"heads: block {j} of head {k} has shape {block.weight.shape}, not {columns} wide"
                    )

    def _check_prefix(self, hidden: int) -> None:
        if (self.prefix is not None) != (self.kind == "hydra++"):
            raise MedusaError("heads: Hydra++ heads need a prefix layer, the others have none")
        if self.prefix is None:
            return
        tensors = self.prefix.tensors
        if set(tensors) != {*PREFIX_MATRICES, *PREFIX_NORMS}:
            raise MedusaError("heads: a prefix layer needs " + ", ".join((*PREFIX_MATRICES, *PREFIX_NORMS)))
        inner, query, key = (tensors[name].shape[0] for name in ("ffn_gate", "attn_q", "attn_k"))
        shapes = dict.fromkeys(PREFIX_NORMS, (hidden,)) | {
            "attn_q": (query, hidden),
            "attn_k": (key, hidden),
            "attn_v": (key, hidden),
            "attn_output": (hidden, query),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }
        for name, shape in shapes.items():
            if tensors[name].shape != shape:
                raise MedusaError(f"heads: {name} of the prefix layer has shape {tensors[name].shape}, not {shape}")


def rounded(matrix: NDArray[np.floating], weight_type: str) -> NDArray[np.float32]:
    """`matrix` as a reader of a file with such weights sees it."""
    data, type_ = _encoded(np.asarray(matrix), weight_type)
    return np.asarray(dequantize(data, type_), dtype=np.float32)


def write_sidecar(path: Path, heads: DraftHeads) -> None:
    """Writes `heads` to `path`, whole or not at all: biases and norms F32, d2t I32. Deterministic."""
    heads.check()
    with atomic_path(path) as temporary:
        writer = GGUFWriter(temporary, ARCHITECTURE)
        _add_keys(writer, heads)
        for k, row in enumerate(heads.blocks):
            for j, block in enumerate(row):
                _add_block(writer, f"medusa.{k}.block.{j}", block, heads.weight_type)
            for residual in heads.residuals[k : k + 1]:
                _add_block(writer, f"medusa.{k}.block.0.residual", residual, heads.weight_type)
        for k, matrix in enumerate(heads.outputs):
            _add_matrix(writer, f"medusa.{k}.output.weight", matrix, heads.weight_type)
        if heads.output is not None:
            _add_matrix(writer, "medusa.output.weight", heads.output, heads.weight_type)
        if heads.prefix is not None:
            for name in PREFIX_MATRICES:
                _add_matrix(writer, f"medusa.prefix.{name}.weight", heads.prefix.tensors[name], heads.weight_type)
            for name in PREFIX_NORMS:
                norm = np.ascontiguousarray(heads.prefix.tensors[name], dtype=np.float32)
                writer.add_tensor(f"medusa.prefix.{name}.weight", norm)
        if heads.d2t is not None:
            writer.add_tensor("medusa.d2t", np.ascontiguousarray(heads.d2t, dtype=np.int32))
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def _add_keys(writer: GGUFWriter, heads: DraftHeads) -> None:
    writer.add_uint32("medusa.version", VERSION)
    writer.add_string("medusa.kind", heads.kind)
    writer.add_uint32("medusa.head_count", len(heads.blocks))
    writer.add_uint32("medusa.block_count", len(heads.blocks[0]))
    writer.add_string("medusa.lm_head", heads.lm_head)
    if heads.d2t is not None:
        writer.add_uint32("medusa.draft_vocab_size", len(heads.d2t))
    writer.add_string("medusa.input", "post_norm")
    if heads.kind != "medusa":
        writer.add_float32("medusa.embedding_scale", heads.embedding_scale)
    if heads.prefix is not None:
        writer.add_uint32("medusa.prefix.head_count", heads.prefix.head_count)
        writer.add_uint32("medusa.prefix.head_count_kv", heads.prefix.head_count_kv)
        writer.add_float32("medusa.prefix.rope_freq_base", heads.prefix.rope_freq_base)
        writer.add_float32("medusa.prefix.norm_eps", heads.prefix.norm_eps)
        writer.add_bool("medusa.prefix.from_answer", heads.prefix.from_answer)
    if heads.accuracy:
        writer.add_array("medusa.accuracy", [float(value) for row in heads.accuracy for value in row])
        writer.add_uint32("medusa.accuracy_ranks", len(heads.accuracy[0]))
    writer.add_array("medusa.tree", [int(value) for value in flatten_tree(heads.tree)])
    writer.add_string("medusa.base.name", heads.base_name)
    writer.add_string("medusa.base.fingerprint", heads.base_fingerprint)


def _add_block(writer: GGUFWriter, name: str, block: Block, weight_type: str) -> None:
    _add_matrix(writer, f"{name}.weight", block.weight, weight_type)
    writer.add_tensor(f"{name}.bias", np.ascontiguousarray(block.bias, dtype=np.float32))


def _add_matrix(writer: GGUFWriter, name: str, matrix: NDArray[np.floating], weight_type: str) -> None:
    """numpy's [out, in] becomes ggml's ne = {in, out}."""
    data, type_ = _encoded(matrix, weight_type)
    if not np.isfinite(dequantize(data, type_)).all():
        raise MedusaError(f"{name}: holds values that F16 cannot represent, train with a lower learning rate")
    writer.add_tensor(name, data, raw_dtype=type_)


def _encoded(matrix: NDArray[np.floating], weight_type: str) -> tuple[NDArray[np.generic], GGMLQuantizationType]:
    """The values as stored, F16 where rows do not fill the type's blocks; too large ones turn into infinities."""
    type_ = GGMLQuantizationType[weight_type.upper()]
    if matrix.shape[-1] % GGML_QUANT_SIZES[type_][0]:
        type_ = GGMLQuantizationType.F16
    with np.errstate(over="ignore"):
        return quantize(np.ascontiguousarray(matrix, dtype=np.float32), type_), type_
