"""Draft heads in torch: Medusa, Hydra, Hydra++, recurrent. All map a hidden state to K states for one output matrix.

Hydra++ puts a layer before its heads: one causal decoder layer over the hidden states of the text so far. It reads the
same hidden states as the heads: those of all tokens before, including the prompt's (Hydra 4), or only those from the
one that the answer's first token was sampled from. Position 0 is the first state it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from medusa_cli.converters.heads.draft_heads import Block, DraftHeads, Prefix, Writable
from medusa_cli.converters.heads.recurrent_head import RecurrentHead
from medusa_cli.converters.heads.schema import CELL_MATRICES, PREFIX_MATRICES, PREFIX_NORMS, LmHead
from medusa_cli.converters.heads.write import rounded

from ..recipes import RECURRENT, PrefixSight
from .cell import Cell

WEIGHT_TYPE = "q8_0"
"""Our kernels multiply it; F16 is slower and no better."""
HEAD_SIZE = 64
INNER_FACTOR = 8 / 3
INNER_MULTIPLE = 32
ROPE_BASE = 10000.0
NORM_EPS = 1e-5


@dataclass(frozen=True)
class HeadShape:
    """kind: medusa, hydra, hydra++ or recurrent; count: heads, or levels of a recurrent one; blocks: residual blocks of
    each head, at least 1.

    prefix: what the prefix layer sees (recipe.PrefixSight); hydra++ has one anyway. own_rows: rows of each head's own
    output matrix; 0: they share a frozen one.
    """

    kind: str
    count: int
    hidden: int
    blocks: int
    prefix: PrefixSight = "none"
    own_rows: int = 0

    @property
    def has_prefix(self) -> bool:
        return self.prefix != "none" or self.kind == "hydra++"

    @property
    def sees_prompts(self) -> bool:
        return self.prefix == "context"


@dataclass(frozen=True)
class HeadInputs:
    """A batch. states [B, h]; embedded [B, K, h]: token embeddings of the root and the K - 1 tokens after it (Hydra).

    lengths: the rows are whole texts with these numbers of rows, in order (prefix layer, MTP layer). context: for each
    of these texts what is before its first row: the states [P, h] that its prefix layer sees, or an MTP layer's pairs
    [P, 2h] of token embedding and state; empty: none for any.
    """

    states: Tensor
    embedded: Tensor | None = None
    lengths: Sequence[int] | None = None
    context: Sequence[Tensor] = ()


class Drafting(Protocol):
    """What drafts K tokens in a row from HeadInputs: heads, or an MTP layer."""

    @property
    def count(self) -> int:
        """K."""

    def __call__(self, inputs: HeadInputs, dtype: torch.dtype = torch.float32) -> Tensor:
        """[K, B, h] float32; the products are taken in `dtype`."""

    def output(self, shared: Tensor) -> Tensor:
        """[K, D, h]: an output matrix for each depth in the dtype of `shared`; without these, `shared` [D, h]."""


class Heads(nn.Module):
    """K heads. Fresh ones pass the hidden state on as it is."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        count, hidden, blocks = shape.count, shape.hidden, shape.blocks
        self.grounded = shape.kind.startswith("hydra")
        self.cell = Cell(hidden) if shape.kind == RECURRENT else None
        own = 0 if self.cell else blocks - 1 if self.grounded else blocks
        self.weight = nn.Parameter(torch.zeros(own, count, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(own, count, hidden))
        first = [_first_block(hidden, k) for k in range(1, count + 1)] if self.grounded else []
        self.first = nn.ParameterList(first)
        self.first_bias = nn.Parameter(torch.zeros(len(first), 2 * hidden))
        self.prefix = PrefixLayer(PrefixShape.of(hidden)) if shape.has_prefix else None
        self.outputs = nn.Parameter(torch.zeros(count, shape.own_rows, hidden)) if shape.own_rows else None

    @property
    def count(self) -> int:
        return self.shape.count

    def forward(self, inputs: HeadInputs, dtype: torch.dtype = torch.float32) -> Tensor:
        """[K, B, h] float32; the products are taken in `dtype`."""
        states = inputs.states.float()
        if self.prefix is not None:
            assert inputs.lengths is not None
            states = self.prefix(states, inputs.lengths, dtype, inputs.context)
        if self.cell is not None:
            assert inputs.embedded is not None
            return self.cell(states, inputs.embedded, dtype)
        x = self._grown(states, inputs, dtype) if self.grounded else states
        for weight, bias in zip(self.weight, self.bias, strict=True):
            product = torch.matmul(x.to(dtype), weight.to(dtype).transpose(1, 2)).float()
            x = x + nn.functional.silu(product + bias[:, None, :])
        return x

    def output(self, shared: Tensor) -> Tensor:
        """[K, D, h]: each head's own output matrix in the dtype of `shared`; without these, `shared` [D, h] itself."""
        return shared if self.outputs is None else self.outputs.to(shared.dtype)

    def _grown(self, states: Tensor, inputs: HeadInputs, dtype: torch.dtype) -> Tensor:
        """[K, B, h]: the first blocks; head k reads the first h * (k + 1) columns of one row of all inputs."""
        assert inputs.embedded is not None
        row = torch.cat([states.to(dtype), inputs.embedded.to(dtype).flatten(1)], dim=1)
        parts = []
        for weight, bias in zip(self.first, self.first_bias, strict=True):
            product = nn.functional.linear(row[:, : weight.shape[1]], weight.to(dtype)).float() + bias
            residual, gate = product.chunk(2, dim=1)
            parts.append(residual + nn.functional.silu(gate))
        return torch.stack(parts)


def _first_block(hidden: int, head: int) -> nn.Parameter:
    """[2h, h * (head + 1)]: the linear residual, at first the hidden state, above the weight, at first zero."""
    weight = torch.zeros(2 * hidden, hidden * (head + 1))
    weight[:hidden, :hidden] = torch.eye(hidden)
    return nn.Parameter(weight)


# --- the prefix layer ------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrefixShape:
    """hidden: size of the states; heads of hidden / heads numbers each; inner: width of the SwiGLU part."""

    hidden: int
    heads: int
    inner: int

    @staticmethod
    def of(hidden: int) -> PrefixShape:
        """The usual proportions for a hidden size, heads of HEAD_SIZE where it divides the hidden size evenly."""
        heads = max(1, hidden // HEAD_SIZE)
        while hidden % heads or (hidden // heads) % 2:
            heads -= 1
        inner = -(-round(hidden * INNER_FACTOR) // INNER_MULTIPLE) * INNER_MULTIPLE
        return PrefixShape(hidden, heads, inner)


class PrefixLayer(nn.Module):
    """x + attention(norm(x)), then x + SwiGLU(norm(x)), then a norm. Starts as that last norm alone."""

    def __init__(self, shape: PrefixShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(rows, columns) * columns**-0.5)

        self.attn_norm = nn.Parameter(torch.ones(hidden))
        self.attn_q, self.attn_k, self.attn_v = (matrix(hidden, hidden) for _ in range(3))
        self.attn_output = nn.Parameter(torch.zeros(hidden, hidden))
        self.ffn_norm = nn.Parameter(torch.ones(hidden))
        self.ffn_gate, self.ffn_up = (matrix(shape.inner, hidden) for _ in range(2))
        self.ffn_down = nn.Parameter(torch.zeros(hidden, shape.inner))
        self.output_norm = nn.Parameter(torch.ones(hidden))

    def keep_scale(self, states: Tensor) -> None:
        """Sets the last norm so that a fresh layer leaves typical `states` [B, h] their size."""
        with torch.no_grad():
            self.output_norm.fill_(float(states.float().pow(2).mean(dim=-1).sqrt().mean()))

    def forward(
        self, states: Tensor, lengths: Sequence[int], dtype: torch.dtype, context: Sequence[Tensor] = ()
    ) -> Tensor:
        """states [B, h], one text after another, text i with lengths[i] rows -> [B, h] float32.

        context[i] [P, h]: states before the first row of text i.
        """
        x = states.float()
        y = _normed(x, self.attn_norm).to(dtype)
        query = _product(y, self.attn_q)
        seen, sizes = y, list(lengths)
        if context:  # keys and values are made of these: contexts before their texts
            parts: list[Tensor] = []
            for before, rows in zip(context, y.split(sizes), strict=True):
                parts += [_normed(before.to(y.device).float(), self.attn_norm).to(dtype), rows]
            seen, sizes = torch.cat(parts), [len(before) + rows for before, rows in zip(context, lengths, strict=True)]
        key, value = (_product(seen, weight) for weight in (self.attn_k, self.attn_v))
        x = x + _product(self._attention(query, key, value, lengths, sizes), self.attn_output).float()
        y = _normed(x, self.ffn_norm).to(dtype)
        inner = nn.functional.silu(_product(y, self.ffn_gate)) * _product(y, self.ffn_up)
        x = x + _product(inner, self.ffn_down).float()
        return _normed(x, self.output_norm)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], sizes: Sequence[int]
    ) -> Tensor:
        """query [B, h], key and value [S, h] -> [B, h]; every row sees the rows of its own text up to itself.

        Text by text, as their lengths differ too much for one padded product; written out, because on a GPU the fused
        operators do not add up in the same order twice.
        """
        heads = self.shape.heads
        size = self.shape.hidden // heads
        cos, sin = _rotary(max(sizes), size, query.device)
        mixed = []
        parts = (query.split(list(lengths)), key.split(list(sizes)), value.split(list(sizes)))
        for of_text in zip(*parts, strict=True):
            rows, seen = len(of_text[0]), len(of_text[1])
            first = seen - rows
            q, k, v = (part.view(len(part), heads, size).transpose(0, 1) for part in of_text)
            q, k = _turned(q, cos[first:seen], sin[first:seen]), _turned(k, cos[:seen], sin[:seen])
            scores = (q @ k.transpose(1, 2)).float() * size**-0.5
            later = torch.ones(rows, seen, dtype=torch.bool, device=query.device).triu(1 + first)
            weights = torch.softmax(scores.masked_fill(later, float("-inf")), dim=-1).to(v.dtype)
            mixed.append((weights @ v).transpose(0, 1).reshape(rows, heads * size))
        return torch.cat(mixed)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return nn.functional.linear(x, weight.to(x.dtype))


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    """RMS norm."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + NORM_EPS) * weight


def _rotary(length: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [length, size / 2]."""
    frequencies = ROPE_BASE ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding over halves."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


# --- what a file holds -----------------------------------------------------------------------------


def file_of(heads: Heads, lm_head: LmHead, **said: Any) -> Writable:
    """The content of the file for `heads`; may share memory with them. said: the fields that are not weights."""
    if heads.cell is not None:
        cell = {name: array_of(getattr(heads.cell, name)) for name in CELL_MATRICES}
        return RecurrentHead(cell=cell, levels=heads.shape.count, **said)
    hidden, layer = heads.shape.hidden, heads.prefix
    weight, bias = array_of(heads.weight), array_of(heads.bias)
    first = [array_of(matrix) for matrix in heads.first]
    first_bias = array_of(heads.first_bias)
    blocks = [
        [Block(matrix[hidden:], first_bias[k, hidden:]) for matrix in first[k : k + 1]]
        + [Block(weight[j, k], bias[j, k]) for j in range(len(weight))]
        for k in range(heads.shape.count)
    ]
    prefix = None
    if layer is not None:
        tensors = {name: array_of(getattr(layer, name)) for name in (*PREFIX_MATRICES, *PREFIX_NORMS)}
        from_answer = not heads.shape.sees_prompts
        prefix = Prefix(tensors, layer.shape.heads, layer.shape.heads, ROPE_BASE, NORM_EPS, from_answer)
    return DraftHeads(
        kind=heads.shape.kind,
        lm_head=lm_head,
        blocks=blocks,
        residuals=[Block(matrix[:hidden], first_bias[k, :hidden]) for k, matrix in enumerate(first)],
        prefix=prefix,
        outputs=[] if heads.outputs is None else list(array_of(heads.outputs)),
        **said,
    )


def round_weights(heads: Heads, weight_type: str = WEIGHT_TYPE) -> None:
    """Rounds to what the file will hold, so that measurements are those of the file."""
    with torch.no_grad():
        for name, parameter in heads.named_parameters():
            if "norm" in name or "bias" in name or parameter.numel() == 0:
                continue
            values = rounded(array_of(parameter).reshape(-1, parameter.shape[-1]), weight_type)
            parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))


def array_of(values: Tensor) -> NDArray[np.float32]:
    """On the CPU."""
    return values.detach().cpu().numpy()
