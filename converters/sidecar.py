"""Heads sidecar files: a GGUF of architecture "medusa" that holds draft heads and nothing of the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from medusa_cli.errors import MedusaError

from .atomic import atomic_path

ARCHITECTURE = "medusa"
VERSION = 1
SELF_CHECK_KEY = "medusa.check.top1"
"""f32[K]: share of positions where the best token of head k was right in a short sample; NaN: not measured."""
LM_HEADS = ("own", "base", "draft_vocab")


@dataclass(frozen=True)
class Block:
    """One residual block x + SiLU(Wx + b): weight [h, h] (out, in), bias [h]."""

    weight: NDArray[np.floating]
    bias: NDArray[np.floating]


@dataclass(frozen=True)
class MedusaHeads:
    """Medusa heads as a sidecar stores them.

    blocks: [head][block]. lm_head "own": outputs[head] is [V, h]; "base": nothing more; "draft_vocab": d2t [D] holds
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

    def check(self) -> int:
        """The hidden size. MedusaError for parts that do not fit together."""
        if self.lm_head not in LM_HEADS:
            raise MedusaError(f"heads: unknown lm_head {self.lm_head!r}, one of {', '.join(LM_HEADS)}")
        if not self.blocks or len({len(row) for row in self.blocks}) != 1 or not self.blocks[0]:
            raise MedusaError("heads: every head needs the same number of blocks, at least one")
        hidden = self.blocks[0][0].bias.size
        for k, row in enumerate(self.blocks):
            for j, block in enumerate(row):
                if block.weight.shape != (hidden, hidden) or block.bias.shape != (hidden,):
                    raise MedusaError(f"heads: block {j} of head {k} has shape {block.weight.shape}, not {hidden} wide")
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


def flatten_tree(choices: Sequence[Sequence[int]]) -> list[int]:
    """[[0], [0, 1]] -> [1, 0, 2, 0, 1]: each path behind its length."""
    return [value for path in choices for value in (len(path), *path)]


def unflatten_tree(values: Sequence[int]) -> list[list[int]]:
    """Inverse of flatten_tree. MedusaError when the lengths do not add up."""
    choices, at = [], 0
    while at < len(values):
        end = at + 1 + values[at]
        if values[at] < 1 or end > len(values) or min(values[at + 1 : end]) < 0:
            raise MedusaError(f"medusa.tree: broken at entry {at}, the heads file is damaged")
        choices.append(list(values[at + 1 : end]))
        at = end
    return choices


def write_sidecar(path: Path, heads: MedusaHeads) -> None:
    """Writes `heads` to `path`, whole or not at all: weights F16, biases F32, d2t I32. Deterministic."""
    heads.check()
    with atomic_path(path) as temporary:
        writer = GGUFWriter(temporary, ARCHITECTURE)
        _add_keys(writer, heads)
        for k, row in enumerate(heads.blocks):
            for j, block in enumerate(row):
                _add_f16(writer, f"medusa.{k}.block.{j}.weight", block.weight)
                writer.add_tensor(f"medusa.{k}.block.{j}.bias", np.ascontiguousarray(block.bias, dtype=np.float32))
        for k, matrix in enumerate(heads.outputs):
            _add_f16(writer, f"medusa.{k}.output.weight", matrix)
        if heads.output is not None:
            _add_f16(writer, "medusa.output.weight", heads.output)
        if heads.d2t is not None:
            writer.add_tensor("medusa.d2t", np.ascontiguousarray(heads.d2t, dtype=np.int32))
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()


def _add_keys(writer: GGUFWriter, heads: MedusaHeads) -> None:
    writer.add_uint32("medusa.version", VERSION)
    writer.add_string("medusa.kind", "medusa")
    writer.add_uint32("medusa.head_count", len(heads.blocks))
    writer.add_uint32("medusa.block_count", len(heads.blocks[0]))
    writer.add_string("medusa.lm_head", heads.lm_head)
    if heads.d2t is not None:
        writer.add_uint32("medusa.draft_vocab_size", len(heads.d2t))
    writer.add_string("medusa.input", "post_norm")
    if heads.accuracy:
        writer.add_array("medusa.accuracy", [float(value) for row in heads.accuracy for value in row])
        writer.add_uint32("medusa.accuracy_ranks", len(heads.accuracy[0]))
    writer.add_array("medusa.tree", [int(value) for value in flatten_tree(heads.tree)])
    writer.add_string("medusa.base.name", heads.base_name)
    writer.add_string("medusa.base.fingerprint", heads.base_fingerprint)


def _add_f16(writer: GGUFWriter, name: str, matrix: NDArray[np.floating]) -> None:
    """numpy's [out, in] becomes ggml's ne = {in, out}; values beyond F16's range would turn into infinities."""
    with np.errstate(over="ignore"):
        narrow = np.ascontiguousarray(matrix, dtype=np.float16)
    if not np.isfinite(narrow).all():
        raise MedusaError(f"{name}: holds values that F16 cannot represent, train with a lower learning rate")
    writer.add_tensor(name, narrow)
