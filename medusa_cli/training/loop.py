"""The training loop for heads, streams and the model's own layers: deterministic, resumable, on a CPU or a GPU.

A kind of drafts is a subclass of Loop: it gives the trained parameters with their highest rates, and the loss of a
batch. The loop owns everything else: batches, rates, checkpoints, held-out text, early stops, the best weights.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from medusa_cli.support.atomic import atomic_path

from .text.dataset import Examples

CHECKPOINT_SECONDS = 60.0
CHECKPOINT_SHARE = 0.05
"""Writing checkpoints may take this share of the time; large weights are saved less often."""


# --- batches ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picked:
    """One batch: indices [B] into Examples.rows. lengths: if the rows are whole texts, their rows, in order."""

    index: Tensor
    lengths: tuple[int, ...] | None

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Those of `index` at which a text begins."""
        assert self.lengths is not None
        return self.index[torch.tensor([0, *self.lengths[:-1]]).cumsum(0)].numpy()


def steps_per_epoch(examples: Examples, batch: int, whole_texts: bool) -> int:
    """How many batches of about `batch` rows an epoch has."""
    most = len(examples.lengths) if whole_texts else len(examples.rows)
    return min(most, max(1, len(examples.rows) // batch))


class BatchOrder:
    """Batch number `step` of a run, the same whenever it is asked for: every epoch has its own random order."""

    def __init__(self, examples: Examples, batch: int, seed: int, whole_texts: bool) -> None:
        self.examples, self.batch, self.seed, self.whole_texts = examples, batch, seed, whole_texts
        self.per_epoch = steps_per_epoch(examples, batch, whole_texts)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def pick(self, step: int) -> Picked:
        """Step counts from 0."""
        epoch, at = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            count = len(self.examples.lengths) if self.whole_texts else len(self.examples.rows)
            self._epoch, self._order = epoch, torch.randperm(count, generator=generator)
        if not self.whole_texts:
            return Picked(self._order[at * self.batch : (at + 1) * self.batch], None)
        count = len(self._order)
        texts = self._order[at * count // self.per_epoch : (at + 1) * count // self.per_epoch].tolist()
        return _texts(self.examples, texts)


def text_batches(examples: Examples, rows: int, texts: Sequence[int] | None = None) -> Iterator[Picked]:
    """All rows of `texts` (None: of all) in order, in batches of whole texts with up to `rows` rows (more if one text
    is longer)."""
    batch: list[int] = []
    for text in range(len(examples.lengths)) if texts is None else texts:
        if batch and sum(examples.lengths[held] for held in (*batch, text)) > rows:
            yield _texts(examples, batch)
            batch = []
        batch.append(text)
    if batch:
        yield _texts(examples, batch)


def parts_of(picked: Picked, rows: int) -> Iterator[Picked]:
    """A batch of whole texts in parts with up to `rows` rows (more if one text is longer)."""
    assert picked.lengths is not None
    at, part = 0, list[int]()
    for length in picked.lengths:
        if part and sum(part) + length > rows:
            yield Picked(picked.index[at : at + sum(part)], tuple(part))
            at, part = at + sum(part), []
        part.append(length)
    yield Picked(picked.index[at:], tuple(part))


def _texts(examples: Examples, texts: Sequence[int]) -> Picked:
    lengths = tuple(examples.lengths[text] for text in texts)
    parts = [torch.arange(examples.lengths[text]) + int(examples.starts[text]) for text in texts]
    return Picked(torch.cat(parts), lengths)


# --- one run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CurvePoint:
    """One evaluation. step: how many steps were done; loss: the newest that was read; tokens_per_step: held out."""

    step: int
    loss: float
    tokens_per_step: float


@dataclass
class Best:
    """The evaluations so far, and the weights at the best one (the earliest if several are equal)."""

    curve: list[CurvePoint] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    at: int = -1
    """Index into curve. An evaluation before the first step counts only if asked for."""

    def add(self, point: CurvePoint, trained: nn.Module, fresh_counts: bool = False) -> None:
        """fresh_counts: also before the first step."""
        self.curve.append(point)
        if (point.step > 0 or fresh_counts) and (
            self.at < 0 or point.tokens_per_step > self.curve[self.at].tokens_per_step
        ):
            self.at = len(self.curve) - 1
            self.weights = {name: value.detach().clone() for name, value in trained.state_dict().items()}

    @property
    def since(self) -> int:
        """Evaluations since the best one after a step. What was there before the first is no measure: good weights get
        worse while the rates are high, and better again when they fall."""
        trained = [point.tokens_per_step for point in self.curve if point.step > 0]
        return len(trained) - 1 - trained.index(max(trained)) if trained else 0


def learning_rate(step: int, steps: int, peak: float, rising: int) -> float:
    """Linear up in the first `rising` steps, then a cosine down to zero at `steps`."""
    if step < rising:
        return peak * (step + 1) / rising
    return peak * 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def rising_steps(steps: int, most: int, part: int) -> int:
    """How many steps the rates of a run of `steps` rise for: `most`, but no more than one in `part` of them."""
    return min(most, max(1, steps // part))


class Loop:
    """One training run over fixed rows. Advance with run(); the state is whole between steps.

    The training data, `data`, has `examples`: a batch is some of them.

    plan: everything the result depends on besides the rows, a dataclass with seed, steps and batch (rows per step,
    about). whole_texts: batches are made of the texts of `examples`, which may be pieces of texts. rising: steps in
    which the rates rise. evaluations: how many a run has, evenly spaced. patience: this many of them in a row without a
    better one end the run (Best.since). measures_fresh: one more comes before the first step. keeps_fresh: what it
    measures is kept if nothing was better. read_every: steps between two losses that are read back. at_once: rows of a
    batch of whole texts whose gradients are computed together, about; None: all.
    """

    plan: Any
    whole_texts = True
    rising: int
    evaluations: int
    patience: int | None = None
    measures_fresh = keeps_fresh = False
    read_every = 1
    at_once: int | None = None

    def __init__(
        self,
        plan: Any,
        trained: nn.Module,
        groups: Sequence[tuple[list[nn.Parameter], float]],
        device: torch.device,
        fused: bool = False,
    ) -> None:
        """groups: parameters of `trained` with the highest rate of each group, which is clipped by itself. fused: all
        steps of an update in one kernel; its results are not the same bit for bit."""
        self.plan, self.trained, self.device, self.step, self.best = plan, trained, device, 0, Best()
        self.optimizer = torch.optim.AdamW(
            [{"params": parameters, "peak": peak} for parameters, peak in groups],
            lr=groups[0][1],
            betas=(0.9, 0.98),
            weight_decay=0.0,
            fused=fused or None,
        )

    def _loss(self, data: Any, picked: Picked) -> Tensor:
        """The loss of one batch. Random draws depend on seed and step alone, so that a resumed run repeats them."""
        raise NotImplementedError

    def _begin(self, data: Any) -> None:
        """Called at the start of each run()."""

    def _updated(self) -> None:
        """Called after the optimizer, within a step."""

    def _read(self, loss: Tensor) -> float:
        """The number to report for a step's loss."""
        return float(loss.detach())

    def _measured(self, evaluate: Callable[..., Any]) -> float:
        """Held-out tokens per step."""
        return float(evaluate(self.trained))

    def run(
        self,
        data: Any,
        *,
        evaluate: Callable[..., Any] | None = None,
        checkpoint: Path | None = None,
        on_step: Callable[[int, float], None] = lambda step, loss: None,
        on_evaluation: Callable[[CurvePoint], None] = lambda point: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Trains to the plan's last step; False when should_stop() ended it first (asked before each step).

        evaluate: called by _measured(); in the end the weights are those with the most tokens per step. Saves to
        `checkpoint` about once a minute, at the end and when stopped; MedusaError if it cannot. on_step(step, loss):
        the loss is the newest that was read back.
        """
        order = BatchOrder(data.examples, self.plan.batch, self.plan.seed, self.whole_texts)
        every = -(-self.plan.steps // self.evaluations)
        self._begin(data)
        value, pause, saved = math.nan, CHECKPOINT_SECONDS, time.monotonic()

        def judge() -> None:
            if evaluate is not None:
                point = CurvePoint(self.step, value, self._measured(evaluate))
                self.best.add(point, self.trained, self.keeps_fresh)
                on_evaluation(self.best.curve[-1])

        if self.measures_fresh and self.step == 0 and not self.best.curve:
            judge()
        while not self.finished and not should_stop():
            loss = self._learn(data, order)
            is_due = self.step % every == 0 or self.step == self.plan.steps
            if is_due or self.step % self.read_every == 0:
                value = self._read(loss)
            if is_due:
                judge()
            on_step(self.step, value)
            if checkpoint is not None and time.monotonic() - saved > pause:
                begin = time.monotonic()
                self.save(checkpoint)
                saved = time.monotonic()
                pause = max(CHECKPOINT_SECONDS, (saved - begin) / CHECKPOINT_SHARE)
        if checkpoint is not None:
            self.save(checkpoint)
        if self.finished and self.best.weights:
            self.trained.load_state_dict(self.best.weights)
        return self.finished

    @property
    def finished(self) -> bool:
        """All steps are done, or more of them would not help."""
        exhausted = self.patience is not None and self.best.since >= self.patience
        return self.step >= self.plan.steps or exhausted

    def _learn(self, data: Any, order: BatchOrder) -> Tensor:
        """Does one step and returns its loss, the mean of its parts' by their rows."""
        picked = order.pick(self.step)
        parts = [picked] if self.at_once is None else list(parts_of(picked, self.at_once))
        self.optimizer.zero_grad(set_to_none=True)
        losses = []
        for part in parts:
            loss = self._loss(data, part) * (len(part.index) / len(picked.index))
            loss.backward()
            losses.append(loss.detach())
        self._update()
        return torch.stack(losses).sum()

    def _update(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.plan.steps, group["peak"], self.rising)
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        self._updated()
        self.step += 1

    def rate(self, data: Any, rows: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> float:
        """Rows per second of training, with `rows` per step. The first two steps do not count."""
        self.run(data, should_stop=lambda: self.step >= 2)
        first, begin = self.step, clock()
        self.run(data, should_stop=lambda: clock() - begin > seconds)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return (self.step - first) * rows / (clock() - begin)

    @property
    def checkpoint_bytes(self) -> int:
        """Weights, the best weights, and two moments of each."""
        return sum(4 * parameter.nbytes for parameter in self.trained.parameters())

    def save(self, path: Path) -> None:
        """Atomic, with the optimizer's state: a resumed run continues bit for bit. MedusaError if saving fails."""
        save_checkpoint(path, self._state())

    def restore(self, path: Path) -> bool:
        """Continues from a checkpoint of the same plan; False (and nothing changed) if none fits."""
        state = load_checkpoint(path)
        if state is None or state.get("plan") != asdict(self.plan) or not state.keys() >= self._state().keys():
            return False
        self._set_state(state)
        return True

    def _state(self) -> dict[str, Any]:
        return {
            "plan": asdict(self.plan),
            "step": self.step,
            "trained": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": self.best.weights,
            "curve": [asdict(point) for point in self.best.curve],
            "at": self.best.at,
        }

    def _set_state(self, state: dict[str, Any]) -> None:
        self.trained.load_state_dict(state["trained"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        best = {name: value.to(self.device) for name, value in state["best"].items()}
        self.best = Best([CurvePoint(**point) for point in state["curve"]], best, int(state["at"]))


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Writes it whole or not at all. MedusaError if it cannot be written."""
    with atomic_path(path) as temporary:
        try:
            torch.save(state, temporary)
        except RuntimeError as error:  # torch raises this for a full disk
            raise OSError(str(error).splitlines()[0]) from error


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint's content, None if there is no readable one. Never runs code from the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
        return None
    return state if isinstance(state, dict) else None
