"""Draft heads in memory, as training leaves them, and their way into a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from ..files import atomic_path
from . import schema
from .formats import HeadTensor, SourceHeads
from .formats.model import Role
from .schema import KINDS, LM_HEADS, PREFIX_MATRICES, PREFIX_NORMS
from .write import HeadsPlan, tuned_entries, write_heads_file

WEIGHT_TYPES = ("f16", "q8_0")
"""ggml types in which matrices can be written; biases and norms are F32."""


@dataclass(frozen=True)
class Block:
    """A linear map: weight [out, in], bias [out]. As a residual block: x + SiLU(Wx + b), of size [h, h]."""

    weight: NDArray[np.floating]
    bias: NDArray[np.floating]


@dataclass(frozen=True)
class Prefix:
    """Hydra++'s decoder layer: its matrices [out, in] and norms by name. Rotary embedding over halves.

    from_answer: it sees only an answer's hidden states, from that of the last prompt token on; else the prompt's, too.
    """

    tensors: Mapping[str, NDArray[np.floating]]
    head_count: int
    head_count_kv: int
    rope_freq_base: float
    norm_eps: float
    from_answer: bool


@dataclass(frozen=True, kw_only=True)
class Writable(ABC):
    """What a file says about trained heads of every kind, and their way into it.

    base_name: general.name of the base; base_fingerprint: from gguf.fingerprint. accuracy: [head][rank] =
    P(rank is right | its parent is right). tree: choice paths, parents first. weight_type: the matrices', one of
    WEIGHT_TYPES.
    """

    base_name: str
    base_fingerprint: str
    accuracy: Sequence[Sequence[float]] = ()
    tree: Sequence[Sequence[int]] = ()
    weight_type: str = "f16"

    @abstractmethod
    def source(self) -> SourceHeads:
        """The heads for the writer, which copies one tensor at a time.

        MedusaError for parts that do not fit together; loading a tensor raises it for values that a file cannot hold.
        """


@dataclass(frozen=True)
class DraftHeads(Writable):
    """Draft heads and what their file will say about them.

    blocks: [head][block]; the first block of Hydra head k (from 0) is [h, h * (k + 2)] wide, and residuals holds its
    linear residual of the same size. prefix: for Hydra++, and for Medusa heads that have one. embedding_scale: the
    base's token embeddings are multiplied by it before Hydra heads read them.
    lm_head "own": outputs[head] is [V, h]; "base": nothing more; "draft_vocab": d2t [D] holds the base token of each
    row, and outputs [head], or output for all, if given, the rows [D, h] themselves (if not, the engine takes rows d2t
    of the base's output matrix when it loads).
    """

    blocks: Sequence[Sequence[Block]]
    lm_head: str
    d2t: NDArray[np.integer] | None = None
    output: NDArray[np.floating] | None = None
    outputs: Sequence[NDArray[np.floating]] = ()
    kind: str = "medusa"
    residuals: Sequence[Block] = ()
    prefix: Prefix | None = None
    embedding_scale: float = 1.0

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
        if self.outputs and (len(self.outputs) != len(self.blocks) or self.lm_head == "base"):
            raise MedusaError("heads: own output matrices are one for each head, none with lm_head 'base'")
        if self.lm_head == "own" and not self.outputs:
            raise MedusaError("heads: lm_head 'own' needs one output matrix for each head")
        if (self.lm_head == "draft_vocab") != (self.d2t is not None):
            raise MedusaError("heads: lm_head 'draft_vocab' needs d2t, the others none")
        if self.output is not None and self.d2t is None:
            raise MedusaError("heads: one output matrix for all is a draft vocabulary's")
        if self.d2t is not None and any(len(matrix) != len(self.d2t) for matrix in matrices):
            raise MedusaError("heads: a draft vocabulary's output matrices must have one row for each entry of d2t")
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
        fits = self.kind != "hydra++" if self.prefix is None else self.kind in ("medusa", "hydra++")
        if not fits:
            raise MedusaError("heads: Hydra++ heads need a prefix layer, Medusa heads may have one, others have none")
        if self.prefix is None:
            return
        tensors = self.prefix.tensors
        if set(tensors) != {*PREFIX_MATRICES, *PREFIX_NORMS}:
            raise MedusaError("heads: a prefix layer needs " + ", ".join((*PREFIX_MATRICES, *PREFIX_NORMS)))
        query, key, inner = (tensors[name].shape[0] for name in ("attn_q", "attn_k", "ffn_gate"))
        for name, shape in schema.prefix_shapes(hidden, query, key, inner).items():
            if tensors[name].shape != shape:
                raise MedusaError(f"heads: {name} of the prefix layer has shape {tensors[name].shape}, not {shape}")

    def source(self) -> SourceHeads:
        """As in Writable; errors as from check()."""
        hidden = self.check()
        rows = [len(values) for values in (self.d2t, *self.outputs) if values is not None]
        return SourceHeads(
            family="trained",
            kind=cast(schema.Kind, self.kind),
            head_count=len(self.blocks),
            block_count=len(self.blocks[0]),
            lm_head=cast(schema.LmHead, self.lm_head),
            hidden=hidden,
            rows=rows[0] if rows else 0,
            tensors=self._tensors(),
            metadata=self._metadata(),
        )

    def _tensors(self) -> list[HeadTensor]:
        """All tensors, in the order of the file."""
        tensors = []
        for k, row in enumerate(self.blocks):
            for j, block in enumerate(row):
                tensors += _linear(partial(schema.block, k, j), block)
            for residual in self.residuals[k : k + 1]:
                tensors += _linear(partial(schema.residual, k), residual)
        tensors += [tensor_of(schema.output(k, "weight"), matrix, "output") for k, matrix in enumerate(self.outputs)]
        if self.output is not None:
            tensors.append(tensor_of(schema.SHARED_OUTPUT, self.output, "output"))
        if self.prefix is not None:
            stored = self.prefix.tensors
            names = (*PREFIX_MATRICES, *PREFIX_NORMS)
            tensors += [tensor_of(schema.prefix(name), stored[name], "prefix") for name in names]
        if self.d2t is not None:
            tensors.append(HeadTensor(schema.D2T, self.d2t.shape, "map", partial(np.array, self.d2t, np.int32)))
        return tensors

    def _metadata(self) -> dict[str, int | float | str]:
        metadata: dict[str, int | float | str] = {}
        if self.kind != "medusa":
            metadata[schema.EMBEDDING_SCALE_KEY] = float(self.embedding_scale)
        if self.prefix is not None:
            metadata[schema.PREFIX_HEAD_COUNT_KEY] = self.prefix.head_count
            metadata[schema.PREFIX_HEAD_COUNT_KV_KEY] = self.prefix.head_count_kv
            metadata[schema.PREFIX_ROPE_FREQ_BASE_KEY] = float(self.prefix.rope_freq_base)
            metadata[schema.PREFIX_NORM_EPS_KEY] = float(self.prefix.norm_eps)
            metadata[schema.PREFIX_FROM_ANSWER_KEY] = self.prefix.from_answer
        return metadata


def write_heads(path: Path, heads: Writable) -> None:
    """Writes `heads` to `path` as a sidecar, whole or not at all.

    MedusaError for parts that do not fit together and for values that a file cannot hold.
    """
    source, type_ = heads.source(), heads.weight_type
    measured = tuned_entries(heads.accuracy, heads.tree)
    plan = HeadsPlan(heads.base_name, heads.base_fingerprint, output_type=type_, block_type=type_, measured=measured)
    with atomic_path(path) as temporary:
        write_heads_file(temporary, source, plan)


def _linear(named: Callable[[schema.Part], str], block: Block) -> list[HeadTensor]:
    return [tensor_of(named("weight"), block.weight, "block"), tensor_of(named("bias"), block.bias, "bias")]


def tensor_of(name: str, values: NDArray[np.floating], role: Role) -> HeadTensor:
    """A tensor; loading it raises MedusaError for values that a file cannot hold."""
    return HeadTensor(name, values.shape, role, partial(_checked, name, values))


def _checked(name: str, values: NDArray[np.floating]) -> NDArray[np.float32]:
    """A copy. MedusaError for NaNs and, in matrices, for values beyond F16: Q8_0's scales are of that type."""
    largest = np.abs(values).max(initial=0)
    if not np.isfinite(largest) or (values.ndim > 1 and largest > np.finfo(np.float16).max):
        raise MedusaError(f"{name}: holds NaN or values beyond F16, train with a lower learning rate")
    return np.array(values, dtype=np.float32)
