"""Streams in memory and in a file: drafting with the base's own top layers (Speculative Streaming, 2402.11131).

A step's drafts come from one pass of `gamma` rows, the streams, through the layers first_layer .. N - 1 of the base:

    x_j = M + P_j (+ root_b root_a e)        j = 1 .. gamma, e: token embedding of the root

M is the state after layer first_layer - 1 at the last accepted token, whose position is t (the root would be at
t + 1); P_j is row j - 1 of `embedding`. Files can also have factors, `root_scale`, in place of root_b root_a. In each
layer every matrix has an adapter, one for all streams. Rotary embeddings rotate stream j by position t + j. It attends
to all cells that the accepted token sees, itself included, and to streams 1 .. j, whose keys and values are never
cached. After the base's final norm and output matrix, stream j gives the token at position t + 1 + j: the nodes of
depth j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from . import schema
from .draft_heads import Writable, tensor_of
from .formats import HeadTensor, SourceHeads

Adapter = tuple[NDArray[np.floating], NDArray[np.floating]]
"""lora_a [rank, in], lora_b [out, rank]."""


@dataclass(frozen=True)
class StreamHeads(Writable):
    """embedding [gamma, h]; root: root_a [r, h] and root_b [h, r], or root_scale [h]; None where streams do not see the
    root.

    adapters: [layer][name of a matrix], lowest layer first; empty in shared mode. first_layer: the base's, from 0.
    layers: how many from there on, up to the last. d2t [D]: the base token of each row of the draft vocabulary.
    """

    embedding: NDArray[np.floating]
    first_layer: int
    layers: int
    d2t: NDArray[np.integer]
    root_scale: NDArray[np.floating] | None = None
    root: Adapter | None = None
    adapters: Sequence[Mapping[str, Adapter]] = ()
    alpha: float = 0.0
    mode: schema.StreamsMode = "lossless"

    @property
    def rank(self) -> int:
        """Rank of the adapters; 0 if there are none."""
        return len(self.adapters[0][schema.STREAM_MATRICES[0]][0]) if self.adapters else 0

    def check(self) -> int:
        """The hidden size. MedusaError for parts that do not fit together."""
        if self.embedding.ndim != 2 or 0 in self.embedding.shape:
            raise MedusaError(f"streams: embeddings of shape {self.embedding.shape}, not [streams, hidden size]")
        count, hidden = self.embedding.shape
        if self.mode not in schema.STREAMS_MODES:
            raise MedusaError(f"streams: unknown mode {self.mode!r}, one of {', '.join(schema.STREAMS_MODES)}")
        if self.layers < 1 or self.first_layer < 1:
            raise MedusaError(f"streams: {self.layers} layers from layer {self.first_layer} on, at least 1 each")
        if self.root_scale is not None and self.root_scale.shape != (hidden,):
            raise MedusaError(f"streams: root_scale has shape {self.root_scale.shape}, not ({hidden},)")
        if self.root is not None:
            a, b = self.root
            if a.ndim != 2 or a.shape[1] != hidden or b.shape != a.shape[::-1] or self.root_scale is not None:
                raise MedusaError(f"streams: the matrices of the root have shapes {a.shape} and {b.shape}")
        if len(self.adapters) != (self.layers if self.mode == "lossless" else 0):
            raise MedusaError("streams: lossless mode needs adapters for each layer, shared mode has none")
        for number, layer in enumerate(self.adapters):
            if set(layer) != set(schema.STREAM_MATRICES):
                raise MedusaError("streams: a layer needs adapters of " + ", ".join(schema.STREAM_MATRICES))
            for name, (a, b) in layer.items():
                if a.ndim != 2 or b.ndim != 2 or len(a) != self.rank or b.shape[1] != self.rank:
                    found = f"{a.shape} and {b.shape}, not of rank {self.rank}"
                    raise MedusaError(f"streams: the adapter of {name}, layer {number}, has shapes {found}")
        if len({len(row) for row in self.accuracy}) > 1 or len(self.accuracy) not in (0, count):
            raise MedusaError("streams: accuracy must be a table of streams x ranks")
        return int(hidden)

    def source(self) -> SourceHeads:
        """As in Writable; errors as from check()."""
        hidden = self.check()
        return SourceHeads(
            family="trained",
            kind=schema.STREAMS,
            head_count=len(self.embedding),
            block_count=0,
            lm_head="draft_vocab",
            hidden=hidden,
            rows=len(self.d2t),
            tensors=self._tensors(),
            metadata=self._metadata(),
        )

    def _tensors(self) -> list[HeadTensor]:
        tensors = [tensor_of(schema.STREAM_EMBEDDING, self.embedding, "embedding")]
        if self.root_scale is not None:
            tensors.append(tensor_of(schema.STREAM_ROOT_SCALE, self.root_scale, "embedding"))
        for name, values in zip(schema.STREAM_ROOT, self.root or (), strict=False):
            tensors.append(tensor_of(name, values, "adapter"))
        for number, layer in enumerate(self.adapters):
            for name in schema.STREAM_MATRICES:
                for part, values in zip(schema.ADAPTER_PARTS, layer[name], strict=True):
                    tensors.append(tensor_of(schema.adapter(number, name, part), values, "adapter"))
        tensors.append(HeadTensor(schema.D2T, self.d2t.shape, "map", partial(np.array, self.d2t, np.int32)))
        return tensors

    def _metadata(self) -> dict[str, int | float | str]:
        return {
            schema.INPUT_KEY: schema.INPUT_LAYER,
            schema.INPUT_LAYER_OFFSET_KEY: self.layers,
            schema.STREAMS_MODE_KEY: self.mode,
            schema.STREAMS_LAYERS_KEY: self.layers,
            schema.STREAMS_FIRST_LAYER_KEY: self.first_layer,
            schema.STREAMS_RANK_KEY: self.rank,
            schema.STREAMS_ALPHA_KEY: float(self.alpha),
            schema.STREAMS_ROOT_KEY: self.root_scale is not None or self.root is not None,
            schema.STREAMS_ROOT_RANK_KEY: 0 if self.root is None else len(self.root[0]),
        }
