"""How often the width of a forward pass flips the token that a model finds most likely.

    python benchmarks/width_flips.py MODEL [--widths 4 8 16 64] [--tokens 1024]

A fixed text is decoded from its beginning to its end, one token at a time and then in pieces of each width, with our
kernels and with the stock ones: the same tokens, the same cache, cells in the order of the text. Counted are the
positions whose argmax is not that of width 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from common import OURS, STOCK, fixed_text, in_worker
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.models import references


def compare(path: str, widths: list[int], tokens: int) -> dict[int, list[float]]:
    """Width -> [positions that differ from width 1, largest change of a token's cost]."""
    model = native.Model(path)
    text = fixed_text(model, tokens)
    best, costs = native.score(model, text, width=1)
    found: dict[int, list[float]] = {}
    for width in widths:
        other_best, other_costs = native.score(model, text, width=width)
        flips = sum(a != b for a, b in zip(best, other_best, strict=True))
        found[width] = [flips, max(abs(a - b) for a, b in zip(costs, other_costs, strict=True))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 8, 16, 64])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(compare(arguments.model, arguments.widths, arguments.tokens)))
        return

    path = str(references.resolve(arguments.model, Console(stderr=True)).path)
    sizes = ["--tokens", str(arguments.tokens), "--widths", *map(str, arguments.widths)]
    runs: dict[str, Any] = {kind: in_worker(kind, __file__, path, "--worker", *sizes) for kind in (OURS, STOCK)}
    table = Table(
        "width", *(f"{kind}: {what}" for kind in runs for what in ("flips", "share", "largest change of -ln p"))
    )
    for width in map(str, arguments.widths):
        cells = []
        for run in runs.values():
            flips, change = run[width]
            cells += [str(flips), f"{100 * flips / arguments.tokens:.2f}%", f"{change:.4f}"]
        table.add_row(width, *cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
