"""Cost of committing the accepted path at a long context, with a wide tree.

    python benchmarks/commit.py [--model demo] [--heads FILE] [--context 32768] [--leaves 42] [--fill F ...] [-n 64]

Fills the given shares of the context with random tokens, then generates with a tree of --leaves leaves and prints the
engine's own times per step.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.table import Table

from medusa_cli import native


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--leaves", type=int, default=42)
    parser.add_argument("--fill", type=float, nargs="+", default=[0.01, 0.25, 0.98])
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.heads, 1)
    # A chain through the first heads beside single guesses: as many leaves as asked for, as deep as the heads go.
    chain = [[0] * length for length in range(1, bench.heads.head_count + 1)]
    tree = native.Tree(chain + [[rank] for rank in range(1, arguments.leaves)])
    session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=arguments.context)
    rng = random.Random(0)
    tokens = [rng.randrange(1000, bench.model.n_vocab - 1000) for _ in range(arguments.context)]

    table = Table("cells used", "tokens/step", "draft", "verify", "accept", "commit", "other", title="ms per step")
    for fill in sorted(arguments.fill):
        count = min(int(arguments.context * fill), arguments.context - arguments.max_tokens - tree.size)
        result = session.generate(tokens[:count], max_tokens=arguments.max_tokens, ignore_eos=True)
        steps = result.stats["steps"]
        times = [f"{value / steps:.3f}" for value in result.stats["timings_ms"].values()]
        table.add_row(str(count), f"{result.stats['tokens_per_step']:.2f}", *times)
    Console().print(table)
    print(f"tree of {tree.size} nodes, {tree.leaf_count} leaves; context {session.n_ctx}")


if __name__ == "__main__":
    main()
