"""Backbone and heads trained together (Medusa 2.2.2): deterministic and resumable, as the heads alone are."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..heads.fit import (
    CHECKPOINT_SECONDS,
    CHECKPOINT_SHARE,
    LOSS_ROWS,
    LOSS_ROWS_GPU,
    Best,
    CurvePoint,
    load_checkpoint,
    save_checkpoint,
)
from ..heads.layers import HeadInputs, Heads
from ..heads.loss import heads_loss
from ..heads.rows import BatchOrder, Examples, TextRows
from ..heads.torch_setup import matmul_dtype
from .adapters import Adapters
from .held_out import HeldOut, Through
from .layers import TopLayers
from .loss import base_loss
from .recipe import JointRecipe, evaluations
from .states import EnteredTexts, WholeText


@dataclass(frozen=True)
class JointPlan:
    """Everything the result depends on besides the rows. `data` names them and the heads it starts from."""

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


@dataclass(frozen=True)
class JointData:
    """states: of the texts of `examples`, in their order, as the layers read them; source: the corpus's rows.

    tokens [N]: of the corpus; output [V, h], draft_output [D, h]: on the device, in the dtype to multiply in.
    """

    states: EnteredTexts
    source: TextRows
    examples: Examples
    tokens: NDArray[np.int32]
    output: Tensor
    draft_output: Tensor


@dataclass(frozen=True)
class JointPoint:
    """Losses of step number `step`, from 1: of the backbone (KL or cross entropy), and of the heads."""

    step: int
    backbone: float
    heads: float


def heads_weight(step: int, steps: int, recipe: JointRecipe) -> float:
    """From 0 to the highest at the last step, like a quarter of a sine, where the recipe says so."""
    return recipe.heads_weight * (math.sin(0.5 * math.pi * (step + 1) / steps) if recipe.sine else 1.0)


def rate_factor(step: int, steps: int, rising: int) -> float:
    """Linear up, then a cosine down to zero at `steps`."""
    rising = min(rising, max(1, steps // 4))
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


class JointFit:
    """One run. Advance with run(); the state is whole between steps."""

    def __init__(self, plan: JointPlan, layers: TopLayers, heads: Heads, device: torch.device) -> None:
        self.plan, self.layers, self.heads, self.device, self.step = plan, layers, heads, device, 0
        recipe = plan.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.adapters = Adapters(layers, recipe.rank, recipe.alpha, recipe.dropout).to(device)
        groups = [
            {"params": list(self.adapters.parameters()), "peak": recipe.rate},
            {"params": list(heads.parameters()), "peak": recipe.rate * recipe.heads_rate},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)
        self.curve: list[JointPoint] = []
        self.held_out: list[HeldOut] = []
        self.best = Best()
        self._trained = nn.ModuleList([self.adapters, heads])

    @property
    def finished(self) -> bool:
        return self.step >= self.plan.steps

    def run(
        self,
        data: JointData,
        *,
        checkpoint: Path | None = None,
        evaluate: Callable[[int, Through, Heads], HeldOut] | None = None,
        on_step: Callable[[JointPoint], None] = lambda point: None,
        on_evaluation: Callable[[HeldOut], None] = lambda found: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Trains to the plan's last step; False when should_stop() ended it first (asked before each step).

        evaluate: measures held-out text, asked for before the first step and at even distances; in the end adapters and
        heads are those that had, after some step, the most tokens per step. Saves to `checkpoint` about once a minute,
        at the end and when stopped.
        """

        def measure() -> None:
            if evaluate is not None:
                self._measure(evaluate)
                on_evaluation(self.held_out[-1])

        every = -(-self.plan.steps // evaluations(self.plan.steps))
        if self.step == 0 and not self.held_out:
            measure()
        order = BatchOrder(data.examples, self.plan.recipe.batch, self.plan.seed, whole_texts=True)
        pause, saved = CHECKPOINT_SECONDS, time.monotonic()
        while not self.finished and not should_stop():
            picked = order.pick(self.step)
            assert picked.lengths is not None
            backbone, heads = self._losses(data, picked.index, picked.lengths)
            weight = heads_weight(self.step, self.plan.steps, self.plan.recipe)
            self._update(backbone + weight * heads)
            self.curve.append(JointPoint(self.step, float(backbone.detach()), float(heads.detach())))
            on_step(self.curve[-1])
            if self.step % every == 0 or self.finished:
                measure()
            if checkpoint is not None and time.monotonic() - saved > pause:
                begin = time.monotonic()
                self.save(checkpoint)
                saved = time.monotonic()
                pause = max(CHECKPOINT_SECONDS, (saved - begin) / CHECKPOINT_SHARE)
        if checkpoint is not None:
            self.save(checkpoint)
        if self.finished and self.best.weights:
            self._trained.load_state_dict(self.best.weights)
        return self.finished

    def _measure(self, evaluate: Callable[[int, Through, Heads], HeldOut]) -> None:
        self.adapters.eval()
        found = evaluate(self.step, self._forward, self.heads)
        self.adapters.train()
        self.held_out.append(found)
        if self.step > 0:
            self.best.add(CurvePoint(self.step, self.curve[-1].heads, found.tokens_per_step), self._trained)

    def timed_step(self, data: JointData) -> float:
        """One more step; the seconds it took."""
        begin, last = time.monotonic(), self.step
        self.run(data, should_stop=lambda: self.step > last)
        return time.monotonic() - begin

    def _losses(self, data: JointData, index: Tensor, lengths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Of one batch of whole texts: index into the examples, how many of each text."""
        first = index[torch.tensor([0, *lengths[:-1]]).cumsum(0)].numpy()
        texts = (np.searchsorted(data.examples.starts, first, side="right") - 1).tolist()
        whole = [data.states.texts[text] for text in texts]
        fed = np.concatenate([data.states.read(text) for text in texts])
        entered = torch.from_numpy(fed).to(self.device).float()
        normed = self._forward(entered, [len(text.fed) for text in whole]).split([len(text.fed) for text in whole])
        answers = [states[text.answer_at :] for states, text in zip(normed, whole, strict=True)]
        rows = torch.cat([torch.arange(text.span.start, text.span.start + text.span.length) for text in whole])
        backbone = self._backbone_loss(torch.cat(answers), rows, data)
        at = torch.from_numpy(data.examples.rows)[index]
        embeddings = data.source.embeddings
        inputs = HeadInputs(
            torch.cat([states[:-1] for states in answers]),
            embeddings.drafted(at, self.plan.heads) if embeddings is not None else None,
            lengths,
            self._contexts(normed, whole),
        )
        wanted = torch.from_numpy(data.examples.target)[index].long().to(self.device)
        block = LOSS_ROWS_GPU if self.device.type == "cuda" else LOSS_ROWS
        z = self.heads(inputs, data.draft_output.dtype)
        taught = data.source.taught(at, self.plan.heads)
        return backbone, heads_loss(z, wanted, self.heads.output(data.draft_output), block, taught)

    def _contexts(self, normed: Sequence[Tensor], texts: Sequence[WholeText]) -> list[Tensor]:
        """States before each answer, where a prefix layer sees them."""
        pairs = zip(normed, texts, strict=True) if self.heads.shape.sees_prompts else ()
        return [states[: text.answer_at] for states, text in pairs]

    def _forward(self, entered: Tensor, lengths: list[int]) -> Tensor:
        """In bfloat16 where that is faster; dropout is the step's own, so that a resumed run repeats it."""
        dtype = matmul_dtype(self.device)
        faster = torch.autocast(self.device.type, dtype) if dtype == torch.bfloat16 else contextlib.nullcontext()
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), faster:
            torch.manual_seed(self.plan.seed * 1_000_003 + self.step)
            normed: Tensor = self.layers(entered, lengths, self.adapters.project)
        return normed.float()

    def _backbone_loss(self, states: Tensor, rows: Tensor, data: JointData) -> Tensor:
        teacher = data.source.states.gather(rows) if self.plan.recipe.distils else None
        return base_loss(states, teacher, torch.from_numpy(data.tokens[rows.numpy()]), data.output)

    def _update(self, loss: Tensor) -> None:
        factor = rate_factor(self.step, self.plan.steps, self.plan.recipe.rising)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        self.step += 1

    @property
    def checkpoint_bytes(self) -> int:
        """Weights, the best ones and two moments of each."""
        parts = (*self.adapters.parameters(), *self.heads.parameters())
        return sum(4 * parameter.nbytes for parameter in parts)

    def save(self, path: Path) -> None:
        """Atomic, with the optimizer's state. MedusaError when it cannot."""
        state = {
            "plan": asdict(self.plan),
            "step": self.step,
            "adapters": self.adapters.state_dict(),
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "curve": [asdict(point) for point in self.curve],
            "held_out": [asdict(found) for found in self.held_out],
            "best": self.best.weights,
            "evaluations": [asdict(point) for point in self.best.curve],
            "at": self.best.at,
        }
        save_checkpoint(path, state)

    def restore(self, path: Path) -> bool:
        """Continues from a checkpoint of the same plan; False (and nothing changed) when there is none that fits."""
        state = load_checkpoint(path)
        if state is None or state.get("plan") != asdict(self.plan):
            return False
        self.adapters.load_state_dict(state["adapters"])
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        self.curve = [JointPoint(**point) for point in state["curve"]]
        self.held_out = [HeldOut(**found) for found in state["held_out"]]
        best = {name: value.to(self.device) for name, value in state["best"].items()}
        self.best = Best([CurvePoint(**point) for point in state["evaluations"]], best, int(state["at"]))
        return True
