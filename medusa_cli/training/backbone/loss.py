"""What the base learns beside its drafts: losses over the whole vocabulary, through a frozen output matrix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..heads.loss import frozen_cross_entropy

BLOCK = 64
"""Rows whose logits are held at once: over a whole vocabulary few, so that a cache holds them."""


def _log_p(theirs: Tensor, ours: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[R, V] float32: ln p_theirs; by how much the logits of ours are larger; ln p_ours, but for a constant in a row.

    States [R, h]. The difference is multiplied, not both: in bfloat16 each logit is rounded by more than what a
    divergence of 0.001 moves it.
    """
    logp = torch.log_softmax((theirs.to(output.dtype) @ output.T).float(), dim=1)
    moved = ((ours.float() - theirs.float()).to(output.dtype) @ output.T).float()
    return logp, moved, logp + moved


class _FrozenKl(torch.autograd.Function):
    """Mean over rows, with the gradient taken block by block in the forward pass."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, output: Tensor) -> Tensor:
        gradient = torch.empty_like(student)
        total = torch.zeros((), device=student.device)
        for at in range(0, len(student), BLOCK):
            part = slice(at, at + BLOCK)
            logp, moved, got = _log_p(teacher[part], student[part], output)
            p = logp.exp_()
            total += (torch.logsumexp(got, dim=1) - torch.linalg.vecdot(p, moved)).sum()
            gradient[part] = (torch.softmax(got, dim=1).sub_(p).to(output.dtype) @ output).to(student.dtype)
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

    States [R, h] after the final norm; output [V, h] in the dtype to multiply in; tokens [R]: what came next.
    """
    rows = []
    for mine, other, token in zip(ours.split(BLOCK), theirs.split(BLOCK), tokens.split(BLOCK), strict=True):
        p, _, got = _log_p(mine, other, output)
        q = torch.log_softmax(got, dim=1)
        kl = (p.exp() * (p - q)).sum(dim=1)
        same = (p.argmax(dim=1) == q.argmax(dim=1)).float()
        costs = [-logp.gather(1, token[:, None])[:, 0] for logp in (p, q)]
        rows.append(torch.stack([kl, same, *costs], dim=1))
    return torch.cat(rows)
