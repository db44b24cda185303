"""The training loop: deterministic, resumable, the same code on two CPU cores and on a large GPU."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medusa_cli.support.atomic import atomic_path

from .layers import Heads, HeadShape
from .loss import heads_loss
from .noise import noisy
from .recipe import EVALUATIONS, GPU_BATCH, PATIENCE, WARMUP_STEPS, WHOLE, Recipe
from .rows import BatchOrder, Examples, FileRows, TextRows, TokenEmbeddings
from .torch_setup import matmul_dtype

CHECKPOINT_SECONDS = 60.0
CHECKPOINT_SHARE = 0.05
"""Writing checkpoints may take this share of the time; large heads are saved less often."""
LOSS_ROWS, LOSS_ROWS_GPU = 512, 8192
"""Rows whose logits are held at once: what a cache holds, and what keeps a GPU busy."""


@dataclass(frozen=True)
class FitPlan:
    """Everything the result depends on besides the rows. `data` names them, so that a checkpoint fits its data.

    vocabulary: rows of the heads' own output matrices, where the recipe has such.
    """

    data: str
    kind: str
    objective: str
    heads: int
    seed: int
    steps: int
    batch: int
    device: str
    recipe: Recipe
    vocabulary: int = 0

    def shape(self, hidden: int) -> HeadShape:
        own = self.vocabulary if self.recipe.lm_head == "own" else 0
        return HeadShape(self.kind, self.heads, hidden, self.recipe.blocks, self.recipe.prefix, own)


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation. step: how many steps were done; loss: the newest that was read; tokens_per_step: held out."""

    step: int
    loss: float
    tokens_per_step: float


@dataclass
class Best:
    """The evaluations so far, and the weights at the best of them (the earliest where several are equal)."""

    curve: list[CurvePoint] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    at: int = -1
    """Index into curve."""

    def add(self, point: CurvePoint, heads: torch.nn.Module) -> None:
        self.curve.append(point)
        if self.at < 0 or point.tokens_per_step > self.curve[self.at].tokens_per_step:
            self.at = len(self.curve) - 1
            self.weights = {name: value.detach().clone() for name, value in heads.state_dict().items()}

    @property
    def exhausted(self) -> bool:
        """Whether PATIENCE evaluations brought nothing better."""
        return len(self.curve) - 1 - self.at >= PATIENCE


def default_batch(device: torch.device, rows: int, recipe: Recipe) -> int:
    """Positions per step; never more than there are rows."""
    return min(rows, GPU_BATCH if device.type == "cuda" else recipe.batch)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine down to zero at `steps`."""
    warmup = min(WARMUP_STEPS, max(1, steps // 20))
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Fit:
    """One training run over fixed rows. Advance with run(); the state is whole between steps."""

    def __init__(self, plan: FitPlan, hidden: int, device: torch.device) -> None:
        self.plan, self.device, self.step = plan, device, 0
        self.best = Best()
        self.shape = plan.shape(hidden)
        self.heads = self._fresh()
        self.weights: list[Tensor] = list(self.heads.parameters())
        self.optimizer = torch.optim.AdamW(
            self.weights, lr=plan.recipe.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )

    def run(
        self,
        source: TextRows,
        examples: Examples,
        output: Tensor,
        *,
        evaluate: Callable[[Heads], float] | None = None,
        checkpoint: Path | None = None,
        on_step: Callable[[int, float], None] | None = None,
        on_evaluation: Callable[[CurvePoint], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Trains to the plan's last step; False when should_stop() ended it first (checked before each step).

        output [D, h] on the device in the dtype to multiply in. evaluate: held-out tokens per step, asked for at even
        distances; training ends early when it stopped growing, and the heads are those of its best value in the end.
        Saves to `checkpoint` about once a minute, at the end and when stopped. on_step(step, loss): the loss is the
        newest that was read back (every tenth step).
        """
        order = BatchOrder(examples, self.plan.batch, self.plan.seed, self.shape.has_prefix)
        target = torch.from_numpy(examples.target)
        rows = torch.from_numpy(examples.rows)
        block = LOSS_ROWS_GPU if self.device.type == "cuda" else LOSS_ROWS
        every = -(-self.plan.steps // EVALUATIONS)
        sequences = torch.from_numpy(np.repeat(examples.sequences or examples.lengths, examples.lengths))
        scale = source.embeddings.scale if source.embeddings is not None else 1.0
        fresh = self._fresh(source.states.gather(rows[: self.plan.batch]), output)
        if self.step == 0:
            self.heads.load_state_dict(fresh.state_dict())
        start: list[Tensor] = list(fresh.parameters())
        value, pause, saved = math.nan, CHECKPOINT_SECONDS, time.monotonic()
        while not self.finished and not should_stop():
            picked = order.pick(self.step)
            at = rows[picked.index]
            inputs = source.inputs(at, self.plan.heads, picked.lengths)
            seed = self.plan.seed * 1_000_003 + self.step
            inputs = noisy(inputs, sequences[picked.index], self.plan.recipe, seed, scale)
            wanted = target[picked.index].long().to(self.device)
            z = self.heads(inputs, output.dtype)
            taught = source.taught(at, self.plan.heads)
            loss = heads_loss(z, wanted, self.heads.output(output), block, taught)
            self._update(loss, start)
            if self.step % 10 == 0 or self.step == self.plan.steps or self.step % every == 0:
                value = float(loss.detach())
            if evaluate is not None and (self.step % every == 0 or self.step == self.plan.steps):
                self.best.add(CurvePoint(self.step, value, evaluate(self.heads)), self.heads)
                if on_evaluation is not None:
                    on_evaluation(self.best.curve[-1])
            if on_step is not None:
                on_step(self.step, value)
            if checkpoint is not None and time.monotonic() - saved > pause:
                begin = time.monotonic()
                self.save(checkpoint)
                saved = time.monotonic()
                pause = max(CHECKPOINT_SECONDS, (saved - begin) / CHECKPOINT_SHARE)
        if checkpoint is not None:
            self.save(checkpoint)
        if self.finished and self.best.weights:
            self.heads.load_state_dict(self.best.weights)
        return self.finished

    @property
    def finished(self) -> bool:
        """All steps are done, or more of them would not help."""
        return self.step >= self.plan.steps or self.best.exhausted

    def _fresh(self, states: Tensor | None = None, output: Tensor | None = None) -> Heads:
        """What training starts from and the weights decay towards. states [B, h]: typical ones, for Hydra++'s norm;
        output [D, h]: what the heads' own matrices are at first."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.plan.seed)
            heads = Heads(self.shape).to(self.device)
        if heads.prefix is not None and states is not None:
            heads.prefix.keep_scale(states)
        if heads.outputs is not None and output is not None:
            with torch.no_grad():
                heads.outputs.copy_(output.expand_as(heads.outputs))
        return heads

    def _update(self, loss: Tensor, start: list[Tensor]) -> None:
        rate = learning_rate(self.step, self.plan.steps, self.plan.recipe.rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.weights, start, rate * self.plan.recipe.decay)
        self.step += 1

    @property
    def checkpoint_bytes(self) -> int:
        """Weights, the best ones and two moments of each."""
        return sum(4 * parameter.nbytes for parameter in self.heads.parameters())

    def save(self, path: Path) -> None:
        """Atomic, with the optimizer's state: a resumed run continues bit for bit. MedusaError when it cannot."""
        state = {
            "plan": asdict(self.plan),
            "step": self.step,
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best.weights,
            "curve": [asdict(point) for point in self.best.curve],
            "at": self.best.at,
        }
        save_checkpoint(path, state)

    def restore(self, path: Path) -> bool:
        """Continues from a checkpoint of the same plan; False (and nothing changed) when there is none that fits."""
        state = load_checkpoint(path)
        if state is None or state.get("plan") != asdict(self.plan):
            return False
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        best = {name: value.to(self.device) for name, value in state["best"].items()}
        self.best = Best([CurvePoint(**point) for point in state["curve"]], best, int(state["at"]))
        return True


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Whole or not at all. OSError when it cannot be written."""
    with atomic_path(path) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # what torch makes of a full disk
            raise OSError(str(error).splitlines()[0]) from error


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint's content, None when there is no readable one. Never runs code from the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
        return None
    return state if isinstance(state, dict) else None


def measure_rate(
    shape: HeadShape, recipe: Recipe, objective: str, vocabulary: int, device: torch.device, seconds: float = 1.5
) -> float:
    """Training positions per second on this device, from made-up data."""
    batch = default_batch(device, 1 << 20, recipe)
    plan = FitPlan("", shape.kind, objective, shape.count, 0, 1 << 30, batch, device.type, recipe, vocabulary)
    fit = Fit(plan, shape.hidden, device)
    generator = torch.Generator().manual_seed(0)
    states = FileRows([torch.randn(batch, shape.hidden, generator=generator).half().numpy()], device)
    output = (torch.randn(vocabulary, shape.hidden, generator=generator) * 0.02).to(device, matmul_dtype(device))
    target = torch.randint(0, vocabulary, (batch, shape.count), generator=generator, dtype=torch.int32).numpy()
    embeddings: TokenEmbeddings | None = None
    teacher: tuple[FileRows, FileRows] | Tensor | None = None
    if shape.kind != "medusa":
        embeddings = TokenEmbeddings(output[:batch].half(), np.zeros(batch, np.int32))
    if objective == "teacher" and recipe.teacher_top != WHOLE:
        top = min(recipe.teacher_top, vocabulary)
        ids = np.tile(np.arange(top, dtype=np.int32), (batch, 1))
        teacher = FileRows([ids], device), FileRows([np.full((batch, top), 1 / top, np.float16)], device)
    if objective == "teacher" and recipe.teacher_top == WHOLE:
        teacher = output
    texts = np.diff(np.linspace(0, batch, max(2, batch // 256), dtype=int)).tolist()
    examples = Examples(np.arange(batch, dtype=np.int64), target, texts)
    source = TextRows(states, embeddings, teacher)
    fit.run(source, examples, output, should_stop=lambda: fit.step >= 2)
    first, begin = fit.step, time.monotonic()
    fit.run(source, examples, output, should_stop=lambda: time.monotonic() - begin > seconds)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (fit.step - first) * batch / (time.monotonic() - begin)
