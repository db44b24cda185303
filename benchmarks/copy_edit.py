"""Does drafting pay on text that copies much of its prompt? The built-in prompts of these kinds, against stock.

    python benchmarks/copy_edit.py [--model demo] [--methods lookup,medusa+lookup] [--kinds copy-edit] [-n 128]
                                   [--repeat 1] [--floor 2.5]

Runs `medusa bench` on those prompts and exits with 1 when a method's mean speedup over stock is below --floor.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from medusa_cli.bench import document, methods, report
from medusa_cli.bench.measure import Measurements, Plan, measure
from medusa_cli.prompts import bench_set
from medusa_cli.support import tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--methods", default="lookup,medusa+lookup")
    parser.add_argument("--kinds", default="copy-edit")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--floor", type=float, default=2.5)
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    chosen = [prompt for prompt in bench_set.built_in() if prompt.category in kinds]
    if not chosen:
        sys.exit(f"no built-in prompts of the kind {arguments.kinds}")
    wanted = methods.parse(arguments.methods)
    plan = Plan(
        arguments.model,
        [methods.METHODS[methods.STOCK], *wanted],
        chosen,
        max_tokens=arguments.max_tokens,
        repeat=arguments.repeat,
    )
    found = Measurements()
    measure(plan, found, Console(stderr=True))
    built = document.build(plan, found, "built in")
    report.show(built, Console())
    below = []
    for method in wanted:
        speedup = built["methods"][method.name]["total"]["speedup_vs_stock"]
        if speedup is None or speedup < arguments.floor:
            below.append(f"{method.name}: {tables.number(speedup)} times stock, not {arguments.floor:g}")
    if below:
        sys.exit("; ".join(below))


if __name__ == "__main__":
    main()
