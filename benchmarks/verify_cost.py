"""What checking several tokens at once costs, relative to a plain step of unmodified llama.cpp kernels.

    python benchmarks/verify_cost.py MODEL [--widths 1 2 4 8 16] [--prefill 512] [--position 64] [--rounds 9]
                                     [--threads 0] [--require 1:0.70 --require 8:1.30] [--require-prefill 1.5]

T(n): one forward pass over n tokens, behind `position` others, with our kernels; S(n): with the stock ones
(MEDUSA_ISA=off). Two processes are measured in turn, width by width, so that both see the same machine; the table
shows medians. Exits with 1 when a required T(n)/S(1), or prefill speed relative to stock, is missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
from typing import Any

from rich.console import Console
from rich.table import Table


class Worker:
    """A process with the model loaded, asked for one measurement at a time."""

    def __init__(self, model: str, isa: str | None, threads: int, position: int) -> None:
        environment = dict(os.environ)
        if isa is not None:
            environment["MEDUSA_ISA"] = isa
        self.process = subprocess.Popen(
            [sys.executable, __file__, model, "--worker", "--threads", str(threads), "--position", str(position)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, what: str, width: int) -> float:
        """Milliseconds, the median of a few passes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([what, width]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker process ended early")
        return float(json.loads(line))


def work(model_path: str, threads: int, position: int) -> None:
    from rich.console import Console as Stderr

    from medusa_cli import native
    from medusa_cli.models import references

    model = native.Model(str(references.resolve(model_path, Stderr(stderr=True)).path))
    measure: dict[str, Any] = {
        "verify": functools.partial(native.time_verify, position=position),
        "prefill": native.time_prefill,
    }
    for line in sys.stdin:
        what, width = json.loads(line)
        times = measure[what](model, width, repeats=4, n_threads=threads)
        # The first pass builds the graph and warms the caches.
        print(json.dumps(statistics.median(times[1:])), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--position", type=int, default=64, help="tokens in the cache before each pass")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--require", action="append", default=[], metavar="N:RATIO")
    parser.add_argument("--require-prefill", type=float)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.model, arguments.threads, arguments.position)

    ours, stock = (Worker(arguments.model, isa, arguments.threads, arguments.position) for isa in (None, "off"))
    jobs = [("verify", width) for width in sorted({1, *arguments.widths})] + [("prefill", arguments.prefill)]
    times: dict[tuple[str, int], list[tuple[float, float]]] = {job: [] for job in jobs}
    for _ in range(arguments.rounds):
        for job in jobs:
            times[job].append((ours.ask(*job), stock.ask(*job)))
    # Ratios within a round, then their median: a slow spell of the machine hits both sides.
    base = [pair[1] for pair in times["verify", 1]]
    table = Table("tokens", "ours ms", "stock ms", "ours / stock step", "stock / stock step", "speedup")
    missed = []
    wanted = dict(text.split(":") for text in arguments.require)
    for (what, width), pairs in times.items():
        ratio = statistics.median(pair[0] / step for pair, step in zip(pairs, base, strict=True))
        theirs = statistics.median(pair[1] / step for pair, step in zip(pairs, base, strict=True))
        faster = statistics.median(pair[1] / pair[0] for pair in pairs)
        name = str(width) if what == "verify" else f"prompt of {width}"
        mine, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
        table.add_row(name, f"{mine:.2f}", f"{other:.2f}", f"{ratio:.2f}", f"{theirs:.2f}", f"{faster:.2f}")
        limit = float(wanted.get(str(width), "inf"))
        if what == "verify" and ratio > limit:
            missed.append(f"T({width})/S(1) is {ratio:.3f}, wanted {limit}")
        if what == "prefill" and arguments.require_prefill and faster < arguments.require_prefill:
            missed.append(f"the prompt runs at {faster:.2f}x stock, wanted {arguments.require_prefill}")
    Console().print(table)
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
