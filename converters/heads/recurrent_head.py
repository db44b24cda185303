"""A recurrent head in memory and in a file: one cell, applied once for each level (after ReDrafter, 2403.09919).

    s_0 = the base's hidden state        e_k = the embedding of the token at depth k - 1 (the root first)
    s_k = residual [s_k-1; e_k] + down (SiLU(gate y) * (up y)),   y = [norm(s_k-1); norm(e_k)]

The norms are root mean squares without weights. Output rows times s_k give the token at depth k, for k up to the
number of heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from . import schema
from .draft_heads import Writable, tensor_of
from .formats import HeadTensor, SourceHeads


@dataclass(frozen=True)
class RecurrentHead(Writable):
    """cell: matrices [out, in] by name: residual [h, 2h], gate and up [inner, 2h], down [h, inner].

    levels: as many as it was trained for. d2t [D]: the base token of each row of the draft vocabulary; None: all tokens
    of the base. embedding_scale: the base's token embeddings are multiplied by it.
    """

    cell: Mapping[str, NDArray[np.floating]]
    levels: int
    d2t: NDArray[np.integer] | None = None
    embedding_scale: float = 1.0

    def check(self) -> int:
        """The hidden size. MedusaError for parts that do not fit together."""
        if set(self.cell) != set(schema.CELL_MATRICES):
            raise MedusaError("recurrent head: its cell needs " + ", ".join(schema.CELL_MATRICES))
        hidden, inner = self.cell["down"].shape
        for name, shape in schema.cell_shapes(hidden, inner).items():
            if self.cell[name].shape != shape:
                raise MedusaError(f"recurrent head: {name} has shape {self.cell[name].shape}, not {shape}")
        if self.levels < 1:
            raise MedusaError(f"recurrent head: {self.levels} levels, at least 1")
        if len({len(row) for row in self.accuracy}) > 1 or len(self.accuracy) not in (0, self.levels):
            raise MedusaError("recurrent head: accuracy must be a table of levels x ranks")
        return int(hidden)

    def source(self) -> SourceHeads:
        """As in Writable; errors as from check()."""
        hidden = self.check()
        return SourceHeads(
            family="trained",
            kind=schema.RECURRENT,
            head_count=self.levels,
            block_count=1,
            lm_head="base" if self.d2t is None else "draft_vocab",
            hidden=hidden,
            rows=0 if self.d2t is None else len(self.d2t),
            tensors=self._tensors(),
            metadata={schema.EMBEDDING_SCALE_KEY: float(self.embedding_scale)},
        )

    def _tensors(self) -> list[HeadTensor]:
        tensors = [tensor_of(schema.cell(name), self.cell[name], "block") for name in schema.CELL_MATRICES]
        if self.d2t is not None:
            tensors.append(HeadTensor(schema.D2T, self.d2t.shape, "map", partial(np.array, self.d2t, np.int32)))
        return tensors
