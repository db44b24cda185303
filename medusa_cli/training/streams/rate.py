"""How fast streams train on this device: measured on made-up states, before there is any text."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ..backbone.layers import TopLayers
from ..backbone.states import WholeText
from ..heads.recipe import TEACHER_TOP
from ..heads.rows import Examples, FileRows, TextRows, TokenEmbeddings
from ..heads.torch_setup import matmul_dtype
from ..text.dataset import Span
from .fit import BaseRows, StreamsData, StreamsFit, StreamsPlan

PROMPT, ANSWER = 64, 128
"""Tokens of each made-up text."""


class _MadeUp:
    """Random states of texts that are all alike."""

    def __init__(self, count: int, hidden: int) -> None:
        fed = np.zeros(PROMPT + ANSWER, np.int32)
        self.texts = [WholeText(Span(at * (ANSWER + 1), ANSWER + 1, ""), fed) for at in range(count)]
        self.values = np.random.default_rng(0).standard_normal((len(fed), hidden)).astype(np.float16)

    def read(self, text: int) -> NDArray[np.float16]:
        return self.values


def measure_rate(
    top: TopLayers,
    plan: StreamsPlan,
    vocabulary: int,
    whole_vocabulary: int,
    device: torch.device,
    seconds: float = 1.5,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Answer positions per second. vocabulary: tokens that streams choose from; whole_vocabulary: that there are;
    clock: of the seconds."""
    count, hidden = max(1, round(plan.batch / ANSWER)), top.shape.hidden
    states = _MadeUp(count, hidden)
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.arange(text.span.start, text.span.start + ANSWER) for text in states.texts])
    target = rng.integers(0, vocabulary, (len(rows), plan.streams), dtype=np.int32)
    total = int(rows[-1]) + 2
    teacher = None
    if plan.objective == "teacher":
        width = min(TEACHER_TOP, vocabulary)
        ids = np.tile(np.arange(width, dtype=np.int32), (total, 1))
        teacher = FileRows([ids], device), FileRows([np.full((total, width), 1 / width, np.float16)], device)
    embeddings = TokenEmbeddings(torch.ones(1, hidden, dtype=torch.float16, device=device), np.zeros(total, np.int32))
    source = TextRows(FileRows([np.zeros((total, hidden), np.float16)], device), embeddings, teacher)
    output = torch.from_numpy(rng.standard_normal((vocabulary, hidden), np.float32) * 0.02)
    examples = Examples(rows, target, [ANSWER] * count)
    output = output.to(device, matmul_dtype(device))
    base = None
    if plan.recipe.shared is not None:
        everything = torch.zeros(whole_vocabulary, hidden, device=device, dtype=output.dtype)
        base = BaseRows(np.zeros(total, np.int32), everything)
    data = StreamsData(states, source, examples, output, base)
    fit = StreamsFit(plan, top, device)
    fit.run(data, should_stop=lambda: fit.step >= 2)
    first, begin = fit.step, clock()
    fit.run(data, should_stop=lambda: clock() - begin > seconds)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (fit.step - first) * len(rows) / (clock() - begin)
