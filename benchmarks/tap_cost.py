"""What reading the states after a layer costs a forward pass.

    python benchmarks/tap_cost.py MODEL [--layer L] [--widths 1 8 16] [--rounds 15] [--threads 0]

Passes that give no hidden states, those after the final norm, and those after layer L (default: three quarters up), in
turn; the table shows medians, as a multiple of the first.
"""

from __future__ import annotations

import argparse
import statistics

from rich.console import Console
from rich.table import Table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--layer", type=int)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()

    from medusa_cli import native
    from medusa_cli.models import references

    model = native.Model(str(references.resolve(args.model, Console(stderr=True)).path))
    layer = 3 * model.n_layer // 4 if args.layer is None else args.layer
    kinds = {"none": (False, None), "final norm": (True, None), f"after layer {layer}": (True, layer)}
    timers = {
        name: native.VerifyTimer(model, max(args.widths), hidden=hidden, tap_layer=tap, n_threads=args.threads)
        for name, (hidden, tap) in kinds.items()
    }
    table = Table("nodes", "none, ms", *list(kinds)[1:])
    for width in args.widths:
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(args.rounds):
            for name, timer in timers.items():
                times[name] += timer.time(width, passes=args.passes)[1:]
        plain, *others = (statistics.median(found) for found in times.values())
        table.add_row(str(width), f"{plain:.2f}", *(f"{other / plain:.3f}" for other in others))
    Console().print(table)


if __name__ == "__main__":
    main()
