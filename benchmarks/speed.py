"""Plain decoding beside something else: other programs, llama-cpp-python's own Llama, a bare loop over llama.cpp.

    python benchmarks/speed.py others [MODEL] [--busy 0 1 2] [--drafts]
    python benchmarks/speed.py accelerated [MODEL ...]
    python benchmarks/speed.py baseline MODEL

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import common
from rich.table import Table

from medusa_cli import accelerate, native
from medusa_cli.bench.process import Remote
from medusa_cli.prompts.seeds.data import PASSAGES
from medusa_cli.support.errors import MedusaError

BUSY = "while True: pass"
ADAPTIVE, DRAFTS, STOCK = "adaptive", "medusa+lookup", "stock"
MARKED = 0.1
"""Cores that programs which are not ours used, from which on a row is marked."""


class Decoder:
    """One session in a process of its own. way: ADAPTIVE, DRAFTS, STOCK or a number of threads."""

    def __init__(self, model: str, way: str) -> None:
        from medusa_cli.decoding.options import DraftOptions, EngineOptions
        from medusa_cli.decoding.runtime import open_engine

        threads = native.physical_cores() if way == STOCK else 0 if way in (ADAPTIVE, DRAFTS) else int(way)
        draft = DraftOptions(lookup=True) if way == DRAFTS else DraftOptions(no_spec=True)
        self._engine = open_engine(model, EngineOptions(threads=threads, ctx_size=4096), draft, common.MESSAGES)

    def decode(self, seconds: float) -> dict[str, Any]:
        """For so long: its figures."""
        from medusa_cli.decoding.settings import Settings

        engine = self._engine
        tokens = engine.raw_tokens("The quick brown fox jumps over the lazy dog. Then it")
        begun, ends, counts, cancellation = time.perf_counter(), [], [], native.Cancellation()

        def on_step(pieces: list[native.Piece]) -> None:
            ends.append(time.perf_counter())
            counts.append(len(pieces))
            if ends[-1] - begun > seconds:
                cancellation.cancel()

        settings = Settings(temperature=0.0, max_tokens=3900, ignore_eos=True)
        done = engine.generate(tokens, settings, 0, on_step, cancellation)
        steps = [(after - before, count) for before, after, count in zip(ends, ends[1:], counts[1:], strict=False)]
        late = [step for step, end in zip(steps, ends[1:], strict=True) if end - ends[0] > 1] or steps
        return {
            "tokens_per_second": sum(count for _, count in late) / max(sum(s for s, _ in late), 1e-9) if late else 0.0,
            "worst_ms": 1000 * max((s for s, _ in late), default=seconds),
            "first_ms": 1000 * (ends[0] - begun),
            "threads": done.stats["threads"]["steps"],
        }


@contextmanager
def busy_programs(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield running
    finally:
        for program in running:
            program.kill()
            program.wait()


def all_seconds() -> float:
    """That the processor has worked, for whatever program; Linux alone."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:4]]
    except OSError:
        return 0.0
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def our_seconds() -> float:
    """Of this process and its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@dataclass
class Others:
    """How fast is decoding while other programs run? Threads chosen by ourselves beside fixed numbers and llama.cpp's.

    Plain greedy decoding of a fixed text's continuation, each way in a process of its own, beside 0, 1 and 2 programs
    that do nothing but count. The ways take turns, round after round, and the medians are told: tokens per second after
    the first second, the longest step after it, and both as shares of the best fixed number's. --threads: these numbers
    (default: 1 and one for each core). stock: llama.cpp's own kernels with as many threads as there are cores.
    --drafts: also `medusa + lookup`, as `medusa chat` decodes. --json: write every run to this file, too.

    What else runs is measured, too: a row whose processes had to share the machine with programs that are not ours by
    more than a tenth of a core is marked with !.
    """

    model: str = "demo"
    _: KW_ONLY
    busy: tuple[int, ...] = (0, 1, 2)
    threads: tuple[int, ...] = ()
    seconds: float = 6.0
    rounds: int = 1
    drafts: bool = False
    no_stock: bool = False
    json: Path | None = None

    def run(self) -> None:
        fixed = self.threads or tuple(sorted({1, native.physical_cores()}, reverse=True))
        ways = [ADAPTIVE, *([DRAFTS] if self.drafts else []), *map(str, fixed)]
        ways += [] if self.no_stock else [STOCK]
        table = Table(
            "beside", "way", "threads", "tokens/s", "of best fixed", "worst step, ms", "first token, ms", box=None
        )
        everything: dict[int, dict[str, list[dict[str, Any]]]] = {}
        for busy in self.busy:
            runs = everything[busy] = {way: [] for way in ways}
            for _ in range(self.rounds):
                for way in ways:
                    runs[way].append(self._measure(way, busy))
            self._add_rows(table, busy, runs)
        common.show(table)
        if self.json:
            self.json.write_text(json.dumps(everything), "utf-8")

    def _measure(self, way: str, busy: int) -> dict[str, Any]:
        begun, before = time.perf_counter(), all_seconds() - our_seconds()
        with busy_programs(busy), Remote(Decoder, self.model, way, stock_kernels=way == STOCK) as worker:
            found: dict[str, Any] = worker.call("decode", self.seconds)
        found["foreign"] = max(all_seconds() - our_seconds() - before, 0.0) / (time.perf_counter() - begun)
        return found

    @staticmethod
    def _add_rows(table: Table, busy: int, runs: dict[str, list[dict[str, Any]]]) -> None:
        def median(way: str, key: str) -> float:
            return statistics.median(run[key] for run in runs[way])

        best = max(median(way, "tokens_per_second") for way in runs if way.isdigit())
        for way, found in runs.items():
            speed = median(way, "tokens_per_second")
            foreign = max(run["foreign"] for run in found)
            ran = {count for run in found for count, steps in run["threads"].items() if steps}
            name = f"{way} threads" if way.isdigit() else way
            table.add_row(
                f"{busy} busy",
                name + (" !" if foreign > MARKED else ""),
                ", ".join(sorted(ran)),
                f"{speed:.1f}",
                f"{speed / best:.2f}",
                f"{median(way, 'worst_ms'):.0f}",
                f"{median(way, 'first_ms'):.0f}",
            )
        table.add_section()


WAYS = {"Llama": (False, False), "with accelerate()": (True, False), "and flash_attn=True": (True, True)}
"""Of each way: whether it is accelerated, and flash_attn."""


@dataclass
class Accelerated:
    """llama-cpp-python's own Llama with and without medusa_cli.accelerate(): tokens/s of prompts and of answers.

    The ways take turns, round by round, in one process: stock; accelerated; accelerated with flash_attn=True, where our
    attention runs, too. Medians of tokens/s, and the median of the rounds' own ratios to stock. Answers are greedy and
    of a fixed length. --prompt, --tokens: tokens of the prompt and of the answer.
    """

    models: tuple[str, ...] = ("demo",)
    _: KW_ONLY
    rounds: int = 5
    prompt: int = 256
    tokens: int = 48

    def run(self) -> None:
        print(f"Kernels: {native.kernel_info()['selected']}. {native.physical_cores()} threads.\n")
        print("| model | | prompt, tokens/s | | answer, tokens/s | |\n|---|---|---|---|---|---|")
        for name in self.models:
            self._print_rows(name, self._measure(str(common.find_model(name).path)))

    def _measure(self, path: str) -> dict[str, list[tuple[float, float]]]:
        """Of each way, tokens/s of the prompt and of the answer in each round. A first round warms up, and is none."""
        from llama_cpp import Llama

        loaded = {}
        for way, (on, flash) in WAYS.items():
            accelerate(on)
            threads = native.physical_cores()
            loaded[way] = Llama(path, n_ctx=1024, n_threads=threads, flash_attn=flash, verbose=False)
        text = loaded["Llama"].tokenize("\n\n".join(PASSAGES).encode())[: self.prompt]
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for number in range(self.rounds + 1):
            for way, llama in loaded.items():
                accelerate(WAYS[way][0])  # attention goes by the newest call
                speeds = self._answer(llama, text)
                if number:
                    found[way].append(speeds)
        return found

    def _answer(self, llama: Any, prompt: Sequence[int]) -> tuple[float, float]:
        llama.reset()
        begun = time.perf_counter()
        generator = llama.generate(prompt, temp=0.0)
        next(generator)
        first = time.perf_counter()
        for _ in range(self.tokens):
            next(generator)
        return len(prompt) / (first - begun), self.tokens / (time.perf_counter() - first)

    @staticmethod
    def _print_rows(name: str, found: dict[str, list[tuple[float, float]]]) -> None:
        stock = found["Llama"]
        for way, speeds in found.items():
            cells = [name, way]
            for part in (0, 1):
                ratio = statistics.median(mine[part] / plain[part] for mine, plain in zip(speeds, stock, strict=True))
                cells += [f"{statistics.median(speed[part] for speed in speeds):.0f}", f"{ratio:.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


class BareLoop:
    """Our session and a bare loop over llama.cpp's interface, in a process with llama.cpp's kernels."""

    PROMPT = "Write a story about the sea."

    def __init__(self, path: str, tokens: int, threads: int) -> None:
        self._path, self._tokens, self._threads = path, tokens, threads

    def compare(self, number: int) -> tuple[float, bool]:
        """(speed of the session over that of the loop, whether the texts are equal), both models loaded anew."""
        import llama_cpp

        theirs = self._load_theirs() if number % 2 else None
        model = native.Model(self._path, n_gpu_layers=0)
        theirs = theirs or self._load_theirs()
        prompt = model.tokenize(self.PROMPT)
        n_ctx = len(prompt) + self._tokens + 1
        session = native.Session(model, n_ctx=n_ctx, n_threads=self._threads)
        speed, said = self._loop(theirs, prompt, n_ctx)
        done = session.generate(prompt, max_tokens=self._tokens, ignore_eos=True)
        llama_cpp.llama_model_free(theirs)
        return done.stats["tokens_per_second"] / speed, list(done.tokens) == said

    def _load_theirs(self) -> Any:
        import llama_cpp

        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        loaded = llama_cpp.llama_model_load_from_file(self._path.encode(), params)
        if not loaded:
            raise MedusaError(f"llama.cpp does not load {self._path}: give a plain GGUF, without heads")
        return loaded

    def _loop(self, model: Any, prompt: Sequence[int], n_ctx: int) -> tuple[float, list[int]]:
        """(tokens per second without the prompt, the tokens)."""
        import llama_cpp

        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, self._threads, self._threads
        context = llama_cpp.llama_init_from_model(model, params)
        sampler = llama_cpp.llama_sampler_init_greedy()

        def decode(batch: Sequence[int]) -> None:
            array = (llama_cpp.llama_token * len(batch))(*batch)
            if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(batch))):
                raise MedusaError("llama_decode failed")

        decode(prompt)
        said = [llama_cpp.llama_sampler_sample(sampler, context, -1)]
        begun = time.perf_counter()
        while len(said) < self._tokens:
            decode(said[-1:])
            said.append(llama_cpp.llama_sampler_sample(sampler, context, -1))
        seconds = time.perf_counter() - begun
        llama_cpp.llama_sampler_free(sampler)
        llama_cpp.llama_free(context)
        return (self._tokens - 1) / seconds, said


@dataclass
class Baseline:
    """Is the method `stock` of `medusa bench` really llama.cpp? Its session against a bare loop over llama.cpp.

    Both in one process with MEDUSA_ISA=off, in turn, after the same prompt, greedy. The bare loop uses llama.cpp's
    default context (flash attention as it chooses, its own greedy sampler) and is Python, which costs it some
    microseconds a token. Where a copy of the weights comes to lie in memory can change its speed by a tenth, so both
    copies are loaded anew for each round, in alternating order, and the spread is printed: the median of the ratios of
    their speeds and how many texts are equal. Exits with 1 below --require.
    """

    model: str
    _: KW_ONLY
    max_tokens: int = 128
    rounds: int = 9
    threads: int = 2
    require: float | None = None

    def run(self) -> None:
        path = str(common.find_model(self.model).path)
        with Remote(BareLoop, path, self.max_tokens, self.threads, stock_kernels=True) as worker:
            pairs = [worker.call("compare", number) for number in range(self.rounds)]
        ratios, same = [ratio for ratio, _ in pairs], sum(equal for _, equal in pairs)
        ratio = statistics.median(ratios)
        print(
            f"stock session / bare llama.cpp loop: {ratio:.3f} (median of {len(ratios)}, "
            f"{min(ratios):.3f} to {max(ratios):.3f}), {same} texts equal"
        )
        if self.require and ratio < self.require:
            raise MedusaError(f"{ratio:.3f} is below {self.require}")


def parser() -> ArgumentParser:
    return common.parser(__doc__, Others, Accelerated, Baseline)


if __name__ == "__main__":
    common.main(parser())
