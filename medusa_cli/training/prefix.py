"""The layer Hydra++ puts before its heads: one causal decoder layer over the hidden states of the text so far.

It reads the same hidden states as the heads, from the one the answer's first token was sampled from on: the states of
the last prompt token and of the answer's tokens. Earlier ones are not stored for training, so it must not see them
when drafting either. Position 0 is the first state it sees (rotary embedding depends on differences alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

HEAD_SIZE = 64
INNER_FACTOR = 8 / 3
INNER_MULTIPLE = 32
ROPE_BASE = 10000.0
NORM_EPS = 1e-5


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

    def forward(self, states: Tensor, lengths: Sequence[int], dtype: torch.dtype) -> Tensor:
        """states [B, h], texts behind each other, text i of lengths[i] rows -> [B, h] float32."""
        x = states.float()
        y = _normed(x, self.attn_norm).to(dtype)
        query, key, value = (_product(y, weight) for weight in (self.attn_q, self.attn_k, self.attn_v))
        x = x + _product(self._attention(query, key, value, lengths), self.attn_output).float()
        y = _normed(x, self.ffn_norm).to(dtype)
        inner = nn.functional.silu(_product(y, self.ffn_gate)) * _product(y, self.ffn_up)
        x = x + _product(inner, self.ffn_down).float()
        return _normed(x, self.output_norm)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int]) -> Tensor:
        """[B, h] each -> [B, h]; every row sees the rows of its own text up to itself."""
        longest, rows, heads = max(lengths), len(query), self.shape.heads
        size = self.shape.hidden // heads
        device = query.device
        sizes = torch.tensor(lengths)
        text = torch.repeat_interleave(torch.arange(len(lengths)), sizes)
        place = torch.arange(rows) - torch.repeat_interleave(sizes.cumsum(0) - sizes, sizes)
        at = (text * longest + place).to(device)

        def padded(part: Tensor) -> Tensor:
            """[texts, heads, longest, size]"""
            blank = part.new_zeros(len(lengths) * longest, heads * size)
            full = blank.index_copy(0, at, part).view(len(lengths), longest, heads, size)
            return full.transpose(1, 2)

        cos, sin = _rotary(longest, size, device)
        query, key = (_turned(padded(part), cos, sin) for part in (query, key))
        scores = (query @ key.transpose(2, 3)).float() * size**-0.5
        causal = torch.ones(longest, longest, dtype=torch.bool, device=device).tril()
        weights = torch.softmax(scores.masked_fill(~causal, float("-inf")), dim=-1).to(value.dtype)
        mixed = (weights @ padded(value)).transpose(1, 2).reshape(len(lengths) * longest, heads * size)
        return mixed.index_select(0, at)


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
