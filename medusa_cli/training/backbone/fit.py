"""Trains backbone and heads together (Medusa 2.2.2)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..heads.layers import HeadInputs, Heads
from ..heads.loss import base_loss
from ..heads.torch_setup import matmul_dtype
from ..loop import BatchOrder, Loop, Picked, rising_steps
from ..recipes import JointRecipe, joint_evaluations
from .layers import Adapters, TopLayers
from .quality import HeldOut, Through
from .states import TextData

PART = 1_000_003_000
"""Between the seeds of a step's parts."""
ROWS_AT_ONCE = 512
"""Answer tokens whose gradients are computed together: the activations of all layers are in memory."""


@dataclass(frozen=True)
class JointPlan:
    """Everything the result depends on besides the rows. `data` identifies them and the heads it starts from."""

    data: str
    kind: str
    objective: str
    heads: int
    strategy: str
    first_layer: int
    seed: int
    steps: int
    device: str
    recipe: JointRecipe

    @property
    def batch(self) -> int:
        return self.recipe.batch


@dataclass(frozen=True)
class JointPoint:
    """Losses at step number `step`, from 1: the backbone's (KL or cross entropy) and the heads'; after it, the
    Frobenius norm of what the adapters add to the matrices."""

    step: int
    backbone: float
    heads: float
    change: float


def heads_weight(step: int, steps: int, recipe: JointRecipe) -> float:
    """Rises from 0 to the highest at the last step, like a quarter of a sine, if the recipe says so."""
    return recipe.heads_weight * (math.sin(0.5 * math.pi * (step + 1) / steps) if recipe.sine else 1.0)


class JointFit(Loop):
    """Trains adapters with heads. run()'s evaluate gets the step, the layers as they are, and the heads.

    curve: the losses of each step; held_out: of each evaluation, including one before the first step.
    """

    plan: JointPlan
    measures_fresh = True
    at_once = ROWS_AT_ONCE

    def __init__(self, plan: JointPlan, layers: TopLayers, heads: Heads, device: torch.device) -> None:
        self.layers, self.heads, recipe = layers, heads, plan.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.adapters = Adapters(layers, recipe.rank, recipe.alpha, recipe.dropout).to(device)
        groups = [
            (list(self.adapters.parameters()), recipe.rate),
            (list(heads.parameters()), recipe.rate * recipe.heads_rate),
        ]
        super().__init__(plan, nn.ModuleList([self.adapters, heads]), groups, device)
        self.rising, self.evaluations = rising_steps(plan.steps, recipe.rising, 4), joint_evaluations(plan.steps)
        self.curve: list[JointPoint] = []
        self._parts: list[tuple[int, Tensor, Tensor]] = []  # of one step: rows, both losses
        self.held_out: list[HeldOut] = []

    def timed_step(self, data: TextData) -> float:
        """Does one more step and returns the seconds it took."""
        begin, last = time.monotonic(), self.step
        self.run(data, should_stop=lambda: self.step > last)
        return time.monotonic() - begin

    def _measured(self, evaluate: Callable[[int, Through, Heads, Through], HeldOut]) -> float:
        self.adapters.eval()
        self.held_out.append(evaluate(self.step, self._forward, self.heads, self._before))
        self.adapters.train()
        return self.held_out[-1].tokens_per_step

    def _learn(self, data: TextData, order: BatchOrder) -> Tensor:
        self._parts = []
        return super()._learn(data, order)

    def _loss(self, data: TextData, picked: Picked) -> Tensor:
        """The loss of backbone and heads on whole texts."""
        assert data.base is not None
        whole, entered = data.entered(picked)
        lengths = [len(text.fed) for text in whole]
        normed = self._forward(entered, lengths).split(lengths)
        answers = [states[text.answer_at :] for states, text in zip(normed, whole, strict=True)]
        teacher = None
        if self.plan.recipe.distils:  # without adapters, not the engine's states: nothing is learned from its rounding
            before = self._before(entered, lengths).split(lengths)
            teacher = torch.cat([states[text.answer_at :] for states, text in zip(before, whole, strict=True)])
        said = torch.from_numpy(data.base.tokens[data.answer_rows(picked).numpy()])
        backbone = base_loss(torch.cat(answers), teacher, said, data.base.output)
        embeddings, sees_prompts = data.source.embeddings, self.heads.shape.sees_prompts
        inputs = HeadInputs(
            torch.cat([states[:-1] for states in answers]),
            embeddings.drafted(data.drafts.rows(picked), self.plan.heads) if embeddings is not None else None,
            picked.lengths,
            # States before each answer, if a prefix layer sees them.
            [states[: text.answer_at] for states, text in zip(normed, whole, strict=True)] if sees_prompts else [],
        )
        z = self.heads(inputs, data.output.dtype)
        heads = data.drafts.loss(z, picked, self.heads.output(data.output))
        self._parts.append((len(picked.index), backbone.detach(), heads.detach()))
        return backbone + heads_weight(self.step, self.plan.steps, self.plan.recipe) * heads

    def _read(self, loss: Tensor) -> float:
        rows = sum(part[0] for part in self._parts)
        backbone, heads = (sum(part[0] / rows * float(part[which]) for part in self._parts) for which in (1, 2))
        self.curve.append(JointPoint(self.step, backbone, heads, self.adapters.size()))
        return heads

    def _forward(self, entered: Tensor, lengths: list[int]) -> Tensor:
        """In bfloat16 if that is faster; each step has its own dropout, so that a resumed run repeats it."""
        faster = torch.autocast(self.device.type, torch.bfloat16, enabled=matmul_dtype(self.device) == torch.bfloat16)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), faster:
            torch.manual_seed(self.plan.seed * 1_000_003 + self.step + len(self._parts) * PART)
            normed: Tensor = self.layers(entered, lengths, self.adapters.project)
        return normed.float()

    @torch.no_grad()
    def _before(self, entered: Tensor, lengths: list[int]) -> Tensor:
        """The same without adapters: what the layers said before (2.3.2)."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=matmul_dtype(self.device) == torch.bfloat16):
            normed: Tensor = self.layers(entered, lengths)
        return normed.float()

    def _state(self) -> dict[str, Any]:
        told = {
            "points": [asdict(point) for point in self.curve],
            "held_out": [asdict(found) for found in self.held_out],
        }
        return {**super()._state(), **told}

    def _set_state(self, state: dict[str, Any]) -> None:
        super()._set_state(state)
        self.curve = [JointPoint(**point) for point in state["points"]]
        self.held_out = [HeldOut(**found) for found in state["held_out"]]
