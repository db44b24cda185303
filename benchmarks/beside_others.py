"""How fast is decoding while other programs run? Threads chosen by ourselves beside fixed numbers and llama.cpp's own.

    python benchmarks/beside_others.py [MODEL] [--busy 0 1 2] [--threads N ...] [--seconds 6] [--rounds 1] [--drafts]

Plain greedy decoding of a fixed text's continuation, each way in a process of its own, beside 0, 1 and 2 programs that
do nothing but count. The ways take turns, round after round, and the medians are told: tokens per second after the
first second, the longest step after it, and both as shares of the best fixed number's. stock: llama.cpp's own kernels
with as many threads as there are cores. --drafts: also `medusa + lookup`, as `medusa chat` decodes.

What else runs is measured, too: a row whose processes had to share the machine with programs that are not ours by more
than a tenth of a core is marked with !.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common import STOCK, in_worker
from rich.console import Console
from rich.table import Table

BUSY = "while True: pass"
ADAPTIVE, DRAFTS = "adaptive", "medusa+lookup"
MARKED = 0.1
"""Cores that programs which are not ours used, from which on a row is marked."""


def worker(model: str, way: str, seconds: float) -> dict[str, Any]:
    """One session that decodes for so long: its figures. way: ADAPTIVE, DRAFTS, STOCK or a number of threads."""
    from medusa_cli import native
    from medusa_cli.decoding.options import DraftOptions, EngineOptions
    from medusa_cli.decoding.runtime import open_engine
    from medusa_cli.decoding.settings import Settings

    threads = native.physical_cores() if way == STOCK else 0 if way in (ADAPTIVE, DRAFTS) else int(way)
    draft = DraftOptions(lookup=True) if way == DRAFTS else DraftOptions(no_spec=True)
    engine = open_engine(model, EngineOptions(threads=threads, ctx_size=4096), draft, Console(file=io.StringIO()))
    tokens = engine.raw_tokens("The quick brown fox jumps over the lazy dog. Then it")
    begun, ends, counts = time.perf_counter(), [], []

    def on_step(pieces: list[native.Piece]) -> None:
        ends.append(time.perf_counter())
        counts.append(len(pieces))
        if ends[-1] - begun > seconds:
            engine.session.cancel()

    settings = Settings(temperature=0.0, max_tokens=3900, ignore_eos=True)
    done = engine.generate(tokens, settings, 0, on_step)
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
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def measure(model: str, way: str, busy: int, seconds: float) -> dict[str, Any]:
    begun, before = time.perf_counter(), all_seconds() - our_seconds()
    with busy_programs(busy):
        kernels = STOCK if way == STOCK else "ours"
        found = in_worker(kernels, __file__, model, "--worker", way, "--seconds", str(seconds))
    found["foreign"] = max(all_seconds() - our_seconds() - before, 0.0) / (time.perf_counter() - begun)
    return found


def print_rows(busy: int, runs: dict[str, list[dict[str, Any]]], table: Table) -> None:
    def median(way: str, key: str) -> float:
        return statistics.median(run[key] for run in runs[way])

    fixed = max((way for way in runs if way.isdigit()), key=lambda way: median(way, "tokens_per_second"))
    for way in runs:
        speed = median(way, "tokens_per_second")
        foreign = max(run["foreign"] for run in runs[way])
        share = speed / median(fixed, "tokens_per_second")
        ran = {count for run in runs[way] for count, steps in run["threads"].items() if steps}
        name = f"{way} threads" if way.isdigit() else way
        table.add_row(
            f"{busy} busy",
            name + (" !" if foreign > MARKED else ""),
            ", ".join(sorted(ran)),
            f"{speed:.1f}",
            f"{share:.2f}",
            f"{median(way, 'worst_ms'):.0f}",
            f"{median(way, 'first_ms'):.0f}",
        )
    table.add_section()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, nargs="+", help="fixed numbers (default: 1 and one for each core)")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write every run to FILE, too")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(worker(arguments.model, arguments.worker, arguments.seconds)))
        return
    from medusa_cli import native

    fixed = arguments.threads or sorted({1, native.physical_cores()}, reverse=True)
    ways = [ADAPTIVE, *([DRAFTS] if arguments.drafts else []), *map(str, fixed)]
    ways += [] if arguments.no_stock else [STOCK]
    table = Table(
        "beside", "way", "threads", "tokens/s", "of best fixed", "worst step, ms", "first token, ms", box=None
    )
    everything: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for busy in arguments.busy:
        runs = everything[busy] = {way: [] for way in ways}
        for _ in range(arguments.rounds):
            for way in ways:
                runs[way].append(measure(arguments.model, way, busy, arguments.seconds))
        print_rows(busy, runs, table)
    Console(width=110).print(table)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(everything, file)


if __name__ == "__main__":
    main()
