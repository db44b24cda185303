"""Draft heads in torch: Medusa, Hydra, Hydra++. All of them map a hidden state to K states for one output matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .prefix import PrefixLayer, PrefixShape
from .recipe import PrefixSight


@dataclass(frozen=True)
class HeadShape:
    """kind: medusa, hydra or hydra++; count: heads; blocks: residual blocks of each head, at least 1.

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

    lengths: the rows are whole texts of so many rows each, in order (prefix layer). context: for each of these texts
    the states [P, h] before its first row, which its prefix layer sees; empty: none of any.
    """

    states: Tensor
    embedded: Tensor | None = None
    lengths: Sequence[int] | None = None
    context: Sequence[Tensor] = ()


class Heads(nn.Module):
    """K heads. Fresh ones pass the hidden state on as it is."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        count, hidden, blocks = shape.count, shape.hidden, shape.blocks
        self.grounded = shape.kind != "medusa"
        own = blocks - 1 if self.grounded else blocks
        self.weight = nn.Parameter(torch.zeros(own, count, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(own, count, hidden))
        first = [_first_block(hidden, k) for k in range(1, count + 1)] if self.grounded else []
        self.first = nn.ParameterList(first)
        self.first_bias = nn.Parameter(torch.zeros(len(first), 2 * hidden))
        self.prefix = PrefixLayer(PrefixShape.of(hidden)) if shape.has_prefix else None
        self.outputs = nn.Parameter(torch.zeros(count, shape.own_rows, hidden)) if shape.own_rows else None

    def forward(self, inputs: HeadInputs, dtype: torch.dtype = torch.float32) -> Tensor:
        """[K, B, h] float32; the products are taken in `dtype`."""
        states = inputs.states.float()
        if self.prefix is not None:
            assert inputs.lengths is not None
            states = self.prefix(states, inputs.lengths, dtype, inputs.context)
        x = self._grown(states, inputs, dtype) if self.grounded else states
        for weight, bias in zip(self.weight, self.bias, strict=True):
            product = torch.matmul(x.to(dtype), weight.to(dtype).transpose(1, 2)).float()
            x = x + nn.functional.silu(product + bias[:, None, :])
        return x

    def output(self, shared: Tensor) -> Tensor:
        """[K, D, h]: each head's own output matrix in the dtype of `shared`; without one `shared` [D, h] itself."""
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
    """[2h, h * (head + 1)]: the linear residual, at first the hidden state itself, above the weight, at first zero."""
    weight = torch.zeros(2 * hidden, hidden * (head + 1))
    weight[:hidden, :hidden] = torch.eye(hidden)
    return nn.Parameter(weight)
