"""A recurrent head's cell in torch (converters.heads.recurrent_head): the same weights at every level."""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORM_EPS = 1e-5
"""As in the engine."""
INNER_FACTOR = 16 / 9
"""Width of the gated part relative to a hidden state: every level of drafts reads it."""
INNER_MULTIPLE = 64


class Cell(nn.Module):
    """A fresh one passes the state on as it is."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        inner = -(-round(hidden * INNER_FACTOR) // INNER_MULTIPLE) * INNER_MULTIPLE
        self.residual = nn.Parameter(torch.cat([torch.eye(hidden), torch.zeros(hidden, hidden)], dim=1))
        self.gate, self.up = (nn.Parameter(torch.randn(inner, 2 * hidden) * (2 * hidden) ** -0.5) for _ in range(2))
        self.down = nn.Parameter(torch.zeros(hidden, inner))

    def forward(self, states: Tensor, embedded: Tensor, dtype: torch.dtype) -> Tensor:
        """states [B, h] float32, embedded [B, K, h] -> [K, B, h] float32; the products are taken in `dtype`."""
        size, found = states.shape[-1:], []
        for tokens in embedded.float().unbind(1):
            normed = torch.cat([nn.functional.rms_norm(part, size, eps=NORM_EPS) for part in (states, tokens)], dim=1)
            gated = nn.functional.silu(_product(normed, self.gate, dtype)) * _product(normed, self.up, dtype)
            kept = _product(torch.cat([states, tokens], dim=1), self.residual, dtype)
            states = kept + _product(gated, self.down, dtype)
            found.append(states)
        return torch.stack(found)


def _product(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return nn.functional.linear(x.to(dtype), weight.to(dtype)).float()
