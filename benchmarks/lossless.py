"""Greedy speculative decoding against plain decoding, token for token.

    python benchmarks/lossless.py [--data benchmarks/prompts.jsonl] [--model demo] [--heads FILE] [--nodes N] [-n 128]

What counts as explained: medusa_cli/decoding/lossless.py. Exits with 1 when a difference is not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.table import Table

from medusa_cli.decoding import lossless
from medusa_cli.prompts import bench_set

PROMPTS = Path(__file__).with_name("prompts.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PROMPTS)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.heads, arguments.nodes)

    table = Table("prompt", "tokens", "first difference", "logit gap", "explained")
    results = []
    for asked in bench_set.read(arguments.data):
        prompt = bench.chat_tokens(asked.text)
        bench.reset()
        plain = bench.plain.generate(prompt, max_tokens=arguments.max_tokens)
        drafted = bench.drafting.generate(prompt, max_tokens=arguments.max_tokens)
        result = lossless.compare(bench.model, prompt, plain, drafted)
        results.append(result)
        cells = ("-", "-", "-")
        if result.first_difference is not None:
            cells = (str(result.first_difference), f"{result.gap:.3f}", "yes" if result.explained else "NO")
        table.add_row(" ".join(asked.text.split())[:48], str(result.tokens), *cells)
    Console().print(table)
    differing = [result for result in results if result.first_difference is not None]
    unexplained = sum(not result.explained for result in differing)
    tokens = sum(result.tokens for result in results)
    print(
        f"{len(results) - len(differing)} of {len(results)} texts identical ({tokens} tokens, {bench.tree.size} nodes)"
    )
    print(f"{len(differing) - unexplained} differ by numerics alone, {unexplained} unexplained")
    if unexplained:
        sys.exit(1)


if __name__ == "__main__":
    main()
