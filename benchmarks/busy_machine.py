"""How long plain steps and answers take while other programs keep every processor busy.

    python benchmarks/busy_machine.py [--model demo] [--steps 60] [--rounds 3] [--busy N]

Waiting threads spin for a while before they sleep. "ours": for as long as medusa lets them; "OpenMP's": as long as GNU
OpenMP does by itself. Each is measured in processes of its own, in turn, on the machine as it is and beside --busy
programs that do nothing but count (default: one for each processor). Milliseconds of a forward pass over one token,
median and mean.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

GNU_DEFAULT = "300000"  # times that GNU OpenMP looks before it sleeps, as long as no more threads run than processors
WARM_UP = 3


def work(reference: str, steps: int) -> None:
    """Prints the milliseconds of each step."""
    from medusa_cli import models, native

    model = native.Model(str(models.resolve(reference, Console(stderr=True)).path))
    print(json.dumps(native.time_verify(model, 1, repeats=steps + WARM_UP)[WARM_UP:]))


def measure(reference: str, steps: int, spins: str | None) -> list[float]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    if spins:
        environment["GOMP_SPINCOUNT"] = spins
    command = [sys.executable, __file__, "--worker", "--model", reference, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return [float(ms) for ms in json.loads(done.stdout)]


@contextlib.contextmanager
def others(count: int) -> Iterator[None]:
    """So many programs that count."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.model, arguments.steps)

    table = Table("other programs", "ours, median", "mean", "OpenMP's, median", "mean", "ratio of the means")
    for busy in (0, arguments.busy):
        found: dict[str | None, list[float]] = {None: [], GNU_DEFAULT: []}
        with others(busy):
            for _ in range(arguments.rounds):
                for spins, times in found.items():
                    times += measure(arguments.model, arguments.steps, spins)
        ours, theirs = found.values()
        cells = [f"{take(times):.2f}" for times in (ours, theirs) for take in (statistics.median, statistics.fmean)]
        table.add_row(str(busy), *cells, f"{statistics.fmean(theirs) / statistics.fmean(ours):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
