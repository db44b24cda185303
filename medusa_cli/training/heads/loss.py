"""Losses over an output matrix: of drafts against tokens or a teacher's distribution, and of the base beside its
drafts, over the whole vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..recipes import DEPTH_WEIGHT

LEAST_P = 1e-30
"""Keeps the logarithm of an underflown probability finite; the gradient does not see it."""
BASE_BLOCK = 64
"""Rows whose logits over a whole vocabulary are held at once: few, so that a cache holds them."""


@dataclass(frozen=True)
class Likeliest:
    """A distribution over few tokens for each row. ids [.., T] int64, distinct in each row; p [.., T] float32, summing
    to 1."""

    ids: Tensor
    p: Tensor

    def __getitem__(self, at: Any) -> Likeliest:
        """The part for some rows, or, as [:, k], for one head."""
        return Likeliest(self.ids[at], self.p[at])

    def take(self, p: Tensor) -> Tensor:
        """Subtracts this distribution from p [R, D] in place; returns the cross entropies [R]."""
        wanted = p.gather(1, self.ids)
        # scatter_ on a CPU copies all of p
        flat = (self.ids + torch.arange(len(p), device=p.device)[:, None] * p.shape[1]).reshape(-1)
        p.view(-1).index_copy_(0, flat, (wanted - self.p.to(p.dtype)).reshape(-1))
        return -(wanted.float().clamp(min=LEAST_P).log() * self.p).sum(dim=1)


@dataclass(frozen=True)
class Everything:
    """The base's whole distribution, from its states [.., h] and its output rows [D, h] in the dtype to multiply in."""

    states: Tensor
    output: Tensor

    def __getitem__(self, at: Any) -> Everything:
        return Everything(self.states[at], self.output)

    def take(self, p: Tensor) -> Tensor:
        """Like Likeliest.take()."""
        wanted = torch.softmax(self.states.to(self.output.dtype) @ self.output.T, dim=-1)
        loss = -(wanted.float() * p.float().clamp(min=LEAST_P).log()).sum(dim=1)
        p -= wanted
        return loss


Teacher = Likeliest | Everything


class _HeadLoss(torch.autograd.Function):
    """Sum of weight * cross entropy of z @ output.T, with the gradients taken block by block in the forward pass.

    So nothing of size [rows, vocabulary] outlives its block. Probabilities stay in the output's dtype: the logits are
    already rounded to it, and this halves the memory traffic.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, output: Tensor, teacher: Teacher, weight: Tensor, block: int) -> Tensor:
        gradient = torch.empty_like(z)
        of_output = torch.zeros_like(output) if ctx.needs_input_grad[1] else None
        loss = torch.zeros((), device=z.device)
        for at in range(0, len(z), block):
            part = slice(at, at + block)
            read = z[part].to(output.dtype)
            p = torch.softmax(read @ output.T, dim=-1)
            loss += (teacher[part].take(p) * weight[part]).sum()
            gradient[part] = (p @ output).to(z.dtype) * weight[part, None]
            if of_output is not None:
                of_output.addmm_(p.T, read * weight[part, None].to(read.dtype))
        ctx.save_for_backward(gradient, of_output)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradient, of_output = ctx.saved_tensors
        return gradient * grads[0], None if of_output is None else of_output * grads[0], None, None, None


def heads_loss(
    z: Tensor,
    target: Tensor,
    output: Tensor,
    block: int,
    teacher: Teacher | None = None,
    depth_weight: float = DEPTH_WEIGHT,
) -> Tensor:
    """sum_k depth_weight^k * mean cross entropy of head k over the rows that have a target.

    z [K, B, h]: the heads' states for a batch; target [B, K] int64 rows of `output`, negative: no target;
    output: [D, h] for all heads or [K, D, h], in the dtype to multiply in; block: rows whose logits are held at once.
    teacher: of [B, K, ..], the distribution to learn instead of the target alone.
    """
    count = len(z)
    present = (target >= 0).T.float()
    decay = depth_weight ** torch.arange(1, count + 1, device=z.device, dtype=torch.float32)
    weight = present * (decay / present.sum(dim=1).clamp(min=1))[:, None]
    if teacher is None:
        ids = target.clamp(min=0)[:, :, None]
        teacher = Likeliest(ids, torch.ones(ids.shape, device=z.device))
    outputs = output.expand(count, *output.shape[-2:])
    losses = [_HeadLoss.apply(z[k], outputs[k], teacher[:, k], weight[k], block) for k in range(count)]
    return torch.stack(losses).sum()


def frozen_cross_entropy(states: Tensor, tokens: Tensor, output: Tensor, block: int) -> Tensor:
    """Mean cross entropy of `tokens` [R] int64, given states [R, h] after the final norm; output and block as above."""
    wanted = Likeliest(tokens[:, None], torch.ones(len(tokens), 1, device=states.device))
    weight = torch.full((len(tokens),), 1 / max(1, len(tokens)), device=states.device)
    return _HeadLoss.apply(states, output, wanted, weight, block)


@torch.no_grad()
def target_ranks(z: Tensor, target: Tensor, output: Tensor, limit: int) -> Tensor:
    """[B, K] int64: how many rows of `output` each head prefers to the target, at most `limit`; missing: `limit`.

    Shapes as in heads_loss; the logits have the dtype of `output`. Among equal logits, the lower row counts as
    preferred (if more are equal at the limit than fit below it, any of them do).
    """
    ranks, outputs = torch.empty_like(target), output.expand(len(z), *output.shape[-2:])
    for k in range(len(z)):
        logits = z[k].to(output.dtype) @ outputs[k].T
        index = target[:, k].clamp(min=0)[:, None]
        own = logits.gather(1, index)
        best = logits.topk(min(limit, logits.shape[1]), dim=1)
        before = (best.values > own) | ((best.values == own) & (best.indices < index))
        ahead = torch.where(own[:, 0] < best.values[:, -1], limit, before.sum(dim=1))
        ranks[:, k] = torch.where(target[:, k] >= 0, ahead, limit)
    return ranks


# --- the base --------------------------------------------------------------------------------------


def _log_p(theirs: Tensor, ours: Tensor, output: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[R, V] float32: ln p_theirs; by how much our logits are larger; ln p_ours, up to a constant per row.

    States [R, h]. The difference is multiplied, not both: in bfloat16 each logit is rounded by more than a divergence
    of 0.001 moves it.
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
        for at in range(0, len(student), BASE_BLOCK):
            part = slice(at, at + BASE_BLOCK)
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
    return _FrozenKl.apply(student, teacher, output)


def base_loss(states: Tensor, teacher: Tensor | None, tokens: Tensor, output: Tensor) -> Tensor:
    """Mean KL(p_teacher || p) if there are teacher's states, else the cross entropy of `tokens` [R].

    States [R, h] after the final norm; output [V, h], frozen, in the dtype to multiply in.
    """
    if teacher is not None:
        return kl_loss(states, teacher.float(), output)
    return frozen_cross_entropy(states, tokens.long().to(states.device), output, BASE_BLOCK)


@torch.no_grad()
def compare(ours: Tensor, theirs: Tensor, output: Tensor, tokens: Tensor) -> Tensor:
    """[R, 4]: KL(p_ours || p_theirs), whether both find the same token likeliest, -ln p of `tokens` by ours and theirs.

    States [R, h] after the final norm; output [V, h] in the dtype to multiply in; tokens [R]: what came next.
    """
    rows = []
    for mine, other, token in zip(*(part.split(BASE_BLOCK) for part in (ours, theirs, tokens)), strict=True):
        p, _, got = _log_p(mine, other, output)
        q = torch.log_softmax(got, dim=1)
        kl = (p.exp() * (p - q)).sum(dim=1)
        same = (p.argmax(dim=1) == q.argmax(dim=1)).float()
        costs = [-logp.gather(1, token[:, None])[:, 0] for logp in (p, q)]
        rows.append(torch.stack([kl, same, *costs], dim=1))
    return torch.cat(rows)
