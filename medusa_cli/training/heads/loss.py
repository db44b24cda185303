"""The loss of draft heads: cross entropy over a frozen output matrix, against a token or a teacher's distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HEAD_DECAY = 0.8
"""Head k counts HEAD_DECAY ** k in the loss."""
LEAST_P = 1e-30
"""Keeps the logarithm of an underflown probability finite; the gradient does not see it."""


class _FrozenHeadLoss(torch.autograd.Function):
    """Sum of weight * cross entropy of z @ output.T, with the gradient taken block by block in the forward pass.

    The output matrix needs no gradient, so nothing of size [rows, vocabulary] outlives its block. Probabilities stay in
    the output's dtype: the logits were rounded to it already, and this halves the memory traffic.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, output: Tensor, ids: Tensor, mass: Tensor, weight: Tensor, block: int) -> Tensor:
        gradient = torch.empty_like(z)
        loss = torch.zeros((), device=z.device)
        row_starts = torch.arange(block, device=z.device)[:, None] * len(output)
        for at in range(0, len(z), block):
            part = slice(at, at + block)
            p = torch.softmax(z[part].to(output.dtype) @ output.T, dim=-1)
            wanted = p.gather(1, ids[part])
            loss -= ((wanted.float().clamp(min=LEAST_P).log() * mass[part]).sum(dim=1) * weight[part]).sum()
            flat = (ids[part] + row_starts[: len(p)]).reshape(-1)  # scatter_ on a CPU copies all of p
            p.view(-1).index_copy_(0, flat, (wanted - mass[part].to(p.dtype)).reshape(-1))
            gradient[part] = (p @ output).to(z.dtype) * weight[part, None]
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None, None, None, None


def heads_loss(
    z: Tensor, target: Tensor, output: Tensor, block: int, teacher: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """sum_k 0.8^k * mean cross entropy of head k over the rows that have a target.

    z [K, B, h]: what the heads made of a batch; target [B, K] int64 rows of `output`, negative: no target; output
    [D, h] in the dtype to multiply in; block: rows whose logits are held at once. teacher: (ids [B, K, T] int64,
    distinct in each row, p [B, K, T] float32 that sum to 1), the distribution to learn instead of the target alone.
    """
    count, batch, hidden = z.shape
    present = (target >= 0).T.float()
    decay = HEAD_DECAY ** torch.arange(1, count + 1, device=z.device, dtype=torch.float32)
    weight = present * (decay / present.sum(dim=1).clamp(min=1))[:, None]
    if teacher is None:
        ids = target.T.clamp(min=0).reshape(-1, 1)
        mass = torch.ones(len(ids), 1, device=z.device)
    else:
        ids, mass = (part.transpose(0, 1).reshape(count * batch, -1) for part in teacher)
    loss: Tensor = _FrozenHeadLoss.apply(z.reshape(count * batch, hidden), output, ids, mass, weight.reshape(-1), block)
    return loss


def frozen_cross_entropy(states: Tensor, tokens: Tensor, output: Tensor, block: int) -> Tensor:
    """Mean cross entropy of `tokens` [R] int64 behind states [R, h] after the final norm; output and block as above."""
    ones = torch.ones(len(tokens), 1, device=states.device)
    weight = torch.full((len(tokens),), 1 / max(1, len(tokens)), device=states.device)
    loss: Tensor = _FrozenHeadLoss.apply(states, output, tokens[:, None], ones, weight, block)
    return loss


@torch.no_grad()
def target_ranks(z: Tensor, target: Tensor, output: Tensor, limit: int) -> Tensor:
    """[B, K] int64: how many rows of `output` each head prefers to the target, at most `limit`; missing: `limit`.

    Shapes as in heads_loss; the logits have the dtype of `output`. Among equal logits the lower row counts as preferred
    (where more are equal at the limit than fit below it, any of them do).
    """
    ranks = torch.empty_like(target)
    for k in range(len(z)):
        logits = z[k].to(output.dtype) @ output.T
        index = target[:, k].clamp(min=0)[:, None]
        own = logits.gather(1, index)
        best = logits.topk(min(limit, len(output)), dim=1)
        before = (best.values > own) | ((best.values == own) & (best.indices < index))
        ahead = torch.where(own[:, 0] < best.values[:, -1], limit, before.sum(dim=1))
        ranks[:, k] = torch.where(target[:, k] >= 0, ahead, limit)
    return ranks
