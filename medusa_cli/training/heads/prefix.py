"""The layer Hydra++ puts before its heads: one causal decoder layer over the hidden states of the text so far.

It reads the same hidden states as the heads: those of all tokens before, the prompt's included (Hydra 4), or from the
one the answer's first token was sampled from on. Position 0 is the first state it sees.
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

    def forward(
        self, states: Tensor, lengths: Sequence[int], dtype: torch.dtype, context: Sequence[Tensor] = ()
    ) -> Tensor:
        """states [B, h], texts behind each other, text i of lengths[i] rows -> [B, h] float32.

        context[i] [P, h]: states before the first row of text i.
        """
        x = states.float()
        y = _normed(x, self.attn_norm).to(dtype)
        query = _product(y, self.attn_q)
        seen, sizes = self._seen(y, lengths, dtype, context)
        key, value = (_product(seen, weight) for weight in (self.attn_k, self.attn_v))
        x = x + _product(self._attention(query, key, value, lengths, sizes), self.attn_output).float()
        y = _normed(x, self.ffn_norm).to(dtype)
        inner = nn.functional.silu(_product(y, self.ffn_gate)) * _product(y, self.ffn_up)
        x = x + _product(inner, self.ffn_down).float()
        return _normed(x, self.output_norm)

    def _seen(
        self, y: Tensor, lengths: Sequence[int], dtype: torch.dtype, context: Sequence[Tensor]
    ) -> tuple[Tensor, list[int]]:
        """([S, h] what keys and values are made of, how many rows of it each text has): contexts before their texts."""
        if not context:
            return y, list(lengths)
        parts: list[Tensor] = []
        for before, rows in zip(context, y.split(list(lengths)), strict=True):
            parts += [_normed(before.to(y.device).float(), self.attn_norm).to(dtype), rows]
        return torch.cat(parts), [len(before) + rows for before, rows in zip(context, lengths, strict=True)]

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], sizes: Sequence[int]
    ) -> Tensor:
        """query [B, h], key and value [S, h] -> [B, h]; every row sees the rows of its own text up to itself.

        Text by text, as their lengths differ too much for one padded product; written out, because the fused ones do
        not add up in the same order twice on a GPU.
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
