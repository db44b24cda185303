"""The training loop of streams: deterministic and resumable, as that of heads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..backbone.fit import rate_factor
from ..backbone.layers import TopLayers
from ..backbone.loss import base_loss
from ..backbone.states import WholeText
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
from ..heads.loss import heads_loss
from ..heads.rows import BatchOrder, Examples, Picked, TextRows
from .layers import Piece, Streams
from .recipe import EVALUATIONS, StreamsRecipe

SCALE_ROWS = 2048
"""States that the sizes of learned vectors are taken from."""


MakeStreams = Callable[[TopLayers, int, StreamsRecipe], Streams]
"""For these layers, so many streams."""


class States(Protocol):
    """What the lowest layer reads, of whole texts; on disk backbone.states.LayerStates."""

    @property
    def texts(self) -> Sequence[WholeText]: ...

    def read(self, text: int) -> NDArray[np.float16]: ...


@dataclass(frozen=True)
class SomeTexts:
    """Those of `states` with these numbers."""

    states: States
    numbers: Sequence[int]

    @property
    def texts(self) -> Sequence[WholeText]:
        return [self.states.texts[number] for number in self.numbers]

    def read(self, text: int) -> NDArray[np.float16]:
        return self.states.read(self.numbers[text])


@dataclass(frozen=True)
class StreamsPlan:
    """Everything the result depends on besides the rows. `data` names them, so that a checkpoint fits its data."""

    data: str
    objective: str
    streams: int
    first_layer: int
    seed: int
    steps: int
    batch: int
    device: str
    recipe: StreamsRecipe


@dataclass(frozen=True)
class BaseRows:
    """What the base learns from in shared mode. tokens [N]: of the corpus; output [V, h]: as StreamsData.output, of all
    tokens."""

    tokens: NDArray[np.int32]
    output: Tensor


@dataclass(frozen=True)
class StreamsData:
    """states: of the texts of `examples`, in their order; source: the corpus's rows, with token embeddings as stored
    where streams see the root; output [D, h]: on the device, in the dtype to multiply in; base: in shared mode."""

    states: States
    source: TextRows
    examples: Examples
    output: Tensor
    base: BaseRows | None = None

    def streams(self, top: TopLayers, streams: Streams, picked: Picked) -> tuple[Tensor, Tensor | None]:
        """[streams, B, h] behind the rows of one batch of whole texts, in bfloat16 where that is faster, and in shared
        mode [B, h] of the base at these rows; both after the final norm."""
        assert picked.lengths is not None
        index, lengths, device = picked.index, picked.lengths, self.output.device
        first = index[torch.tensor([0, *lengths[:-1]]).cumsum(0)].numpy()
        numbers = (np.searchsorted(self.examples.starts, first, side="right") - 1).tolist()
        texts = [self.states.texts[number] for number in numbers]
        pieces = [Piece(len(text.fed), text.answer_at, rows) for text, rows in zip(texts, lengths, strict=True)]
        entered = np.concatenate([self.states.read(number) for number in numbers])
        roots = None
        if streams.root is not None:
            assert self.source.embeddings is not None
            roots = self.source.embeddings.drafted(torch.from_numpy(self.examples.rows)[index], 1)[:, 0]
        dtype = self.output.dtype
        faster = torch.autocast(device.type, dtype) if dtype == torch.bfloat16 else contextlib.nullcontext()
        with faster:
            context = streams.read(top, torch.from_numpy(entered).to(device).float(), pieces)
            z: Tensor = streams(top, context, roots)
        return z.float(), None if context.said is None else context.said.float()

    def wanted(self, picked: Picked) -> Tensor:
        """[B, streams] rows of `output`."""
        return torch.from_numpy(self.examples.target)[picked.index].long().to(self.output.device)


class StreamsFit:
    """One run. Advance with run(); the state is whole between steps."""

    def __init__(self, plan: StreamsPlan, top: TopLayers, device: torch.device, make: MakeStreams = Streams) -> None:
        self.plan, self.top, self.device, self.step = plan, top, device, 0
        self.best = Best()
        recipe = plan.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.streams = make(top, plan.streams, recipe).to(device)
        groups = [
            {"params": self.streams.factors(), "peak": recipe.rate},
            {"params": self.streams.vectors(), "peak": recipe.rate * recipe.vectors_rate},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.0)

    def run(
        self,
        data: StreamsData,
        *,
        evaluate: Callable[[Streams], float] | None = None,
        checkpoint: Path | None = None,
        on_step: Callable[[int, float], None] | None = None,
        on_evaluation: Callable[[CurvePoint], None] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """As heads.fit.Fit.run(); on_step is told each step's loss."""
        order = BatchOrder(data.examples, self.plan.batch, self.plan.seed, whole_texts=True)
        every = -(-self.plan.steps // EVALUATIONS)
        if self.step == 0:
            self._set_scales(data)
        pause, saved = CHECKPOINT_SECONDS, time.monotonic()
        while not self.finished and not should_stop():
            value = self._learn(data, order.pick(self.step))
            if evaluate is not None and (self.step % every == 0 or self.step == self.plan.steps):
                self.best.add(CurvePoint(self.step, value, evaluate(self.streams)), self.streams)
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
            self.streams.load_state_dict(self.best.weights)
        return self.finished

    @property
    def finished(self) -> bool:
        """All steps are done, or more of them would not help."""
        return self.step >= self.plan.steps or self.best.exhausted

    def _set_scales(self, data: StreamsData) -> None:
        states = torch.from_numpy(np.array(data.states.read(0)[:SCALE_ROWS]))
        embeddings = data.source.embeddings
        self.streams.set_scales(states, embeddings.matrix if embeddings is not None else None)

    def _learn(self, data: StreamsData, picked: Picked) -> float:
        block = LOSS_ROWS_GPU if self.device.type == "cuda" else LOSS_ROWS
        z, said = data.streams(self.top, self.streams, picked)
        rows = torch.from_numpy(data.examples.rows)[picked.index]
        taught = data.source.taught(rows, self.plan.streams)
        loss = heads_loss(z, data.wanted(picked), data.output, block, taught)
        if (task := self.plan.recipe.shared) is not None:
            assert said is not None
            assert data.base is not None
            teacher = data.source.states.gather(rows) if task.distils else None
            tokens = torch.from_numpy(data.base.tokens[rows.numpy()])
            loss = task.weight * loss + base_loss(said, teacher, tokens, data.base.output)
        factor = rate_factor(self.step, self.plan.steps, self.plan.recipe.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        self.optimizer.step()
        self.step += 1
        return float(loss.detach())

    @property
    def checkpoint_bytes(self) -> int:
        """Weights, the best ones and two moments of each."""
        return sum(4 * parameter.nbytes for parameter in self.streams.parameters())

    def save(self, path: Path) -> None:
        """Atomic, with the optimizer's state: a resumed run continues bit for bit. OSError when it cannot."""
        state = {
            "plan": asdict(self.plan),
            "step": self.step,
            "streams": self.streams.state_dict(),
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
        self.streams.load_state_dict(state["streams"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        best = {name: value.to(self.device) for name, value in state["best"].items()}
        self.best = Best([CurvePoint(**point) for point in state["curve"]], best, int(state["at"]))
        return True
