"""The training loop: deterministic, resumable, the same code on two CPU cores and on a large GPU."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.converters.atomic import atomic_path

from .dataset import Span, targets
from .evaluate import RANKS
from .heads import Heads, heads_loss, target_ranks
from .torch_setup import matmul_dtype

CHECKPOINT_SECONDS = 60.0
PEAK_RATE = 1e-3
WARMUP_STEPS = 100
WEIGHT_DECAY = 0.01
DEVICE_SHARE = 0.7
"""Share of the free GPU memory that hidden states may take."""


@dataclass(frozen=True)
class FitPlan:
    """Everything the result depends on besides the rows. `data` names them, so that a checkpoint fits its data."""

    data: str
    heads: int
    seed: int
    steps: int
    batch: int
    device: str


class StateRows:
    """Hidden states by row number: on the device where they fit, else gathered from the files for each batch."""

    def __init__(self, shards: Sequence[NDArray[np.float16]], device: torch.device) -> None:
        self.device = device
        self.shards = list(shards)
        self.ends = np.cumsum([len(shard) for shard in self.shards])
        self.resident: Tensor | None = None
        needed = sum(shard.nbytes for shard in self.shards)
        if device.type == "cuda" and needed < DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
            self.resident = torch.empty(
                (int(self.ends[-1]), self.shards[0].shape[1]), dtype=torch.float16, device=device
            )
            for shard, end in zip(self.shards, self.ends, strict=True):
                self.resident[int(end) - len(shard) : int(end)] = torch.from_numpy(np.array(shard))

    def gather(self, rows: Tensor) -> Tensor:
        """rows [B] int64 on the device (CPU where the states are not resident) -> [B, h] float16 on the device."""
        if self.resident is not None:
            return self.resident[rows]
        wanted = rows.cpu().numpy()
        out = np.empty((len(wanted), self.shards[0].shape[1]), dtype=np.float16)
        owner = np.searchsorted(self.ends, wanted, side="right")
        for index in np.unique(owner):
            mine = owner == index
            shard = self.shards[index]
            out[mine] = shard[wanted[mine] - (int(self.ends[index]) - len(shard))]
        return torch.from_numpy(out).to(self.device)


def default_batch(device: torch.device, rows: int) -> int:
    """Positions per step. Large on a GPU, where a step's fixed costs count; never more than there are rows."""
    return min(rows, 4096 if device.type == "cuda" else 512)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to zero at `steps`."""
    warmup = min(WARMUP_STEPS, max(1, steps // 20))
    if step < warmup:
        return PEAK_RATE * (step + 1) / warmup
    return PEAK_RATE * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class Fit:
    """One training run over fixed rows. Advance with run(); the state is whole between steps."""

    def __init__(self, plan: FitPlan, hidden: int, device: torch.device) -> None:
        self.plan, self.device, self.step = plan, device, 0
        self.heads = Heads(plan.heads, hidden).to(device)
        self.optimizer = torch.optim.AdamW(
            self.heads.parameters(), lr=PEAK_RATE, betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY
        )

    def run(
        self,
        states: StateRows,
        rows: NDArray[np.int64],
        target: NDArray[np.int32],
        output: Tensor,
        *,
        checkpoint: Path | None = None,
        on_step: Callable[[int, float], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Trains to the plan's last step; False when should_stop() ended it first (checked before each step).

        rows [N] int64, target [N, K] as dataset.targets() gives them, output [D, h] on the device in the dtype to
        multiply in. Saves to `checkpoint` about once a minute, at the end and when stopped. on_step(step, loss): the
        loss is the newest that was read back (every tenth step).
        """
        source = self.device if states.resident is not None else torch.device("cpu")
        all_rows, all_targets = torch.from_numpy(rows).to(source), torch.from_numpy(target).to(source)
        per_epoch = len(rows) // self.plan.batch
        block = 8192 if self.device.type == "cuda" else 512
        order, epoch, value, saved = torch.empty(0), -1, math.nan, time.monotonic()
        while self.step < self.plan.steps and not should_stop():
            if self.step // per_epoch != epoch:
                epoch = self.step // per_epoch
                generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + epoch)
                order = torch.randperm(len(rows), generator=generator).to(source)
            at = (self.step % per_epoch) * self.plan.batch
            picked = order[at : at + self.plan.batch]
            wanted = all_targets[picked].long().to(self.device)
            loss = heads_loss(self.heads, states.gather(all_rows[picked]), wanted, output, block)
            self._update(loss)
            if self.step % 10 == 0 or self.step == self.plan.steps:
                value = float(loss.detach())
            if on_step is not None:
                on_step(self.step, value)
            if checkpoint is not None and time.monotonic() - saved > CHECKPOINT_SECONDS:
                self.save(checkpoint)
                saved = time.monotonic()
        if checkpoint is not None:
            self.save(checkpoint)
        return self.step >= self.plan.steps

    def _update(self, loss: Tensor) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.plan.steps)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.heads.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1

    def round_weights(self) -> None:
        """To what the file will hold (F16), so that measurements are those of the file."""
        with torch.no_grad():
            self.heads.weight.copy_(self.heads.weight.half().float())

    def save(self, path: Path) -> None:
        """Atomic, with the optimizer's state: a resumed run continues bit for bit. MedusaError when it cannot."""
        state = {
            "plan": asdict(self.plan),
            "step": self.step,
            "heads": self.heads.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        with atomic_path(path) as temporary:
            try:
                torch.save(state, temporary)
            except RuntimeError as error:  # what torch makes of a full disk
                raise OSError(str(error).splitlines()[0]) from error

    def restore(self, path: Path) -> bool:
        """Continues from a checkpoint of the same plan; False (and nothing changed) when there is none that fits."""
        state = load_checkpoint(path)
        if state is None or state.get("plan") != asdict(self.plan):
            return False
        self.heads.load_state_dict(state["heads"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        return True


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint's content, None when there is no readable one. Never runs code from the file."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError):
        return None
    return state if isinstance(state, dict) else None


def rank_texts(
    heads: Heads,
    states: StateRows,
    tokens: NDArray[np.integer],
    spans: Sequence[Span],
    t2d: NDArray[np.integer],
    output: Tensor,
) -> list[NDArray[np.int64]]:
    """What evaluate.py works on: for each text its [positions, heads] ranks (positions with all targets inside)."""
    count = heads.weight.shape[0]
    kept = [span for span in spans if span.length > count]
    rows, target = targets(tokens, kept, t2d, count)
    block = 4096 if output.device.type == "cuda" else 256
    parts = []
    for at in range(0, len(rows), block):
        wanted = torch.from_numpy(target[at : at + block]).long().to(output.device)
        picked = torch.from_numpy(rows[at : at + block]).to(output.device)
        parts.append(target_ranks(heads, states.gather(picked), wanted, output, RANKS).cpu().numpy())
    ranks = np.concatenate(parts) if parts else np.zeros((0, count), np.int64)
    texts, at = [], 0
    for span in kept:
        texts.append(ranks[at : at + span.length - count])
        at += span.length - 1
    return texts


def measure_rate(hidden: int, vocabulary: int, heads: int, device: torch.device, seconds: float = 1.5) -> float:
    """Training positions per second on this device, from made-up data."""
    batch = default_batch(device, 1 << 20)
    plan = FitPlan("", heads, 0, 1 << 30, batch, str(device))
    fit = Fit(plan, hidden, device)
    generator = torch.Generator().manual_seed(0)
    states = StateRows([torch.randn(batch, hidden, generator=generator).half().numpy()], device)
    output = (torch.randn(vocabulary, hidden, generator=generator) * 0.02).to(device, matmul_dtype(device))
    target = torch.randint(0, vocabulary, (batch, heads), generator=generator, dtype=torch.int32).numpy()
    rows = np.arange(batch, dtype=np.int64)
    fit.run(states, rows, target, output, should_stop=lambda: fit.step >= 2)
    first, begin = fit.step, time.monotonic()
    fit.run(states, rows, target, output, should_stop=lambda: time.monotonic() - begin > seconds)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (fit.step - first) * batch / (time.monotonic() - begin)
