"""What forward passes cost, with our kernels and with those of unmodified llama.cpp (MEDUSA_ISA=off).

    python benchmarks/passes.py verify MODEL [--widths 1 2 4 8 16] [--require 1:0.70 8:1.30]
    python benchmarks/passes.py context MODEL [--contexts 64 4096] [--widths 1 8]
    python benchmarks/passes.py stock MODEL [--widths 1 4 8 16 512]
    python benchmarks/passes.py layer MODEL [--layer L]
    python benchmarks/passes.py experts [--layers 4] [--experts 128] [--used 8]
    python benchmarks/passes.py hybrid FOLDER

`COMMAND --help` says what each of them measures. Ours and stock are two processes that are asked in turn, so that both
see the same machine.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
from rich.table import Table

from medusa_cli.bench.process import Remote
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from made_up_model import Size

    from medusa_cli import native

OURS, STOCK = "ours", "stock"
SIDES = {OURS: False, STOCK: True}
"""Whether the kernels are llama.cpp's."""


class Passes:
    """A model in a process of its own. Times are milliseconds, medians without the first pass, which warms up."""

    def __init__(self, path: str, threads: int) -> None:
        from medusa_cli import native

        self._model, self._path, self._threads = native.Model(path), path, threads
        self._timer: Any = None

    def verify(self, width: int, position: int) -> float:
        from medusa_cli import native

        timer = native.VerifyTimer(self._model, width, position=position, hidden=False, n_threads=self._threads)
        return statistics.median(timer.time(width, passes=4)[1:])

    def prefill(self, width: int) -> float:
        from _native_testing import time_prefill

        return statistics.median(time_prefill(self._model, width, repeats=4, n_threads=self._threads)[1:])

    def go_behind(self, position: int, widest: int) -> None:
        from medusa_cli import native

        self._timer = native.VerifyTimer(self._model, widest, position=position, hidden=False, n_threads=self._threads)

    def behind(self, width: int) -> float:
        return statistics.median(self._timer.time(width, passes=4)[1:])

    def bandwidth(self) -> float:
        """Bytes per second of a plain read."""
        from medusa_cli import native

        return native.machine_limits(n_threads=self._threads, rounds=5)[0]

    def cell_bytes(self) -> int:
        """Of one token in the cache."""
        from medusa_cli import native
        from medusa_cli.decoding import offload

        shape = offload.shape_of(native.read_gguf(self._path))
        return 2 * (sum(shape.keys) + sum(shape.values))


@contextmanager
def sides(model: str, threads: int, names: tuple[str, ...] = (OURS, STOCK)) -> Iterator[dict[str, Remote]]:
    path = str(common.find_model(model).path)
    workers = {name: Remote(Passes, path, threads, stock_kernels=SIDES[name]) for name in names}
    try:
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


@dataclass
class Verify:
    """What checking several tokens at once costs, relative to a plain step of stock kernels.

    T(n): one pass over n tokens, behind --position others, with our kernels; S(1): over one, with stock ones. Medians
    over the rounds; ratios are taken within a round. Exits with 1 when a required T(n)/S(1) (--require N:RATIO ...),
    or the prefill's speed relative to stock, is missed.
    """

    model: str
    _: KW_ONLY
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    prefill: int = 512
    position: int = 64
    rounds: int = 9
    threads: int = 0
    require: tuple[str, ...] = ()
    require_prefill: float | None = None

    def run(self) -> None:
        times: dict[int, list[tuple[float, float]]] = {width: [] for width in sorted({1, *self.widths})}
        prompts: list[tuple[float, float]] = []
        with sides(self.model, self.threads) as workers:
            ours, stock = workers.values()
            for _ in range(self.rounds):
                for width, pairs in times.items():
                    asked = ("verify", width, self.position)
                    pairs.append((ours.call(*asked), stock.call(*asked)))
                prompts.append((ours.call("prefill", self.prefill), stock.call("prefill", self.prefill)))
        # Ratios within a round, then their median: a slow spell of the machine hits both sides.
        base = [pair[1] for pair in times[1]]
        table = Table("tokens", "ours ms", "stock ms", "ours / stock step", "stock / stock step", "speedup")
        wanted = {int(width): float(ratio) for width, ratio in (text.split(":") for text in self.require)}
        missed = []
        for width, pairs in times.items():
            ratio, _ = self._add_row(table, str(width), pairs, base)
            if ratio > wanted.get(width, math.inf):
                missed.append(f"T({width})/S(1) is {ratio:.3f}, wanted {wanted[width]}")
        _, faster = self._add_row(table, f"prompt of {self.prefill}", prompts, base)
        if self.require_prefill and faster < self.require_prefill:
            missed.append(f"the prompt runs at {faster:.2f}x stock, wanted {self.require_prefill}")
        common.show(table)
        if missed:
            raise MedusaError("missed: " + "; ".join(missed))

    @staticmethod
    def _add_row(table: Table, name: str, pairs: list[tuple[float, float]], base: list[float]) -> tuple[float, float]:
        """(ours / stock step, speedup)."""
        ours, stock = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        ratio, theirs = (
            statistics.median(pair[side] / step for pair, step in zip(pairs, base, strict=True)) for side in (0, 1)
        )
        faster = statistics.median(pair[1] / pair[0] for pair in pairs)
        table.add_row(name, f"{ours:.2f}", f"{stock:.2f}", f"{ratio:.2f}", f"{theirs:.2f}", f"{faster:.2f}")
        return ratio, faster


@dataclass
class Context:
    """What a pass costs behind texts of several lengths, beside a plain read of the cache.

    "reads": how many plain reads of the cache (at the speed of `machine_limits` in the same run) a pass takes longer
    than behind the shortest text. With --out, what the file has is not measured again; --plot draws all of it.
    """

    model: str
    _: KW_ONLY
    contexts: tuple[int, ...] = (64, 4096)
    widths: tuple[int, ...] = (1, 8)
    rounds: int = 3
    threads: int = 0
    no_stock: bool = False
    out: Path | None = None
    plot: Path | None = None

    def run(self) -> None:
        """The file: {"cache": bytes of a token, "bandwidth": bytes per second, SIDE: {context: {width: ms}}}."""
        found: dict[str, Any] = {side: {} for side in SIDES}
        if self.out and self.out.exists():
            found = json.loads(self.out.read_text())
        with sides(self.model, self.threads, (OURS,) if self.no_stock else (OURS, STOCK)) as workers:
            found["cache"] = workers[OURS].call("cell_bytes")
            found["bandwidth"] = max(found.get("bandwidth", 0), workers[OURS].call("bandwidth"))
            for context in self.contexts:
                self._measure(context, workers, found)
                found["bandwidth"] = max(found["bandwidth"], workers[OURS].call("bandwidth"))
                if self.out:
                    self.out.write_text(json.dumps(found, indent=1) + "\n")
        self._show(found)
        if self.plot:
            self._draw(found, self.plot)

    def _measure(self, context: int, workers: dict[str, Remote], found: dict[str, Any]) -> None:
        known = {side: found[side].setdefault(str(context), {}) for side in workers}
        wanted = {side: [width for width in self.widths if str(width) not in known[side]] for side in workers}
        for side, worker in workers.items():
            if wanted[side]:
                worker.call("go_behind", context, max(self.widths))
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(self.rounds):
            for width in self.widths:
                for side, worker in workers.items():
                    if width in wanted[side]:
                        times.setdefault((side, width), []).append(worker.call("behind", width))
        for (side, width), all_of in times.items():
            known[side][str(width)] = statistics.median(all_of)

    @staticmethod
    def _show(found: dict[str, Any]) -> None:
        table = Table("kernels", "context", "tokens", "ms", "of T(1)", "reads")
        for side in SIDES:
            shortest = min(found[side], key=int, default=None)
            for context, times in found[side].items():
                for width, ms in times.items():
                    start = found[side][shortest].get(width)
                    read = int(context) * found["cache"] / found["bandwidth"] * 1e3
                    reads = "" if context == shortest or start is None else f"{(ms - start) / read:.2f}"
                    relative = f"{ms / times['1']:.2f}" if "1" in times else ""
                    table.add_row(side, context, width, f"{ms:.2f}", relative, reads)
        common.show(f"one plain read: {found['bandwidth'] / 1e9:.1f} GB/s; {found['cache']} bytes a token", table)

    @staticmethod
    def _draw(found: dict[str, Any], path: Path) -> None:
        from matplotlib import rcParams
        from matplotlib.figure import Figure

        rcParams["svg.hashsalt"] = "context"
        figure = Figure(figsize=(8, 4), layout="constrained")
        for axes, side in zip(figure.subplots(1, 2, sharey=True), SIDES, strict=True):
            widths: list[int] = []
            for context, times in found[side].items():
                points = sorted((int(width), ms) for width, ms in times.items())
                widths = [width for width, _ in points]
                axes.plot(*zip(*points, strict=True), marker=".", label=f"behind {int(context):,}")
            axes.set(title=side, xlabel="tokens of a pass", xscale="log", yscale="log")
            axes.set_xticks(widths, map(str, widths), minor=False)
            axes.minorticks_off()
            axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
            axes.grid(axis="y", alpha=0.3)
            axes.legend(fontsize="small", loc="upper left", frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].set_ylabel("milliseconds")
        figure.savefig(path, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)


@dataclass
class Stock:
    """What passes of llama-cpp-python's own llama.cpp cost, without medusa: beside `verify` on another build of it.

    LLAMA_CPP_LIB_PATH=FOLDER names where that build's libllama lies, for example one without AVX-512. Milliseconds of
    a pass behind 64 other tokens, the quickest of several; the last token alone asks for logits.
    """

    model: str
    _: KW_ONLY
    threads: int = 2
    widths: tuple[int, ...] = (1, 4, 8, 16, 512)

    POSITION = 64
    FIRST_TOKEN = 100

    def run(self) -> None:
        import llama_cpp

        model = llama_cpp.Llama(
            self.model, n_ctx=1024, n_batch=512, n_threads=self.threads, n_threads_batch=self.threads,
            flash_attn=True, verbose=False,
        )  # fmt: skip
        print(llama_cpp.llama_print_system_info().decode())
        model.eval(range(self.FIRST_TOKEN, self.FIRST_TOKEN + self.POSITION))
        for width in self.widths:
            print(f"{width:4} tokens: {self._pass_ms(model, width):.1f} ms")

    def _pass_ms(self, model: Any, width: int) -> float:
        best = float("inf")
        for _ in range(1 if width > 64 else 8):
            model.n_tokens = self.POSITION  # eval() forgets what lies behind
            start = time.perf_counter()
            model.eval(range(self.FIRST_TOKEN, self.FIRST_TOKEN + width))
            best = min(best, (time.perf_counter() - start) * 1e3)
        return best


@dataclass
class Layer:
    """What reading the states after a layer costs a pass.

    Passes that give no hidden states, those after the final norm, and those after --layer (default: three quarters up),
    in turn; medians, as a multiple of the first.
    """

    model: str
    _: KW_ONLY
    layer: int | None = None
    widths: tuple[int, ...] = (1, 8, 16)
    rounds: int = 15
    passes: int = 5
    threads: int = 0

    def run(self) -> None:
        from medusa_cli import native

        model = common.open_model(self.model)
        layer = 3 * model.n_layer // 4 if self.layer is None else self.layer
        kinds = {"none": (False, None), "final norm": (True, None), f"after layer {layer}": (True, layer)}
        timers = {
            name: native.VerifyTimer(model, max(self.widths), hidden=hidden, tap_layer=tap, n_threads=self.threads)
            for name, (hidden, tap) in kinds.items()
        }
        table = Table("nodes", "none, ms", *list(kinds)[1:])
        for width in self.widths:
            times: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(self.rounds):
                for name, timer in timers.items():
                    times[name] += timer.time(width, passes=self.passes)[1:]
            plain, *others = (statistics.median(found) for found in times.values())
            table.add_row(str(width), f"{plain:.2f}", *(f"{other / plain:.3f}" for other in others))
        common.show(table)


class Scores:
    """A made-up model in a process of its own, that decodes random tokens."""

    TOKENS = 256

    def __init__(self, path: str) -> None:
        from medusa_cli import native

        self._model = native.Model(path)

    def decode_ms(self, widths: list[int]) -> dict[int, float]:
        """Of one decode of each width."""
        import numpy as np
        from _native_testing import score

        tokens = np.random.default_rng(1).integers(0, self._model.n_vocab, self.TOKENS).tolist()
        score(self._model, tokens, width=64)
        out = {}
        for width in widths:
            begin = time.perf_counter()
            score(self._model, tokens, width=width)
            out[width] = 1e3 * (time.perf_counter() - begin) / math.ceil(self.TOKENS / width)
        return out


@dataclass
class Experts:
    """What checking several tokens costs on a mixture of experts.

    The model is made: layers of Qwen3-30B-A3B's shapes, all experts with the same random weights. Random tokens are
    decoded so many at a time that each is sent to experts of its own; medians over the rounds. "experts": their share
    of our time, from the same model with half as many experts per token.
    """

    _: KW_ONLY
    layers: int = 4
    experts: int = 128
    used: int = 8
    type: str = "q4_K"
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    rounds: int = 3

    def run(self) -> None:
        import made_up_model

        runs: dict[str, list[dict[int, float]]] = {OURS: [], STOCK: [], "half": []}
        with tempfile.TemporaryDirectory() as folder:
            whole, half = Path(folder) / "model.gguf", Path(folder) / "half.gguf"
            for path, used in ((whole, self.used), (half, self.used // 2)):
                made_up_model.write_experts(path, self.layers, self.experts, used, self.type)
            for _ in range(self.rounds):
                for name, stock, path in ((OURS, False, whole), (STOCK, True, whole), ("half", False, half)):
                    with Remote(Scores, str(path), stock_kernels=stock) as worker:
                        runs[name].append(worker.call("decode_ms", self.widths))
        table = Table("tokens", "ours ms", "stock ms", "ours / stock step", "stock / stock step", "speedup", "experts")
        ms = {name: {w: statistics.median(run[w] for run in found) for w in found[0]} for name, found in runs.items()}
        step = ms[STOCK][min(self.widths)]
        for width in sorted(self.widths):
            ours, stock_ms, fewer = (ms[name][width] for name in (OURS, STOCK, "half"))
            ratios = (ours / step, stock_ms / step, stock_ms / ours)
            figures = (f"{figure:.2f}" for figure in (ours, stock_ms, *ratios))
            table.add_row(str(width), *figures, f"{2 * (ours - fewer) / ours:.0%}")
        common.show(table)


@dataclass
class Hybrid:
    """What a chain of drafts costs a hybrid model, beside a dense one of as many bytes.

    Writes two made-up models into FOLDER (kept for the next run; 2 x 2.7 GB): one of Qwen3.5's architecture (qwen35) in
    the shape of its 4B model, one of the llama architecture. Both decode plainly and with a chain of 3 drafts of random
    heads, in turn. Random drafts are refused at once, so that every step takes a draft back.
    """

    folder: Path
    _: KW_ONLY
    rounds: int = 3
    tokens: int = 48
    threads: int = 0

    def run(self) -> None:
        import made_up_model

        ratios = {}
        for name, size in (("hybrid", made_up_model.HYBRID), ("dense", made_up_model.DENSE)):
            ratios[name] = self._measure(name, size)
        print(f"T(4) / T(1), hybrid over dense: {ratios['hybrid'] / ratios['dense']:.2f}")

    def _measure(self, name: str, size: Size) -> float:
        """A pass over root and drafts, in plain ones."""
        import made_up_model

        from medusa_cli import native
        from medusa_cli.support import units

        path, heads = self.folder / f"{name}.gguf", self.folder / f"{name}-heads.gguf"
        if not path.exists():
            (made_up_model.write_hybrid if name == "hybrid" else made_up_model.write_base)(path, size)
        if not heads.exists():
            made_up_model.write_heads(heads, path, "medusa", size)
        model, threads = native.Model(str(path)), self.threads or native.physical_cores()
        plain = native.Session(model, n_ctx=1024, n_threads=threads)
        chain = native.Tree([[0], [0, 0], [0, 0, 0]])
        drafting = native.Session(model, native.Heads(model, str(heads)), tree=chain, n_ctx=1024, n_threads=threads)
        # Every draft is taken back, so that a state restored wrongly shows.
        if self._answer(plain, 16).tokens != self._answer(drafting, 16).tokens:
            raise MedusaError(f"{name}: with drafts it says something else")
        one, four, commits, accepted = [], [], [], 0.0
        for _ in range(self.rounds):
            stats = self._answer(plain, self.tokens).stats
            one.append(stats["timings_ms"]["verify"] / stats["steps"])
            stats = self._answer(drafting, self.tokens).stats
            four.append(stats["timings_ms"]["verify"] / stats["steps"])
            commits.append(stats["timings_ms"]["commit"] / stats["steps"])
            accepted = stats["tokens_per_step"]
        ratio = statistics.median(four) / statistics.median(one)
        memory = f", {native.draft_memory(model)}" if model.is_recurrent else ""
        print(
            f"{name} ({units.size(model.size_bytes)}{memory}): one token {statistics.median(one):.1f} ms, "
            f"root and 3 drafts {statistics.median(four):.1f} ms ({ratio:.2f}), "
            f"taking back {statistics.median(commits):.3f} ms, {accepted:.2f} tokens per step"
        )
        return ratio

    @staticmethod
    def _answer(session: native.Session, tokens: int) -> native.Generation:
        return session.generate(list(range(300, 364)), max_tokens=tokens, ignore_eos=True)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Verify, Context, Stock, Layer, Experts, Hybrid)


if __name__ == "__main__":
    common.main(parser())
