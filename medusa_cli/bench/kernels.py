"""`medusa bench kernels`: only the matrix products of a loaded model, our kernels beside llama.cpp's.

Two processes hold the model, one of them with MEDUSA_ISA=off, and are asked in turn, so that a slow spell of the
machine hits both.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.bench.process import Remote
from medusa_cli.decoding import trial
from medusa_cli.support import tables
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native

MEMORY, COMPUTE = "memory", "compute"
ATTENTION = "attention"
CELLS = 1024
"""Cells of the cache over which attention is timed: passes after this many more tokens, less passes after few."""
FEW_CELLS = 64
REPEATS = 3
"""Passes per measurement, after one that warms up; the fastest counts."""


@dataclass(frozen=True)
class Row:
    """One type and width. ms: medians over the rounds; ratio: ours over ours for one column.

    of_bandwidth, of_peak: shares of what the same threads at best read from memory, and multiplied in registers with
    the kernels' instruction set (bytes, for attention floats; None: not known), in this run. of_roof: share of the
    lower of the two limits, each at this width's intensity (None if the peak is not known); bound: which one that is.
    """

    type: str
    nbytes: int
    columns: int
    ms: float
    stock_ms: float
    gb_per_second: float
    gmac_per_second: float
    ratio: float
    of_bandwidth: float
    of_peak: float | None

    @property
    def speedup(self) -> float:
        return self.stock_ms / self.ms

    @property
    def intensity(self) -> float:
        """Operations (a multiply-add is two) per byte of the weights, or of the cache."""
        return 2 * self.gmac_per_second / self.gb_per_second

    @property
    def of_roof(self) -> float | None:
        return None if self.of_peak is None else max(self.of_bandwidth, self.of_peak)

    @property
    def bound(self) -> str | None:
        if self.of_peak is None:
            return None
        return MEMORY if self.of_bandwidth >= self.of_peak else COMPUTE


def measure(
    model: Path, threads: int, widths: Sequence[int], rounds: int, on_round: Callable[[int, int], None]
) -> list[Row]:
    """All types of the model's matrices that our kernels take, and attention; on_round(done, count) after each round.

    Attention is left out if the model's is not of one kind, or the machine is too noisy to measure it: its time is a
    difference of two, which comes out negative, or less than the multiplications take, where one was disturbed.
    """
    held = Products, str(model), threads
    with Remote(*held) as ours, Remote(*held, stock_kernels=True) as stock:
        types = ours.call("types")
        if not types:
            raise MedusaError(
                f"{model.name}: none of its matrices runs on our kernels, `medusa doctor {model}` says why"
            )
        widths = sorted({1, *widths})
        for worker in (ours, stock):
            if worker.call("attend", max(widths)):
                types = [*dict.fromkeys((*types, ATTENTION))]
        times: dict[tuple[str, int], list[tuple[float, float]]] = {(t, n): [] for t in types for n in widths}
        facts: dict[str, tuple[int, int]] = {}
        bandwidth, peak, float_peak = 0.0, 0.0, 0.0
        for done in range(rounds):
            limits = [limit or 0.0 for limit in ours.call("limits")]
            bandwidth, peak, float_peak = map(max, (bandwidth, peak, float_peak), limits)
            for type_, n in times:
                answers = [worker.call("time", type_, n) for worker in (ours, stock)]
                times[type_, n].append((min(answers[0]["ms"]), min(answers[1]["ms"])))
                facts[type_] = (answers[0]["nbytes"], answers[0]["products"])
            on_round(done + 1, rounds)
    rows = []
    for (type_, n), pairs in times.items():
        ms, stock_ms = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        if type_ == ATTENTION and min(ms, stock_ms, *(pair[0] for pair in times[type_, 1])) <= 0:
            continue
        ratio = statistics.median(pair[0] / single[0] for pair, single in zip(pairs, times[type_, 1], strict=True))
        nbytes, products = facts[type_]
        speeds = nbytes / ms / 1e6, products * n / ms / 1e6
        limit = float_peak if type_ == ATTENTION else peak
        of_peak = 1e9 * speeds[1] / limit if limit else None
        if type_ == ATTENTION and of_peak is not None and of_peak > 1:
            continue
        rows.append(Row(type_, nbytes, n, ms, stock_ms, *speeds, ratio, 1e9 * speeds[0] / bandwidth, of_peak))
    return rows


def table(rows: Sequence[Row], model: str) -> tables.Table:
    headers = (
        "type", "size", "columns", "ms", "op/byte", "GB/s", "GMAC/s", "of roof", "bound", "x 1 col.", "llama.cpp ms",
        "speedup",
    )  # fmt: skip
    lines = []
    for row in rows:
        what = (row.type, f"{row.nbytes / 1e6:.1f} MB") if row.columns == 1 else ("", "")
        speeds = f"{row.ms:.2f}", f"{row.intensity:.0f}", f"{row.gb_per_second:.1f}", f"{row.gmac_per_second:.0f}"
        shares = (tables.MISSING if row.of_roof is None else f"{row.of_roof:.0%}"), row.bound or tables.MISSING
        ratios = (f"{value:.2f}" for value in (row.ratio, row.stock_ms, row.speedup))
        lines.append((*what, str(row.columns), *speeds, *shares, *ratios))
    title = f"{model}: all matrices of a type, one after the other; attention over {CELLS} tokens"
    return tables.Table(title, headers, lines)


def as_json(rows: Sequence[Row]) -> str:
    names = ("speedup", "intensity", "of_roof", "bound")
    return json.dumps([asdict(row) | {name: getattr(row, name) for name in names} for row in rows], indent=1)


def room_for(widest: int) -> int:
    """Context of both timers: its size alone changes what a pass costs."""
    return FEW_CELLS + CELLS + widest


class Products:
    """A model, in its own process."""

    def __init__(self, path: str, threads: int) -> None:
        from medusa_cli import native

        trial.run(Path(path))
        self._path, self._threads = path, threads
        self._model = native.Model(path, n_gpu_layers=0)
        self._attention = {"nbytes": 0, "products": 0}
        self._timers: list[native.VerifyTimer] = []

    def types(self) -> list[str]:
        """Types of the matrices that run on our kernels."""
        return [one.type for one in self._model.placement if (one.role, one.buffer) == ("matrix", "MEDUSA")]

    def limits(self) -> tuple[float, float | None, float | None]:
        """As from native.machine_limits()."""
        from medusa_cli import native

        return native.machine_limits(n_threads=self._threads)

    def attend(self, widest: int) -> bool:
        """Prepares for attention of up to `widest` tokens over CELLS; whether all layers have the same kind."""
        from medusa_cli import native
        from medusa_cli.decoding import offload

        file, name, room = native.read_gguf(self._path), f"{self._model.architecture}.attention", room_for(widest)
        heads = file.metadata.get(f"{name}.head_count")
        cached = file.metadata.get(f"{name}.head_count_kv", heads)
        windowed = f"{name}.sliding_window" in file.metadata
        if not isinstance(heads, int) or not isinstance(cached, int) or windowed:
            return False
        if self._model.n_ctx_train < room or self._model.is_recurrent:
            return False
        shape = offload.shape_of(file)
        per_cell = sum(shape.keys) + sum(shape.values)
        self._attention = {"nbytes": 2 * CELLS * per_cell, "products": CELLS * per_cell * heads // cached}
        self._timers = [
            native.VerifyTimer(self._model, widest, position=cells, n_ctx=room, n_threads=self._threads)
            for cells in (FEW_CELLS, FEW_CELLS + CELLS)
        ]
        return True

    def time(self, type_: str, columns: int) -> dict[str, Any]:
        """Bytes and multiply-adds of all products of the type, and milliseconds of a few passes.

        Attention is how much longer passes take after CELLS more tokens: noise can make it negative.
        """
        from medusa_cli import native

        if type_ == ATTENTION:
            few, many = (timer.time(columns, passes=REPEATS + 1)[1:] for timer in self._timers)
            return {**self._attention, "ms": [statistics.median(many) - statistics.median(few)]}
        found = native.time_products(self._model, type_, columns, repeats=REPEATS, n_threads=self._threads)
        return {"nbytes": found.nbytes, "products": found.products, "ms": found.ms}
