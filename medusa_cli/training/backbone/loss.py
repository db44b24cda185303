"""What the base learns beside its drafts: losses over the whole vocabulary, through a frozen output matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..heads.loss import frozen_cross_entropy

BLOCK = 256
"""Rows whose logits are held at once."""


class _FrozenKl(torch.autograd.Function):
    """Mean over rows, with the gradient taken block by block in the forward pass."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, output: Tensor) -> Tensor:
        gradient = torch.empty_like(student)
        total = torch.zeros((), device=student.device)
        for at in range(0, len(student), BLOCK):
            part = slice(at, at + BLOCK)
            wanted = torch.log_softmax((teacher[part].to(output.dtype) @ output.T).float(), dim=1)
            got = torch.log_softmax((student[part].to(output.dtype) @ output.T).float(), dim=1)
            p = wanted.exp()
            total += (p * (wanted - got)).sum()
            gradient[part] = ((got.exp_() - p).to(output.dtype) @ output).to(student.dtype)
        ctx.save_for_backward(gradient / len(student))
        return total / len(student)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0], None, None


def kl_loss(student: Tensor, teacher: Tensor, output: Tensor) -> Tensor:
    """Mean of KL(p_teacher || p_student), nats. States [R, h] after the final norm; output [V, h], frozen."""
    loss: Tensor = _FrozenKl.apply(student, teacher, output)
    return loss


def base_loss(states: Tensor, teacher: Tensor | None, tokens: Tensor, output: Tensor) -> Tensor:
    """Mean KL(p_teacher || p) where there are teacher's states, else the cross entropy of `tokens` [R].

    States [R, h] after the final norm; output [V, h], frozen, in the dtype to multiply in.
    """
    if teacher is not None:
        return kl_loss(states, teacher.float(), output)
    return frozen_cross_entropy(states, tokens.long().to(states.device), output, BLOCK)


@torch.no_grad()
def compare(ours: Tensor, theirs: Tensor, output: Tensor, tokens: Tensor) -> Tensor:
    """[R, 4]: KL(p_ours || p_theirs), whether both find the same token likeliest, -ln p of `tokens` by ours and theirs.

    States [R, h] after the final norm; tokens [R]: what came next.
    """
    rows = []
    for mine, other, token in zip(ours.split(BLOCK), theirs.split(BLOCK), tokens.split(BLOCK), strict=True):
        p, q = (torch.log_softmax(states.float() @ output.float().T, dim=1) for states in (mine, other))
        kl = (p.exp() * (p - q)).sum(dim=1)
        same = (p.argmax(dim=1) == q.argmax(dim=1)).float()
        costs = [-logp.gather(1, token[:, None])[:, 0] for logp in (p, q)]
        rows.append(torch.stack([kl, same, *costs], dim=1))
    return torch.cat(rows)
