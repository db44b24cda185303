"""How long a message takes between a server and its engine's process.

python benchmarks/crossing.py [MODEL]
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import KW_ONLY, dataclass
from statistics import median, quantiles

import common

from medusa_cli.server.engine.messages import Caches, Load
from medusa_cli.server.engine.remote import Engine


@dataclass
class Crossing:
    """Questions that take no work, one after another: there and back, through all threads of both processes."""

    model: str = "demo"
    _: KW_ONLY
    rounds: int = 2000

    def run(self) -> None:
        times = []
        with Engine(Load(self.model, {"ctx_size": 512}, {}, "", Caches(1 << 30))) as engine:
            for _ in range(self.rounds):
                begun = time.perf_counter()
                engine.check(None, None, [], None)
                times.append((time.perf_counter() - begun) * 1e3)
        print(f"there and back: {median(times):.3f} ms (median), {quantiles(times, n=10)[-1]:.3f} ms (9 of 10 below)")


def parser() -> ArgumentParser:
    return common.parser(__doc__, Crossing)


if __name__ == "__main__":
    common.main(parser())
