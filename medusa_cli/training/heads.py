"""Medusa-1 heads in torch, and their loss over a frozen output matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

HEAD_DECAY = 0.8
"""Head k counts HEAD_DECAY ** k in the loss."""


class Heads(nn.Module):
    """K heads, each one residual block x + SiLU(Wx + b). Zero-initialised, so every head starts as the identity."""

    def __init__(self, count: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(count, hidden, hidden))
        self.bias = nn.Parameter(torch.zeros(count, hidden))

    def forward(self, states: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """states [B, h] -> [K, B, h] float32; the products are taken in `dtype`."""
        product = torch.matmul(states.to(dtype), self.weight.to(dtype).transpose(1, 2)).float()
        return states.float() + nn.functional.silu(product + self.bias[:, None, :])


class _FrozenHeadLoss(torch.autograd.Function):
    """Sum of weight * cross entropy of z @ output.T, with the gradient taken block by block in the forward pass.

    The output matrix needs no gradient, so nothing of size [rows, vocabulary] outlives its block.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, output: Tensor, target: Tensor, weight: Tensor, block: int) -> Tensor:
        gradient = torch.empty_like(z)
        loss = torch.zeros((), device=z.device)
        for at in range(0, len(z), block):
            part = slice(at, at + block)
            log_p = (z[part].to(output.dtype) @ output.T).float()
            log_p -= torch.logsumexp(log_p, dim=-1, keepdim=True)
            index = target[part].clamp(min=0)[:, None]
            loss -= (log_p.gather(1, index)[:, 0] * weight[part]).sum()
            p = log_p.exp_()
            p.scatter_(1, index, p.gather(1, index) - 1)
            p *= weight[part, None]
            gradient[part] = (p.to(output.dtype) @ output).to(z.dtype)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None, None


def heads_loss(heads: Heads, states: Tensor, target: Tensor, output: Tensor, block: int) -> Tensor:
    """sum_k 0.8^k * mean cross entropy of head k over the rows that have a target.

    states [B, h]; target [B, K] int64 rows of `output`, negative: no target; output [D, h] in the dtype to multiply in;
    block: rows whose logits are held at once.
    """
    z = heads(states, output.dtype)
    count, batch, hidden = z.shape
    present = (target >= 0).T.float()
    decay = HEAD_DECAY ** torch.arange(1, count + 1, device=z.device, dtype=torch.float32)
    weight = present * (decay / present.sum(dim=1).clamp(min=1))[:, None]
    loss: Tensor = _FrozenHeadLoss.apply(
        z.reshape(count * batch, hidden), output, target.T.reshape(-1), weight.reshape(-1), block
    )
    return loss


@torch.no_grad()
def target_ranks(heads: Heads, states: Tensor, target: Tensor, output: Tensor, limit: int) -> Tensor:
    """[B, K] int64: how many rows of `output` each head prefers to the target, at most `limit`; missing: `limit`.

    Shapes as in heads_loss. Among equal logits the lower row counts as preferred.
    """
    z = heads(states)
    ranks = torch.empty_like(target)
    rows = torch.arange(len(output), device=z.device)
    for k in range(len(z)):
        logits = z[k] @ output.float().T
        index = target[:, k].clamp(min=0)[:, None]
        own = logits.gather(1, index)
        ahead = (logits > own).sum(dim=1) + ((logits == own) & (rows < index)).sum(dim=1)
        ranks[:, k] = torch.where(target[:, k] >= 0, ahead.clamp(max=limit), torch.full_like(ahead, limit))
    return ranks
