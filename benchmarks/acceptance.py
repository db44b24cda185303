"""Tokens per step and engine overhead on a set of prompts.

    python benchmarks/acceptance.py --data question.jsonl [--model demo] [--heads FILE] [--nodes 16] [-n 128]

Greedy, first turns, the heads' own static tree cut to --nodes. The data is MT-Bench's question file, or any JSON lines
with {"turns": [...]} or {"prompt": ...}. Prints tokens per step by category, the share of steps that accept each depth,
the overhead (time of everything but verify per step, relative to a plain decoding step of the same run), and the speed
relative to plain decoding with the same kernels.
--require X exits with 1 when the mean tokens per step stay below X.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.table import Table

from medusa_cli.prompts import bench_set


def step_ms(stats: dict[str, float], phases: dict[str, float], *names: str) -> float:
    return sum(phases[name] for name in names) / max(1.0, float(stats["steps"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--require", type=float)
    arguments = parser.parse_args()
    console = Console()

    bench = Bench(arguments.model, arguments.heads, arguments.nodes)
    by_category: dict[str, list[float]] = defaultdict(list)
    acceptance, overheads, speedups, same = [], [], [], 0
    prompts = bench_set.read(arguments.data)[: arguments.limit]
    for prompt in prompts:
        tokens = bench.chat_tokens(prompt.text)
        drafted = bench.drafting.generate(tokens, max_tokens=arguments.max_tokens)
        baseline = bench.plain.generate(tokens, max_tokens=arguments.max_tokens)
        same += drafted.tokens == baseline.tokens
        if drafted.stats["steps"] == 0:
            continue
        by_category[prompt.category].append(drafted.stats["tokens_per_step"])
        acceptance.append(drafted.stats["acceptance_per_depth"])
        ours = step_ms(drafted.stats, drafted.stats["timings_ms"], "draft", "accept", "commit", "other")
        speedups.append(drafted.stats["tokens_per_second"] / baseline.stats["tokens_per_second"])
        overheads.append(ours / step_ms(baseline.stats, baseline.stats["timings_ms"], "verify"))

    table = Table("category", "prompts", "tokens per step")
    for category, values in sorted(by_category.items()):
        table.add_row(category, str(len(values)), f"{statistics.mean(values):.2f}")
    everything = [value for values in by_category.values() for value in values]
    mean = statistics.mean(everything)
    table.add_row("all", str(len(everything)), f"{mean:.3f}", style="bold")
    console.print(table)
    depths = [statistics.mean(column) for column in zip(*acceptance, strict=True)]
    console.print(
        f"tree of {bench.tree.size} nodes; accepted at depth 1, 2, ...: {' '.join(f'{d:.3f}' for d in depths)}"
    )
    console.print(f"overhead (all but verify, of a plain step): median {statistics.median(overheads):.3f}")
    console.print(f"tokens per second, relative to our plain decoding: median {statistics.median(speedups):.2f}")
    console.print(f"identical to plain decoding: {same} of {len(prompts)} answers")
    if arguments.require and mean < arguments.require:
        sys.exit(f"tokens per step {mean:.3f} are below {arguments.require}")


if __name__ == "__main__":
    main()
