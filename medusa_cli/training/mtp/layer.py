"""The layer for further tokens (MTP) of Qwen3.5 in torch, and drafts of it as the engine makes them.

At position p it reads a pair: the token's embedding there, and the state before it, after the final norm. Below a root,
the states are its own, which feed the next pair; attention sees the pairs of the text up to the root's, which hold the
model's states, and those of the draft (native/draft_model/pair_levels.h). One layer serves all depths, as in FastMTP
(Cai et al. 2025, arXiv:2509.18362).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from medusa_cli.models.tensors import Tensors

from ..backbone.layers import Rotation, rms_norm
from ..heads.layers import HeadInputs
from ..streams.layers import Piece, attend_texts
from .shape import (
    EMBEDDING_NORM,
    HEAD_NORM,
    OPTIONAL_PARTS,
    OUTPUT_NORM,
    PARTS,
    PROJECTION,
    STATE_NORM,
    MtpShape,
    read_shape,
)


@dataclass(frozen=True)
class PairTexts:
    """Whole texts as pairs. tokens [P, h], states [P, w]: their halves, float32; places [P]: of each pair in its text;
    roots [B]: the pairs, among all, from which drafts begin."""

    pieces: list[Piece]
    tokens: Tensor
    states: Tensor
    places: Tensor
    roots: Tensor


def pair_texts(inputs: HeadInputs, embedded: Tensor) -> PairTexts:
    """The rows of `inputs` are whole texts, which begin with its context of pairs [p, h + w], if there is any.
    embedded [B, count, h]: those of `inputs`, rounded."""
    assert inputs.lengths is not None
    hidden, device = embedded.shape[2], inputs.states.device
    rows = torch.cat((embedded[:, 0].float(), inputs.states.float()), dim=1)
    contexts = list(inputs.context) or [rows.new_zeros(0, rows.shape[1])] * len(inputs.lengths)
    pairs = rows.split(list(inputs.lengths))
    texts = [torch.cat((first.to(device).float(), own)) for first, own in zip(contexts, pairs, strict=True)]
    pieces = [Piece(len(text), len(text) - count, count) for text, count in zip(texts, inputs.lengths, strict=True)]
    tokens, states = torch.cat(texts).split((hidden, rows.shape[1] - hidden), dim=1)
    places = [torch.arange(piece.length, device=device) for piece in pieces]
    begins = accumulate((piece.length for piece in pieces), initial=0)
    roots = [begin + own[piece.first :] for begin, own, piece in zip(begins, places, pieces, strict=False)]
    return PairTexts(pieces, tokens, states, torch.cat(places), torch.cat(roots))


class MtpLayer(nn.Module):
    """The layer as it is in a file; all its tensors are trained."""

    def __init__(self, tensors: Tensors, shape: MtpShape, device: torch.device) -> None:
        super().__init__()
        self.shape = shape
        self.parts = [part for part in (*PARTS, *OPTIONAL_PARTS) if tensors.has(shape.tensor(part))]
        """As they are called in a file, after the layer's name."""
        self.weights = nn.ParameterDict(
            {
                _key(part): nn.Parameter(torch.from_numpy(tensors.load(shape.tensor(part))).to(device))
                for part in self.parts
            }
        )
        self._output_norm = torch.from_numpy(tensors.load(OUTPUT_NORM)).to(device)
        turning = torch.tensor(shape.turning, device=device)
        self._factors = torch.where(turning, 1.0, torch.inf)

    def weight(self, part: str) -> nn.Parameter:
        """One of `parts`."""
        parameter: nn.Parameter = self.weights[_key(part)]
        return parameter

    @property
    def count(self) -> int:
        return self.shape.count

    def output(self, shared: Tensor) -> Tensor:
        """The output matrix [D, h] is the model's."""
        return shared

    def forward(self, inputs: HeadInputs, dtype: torch.dtype = torch.float32) -> Tensor:
        """[count, B, h] float32: the states from which each depth is drafted; the products are taken in `dtype`.

        The rows of `inputs` are whole texts. Its context is of pairs [P, 2h] of embedding and state; without any, texts
        begin with their first row.
        """
        assert inputs.embedded is not None
        embedded = inputs.embedded.to(dtype)
        texts = pair_texts(inputs, embedded)
        x = self._projected(texts.tokens, texts.states, dtype)
        past = self._keys_values(x, self._rotation(texts.places), dtype)
        x, own_keys, own_values, states = x[texts.roots], list[Tensor](), list[Tensor](), list[Tensor]()
        for depth in range(self.shape.count):
            rotation = self._rotation(texts.places[texts.roots] + depth)
            if depth > 0:
                x = self._projected(embedded[:, depth], states[-1], dtype)
                keys, values = self._keys_values(x, rotation, dtype)
                own_keys.append(keys)
                own_values.append(values)
            none = past[0].new_zeros(len(x), 0, *past[0].shape[1:])
            own = [torch.stack(parts, dim=1) if parts else none for parts in (own_keys, own_values)]
            states.append(self._left(x, rotation, (own[0], own[1]), past, texts.pieces, dtype))
        return torch.stack(states)

    def _projected(self, embedded: Tensor, states: Tensor, dtype: torch.dtype) -> Tensor:
        """[R, h]: what the layer reads."""
        parts = (self._norm(embedded, EMBEDDING_NORM), self._norm(states, STATE_NORM))
        return functional.linear(torch.cat(parts, dim=1).to(dtype), self.weight(PROJECTION).to(dtype)).float()

    def _keys_values(self, x: Tensor, rotation: Rotation, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[R, heads_kv, head_size] each."""
        y = self._norm(x, "attn_norm.weight")
        k, v = (self._linear(f"attn_{part}", y, dtype).unflatten(1, (self.shape.heads_kv, -1)) for part in "kv")
        return rotation(self._norm(k, "attn_k_norm.weight")).to(dtype), v

    def _left(
        self,
        x: Tensor,
        rotation: Rotation,
        own: tuple[Tensor, Tensor],
        past: tuple[Tensor, Tensor],
        pieces: Sequence[Piece],
        dtype: torch.dtype,
    ) -> Tensor:
        """[R, h] after the head's norm. own: keys and values of each row's draft, [R, depth, heads_kv, head_size]."""
        shape, depth = self.shape, own[0].shape[1]
        both = self._linear("attn_q", self._norm(x, "attn_norm.weight"), dtype).view(
            -1, shape.heads, 2, shape.head_size
        )
        q, gate = rotation(self._norm(both[:, :, 0], "attn_q_norm.weight")).to(dtype), both[:, :, 1].flatten(1)
        own_k, own_v = (part.flatten(0, 1) for part in own)
        mixed = attend_texts(q, (own_k, own_v), past, pieces, depth, shape.query_scale)
        x = x + self._linear("attn_output", mixed * gate.sigmoid(), dtype).float()
        y = self._norm(x, "post_attention_norm.weight")
        inner = functional.silu(self._linear("ffn_gate", y, dtype)) * self._linear("ffn_up", y, dtype)
        x = x + self._linear("ffn_down", inner, dtype).float()
        norm = self.weight(HEAD_NORM) if HEAD_NORM in self.parts else self._output_norm
        return rms_norm(x, norm, shape.eps)

    def _rotation(self, positions: Tensor) -> Rotation:
        return Rotation(self.shape.rotated, False, self.shape.rope, self._factors, positions)

    def _linear(self, part: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        bias = self.weight(f"{part}.bias").to(dtype) if f"{part}.bias" in self.parts else None
        return functional.linear(x.to(dtype), self.weight(f"{part}.weight").to(dtype), bias)

    def _norm(self, x: Tensor, part: str) -> Tensor:
        return rms_norm(x, self.weight(part), self.shape.eps)


def read_layer(path: Path, count: int, device: torch.device) -> MtpLayer:
    """The layer of the model in `path`, for `count` tokens in a row. MedusaError as read_shape()."""
    tensors = Tensors(path)
    return MtpLayer(tensors, read_shape(tensors.header, count), device)


def _key(part: str) -> str:
    """Modules do not allow dots."""
    return part.replace(".", "/")
