"""Tokens per step of one or more heads files by size of the tree and rule of acceptance.

    python benchmarks/tokens_per_step.py --data question.jsonl --heads A.gguf B.gguf [--model demo] [--nodes 4 8 16]
                                         [-n 128] [--temperature 0.7] [--require 4:1.65 8:1.9 16:2.15] [--ratio 1.12]

First turns. The fixed tree of each size is built from the accuracies in the heads file, which come from other text.
greedy: temperature 0; exact and typical: at --temperature, seeded by prompt. Tokens per step: tokens of all steps over
steps. `--require NODES:X` exits with 1 when the first heads, greedy, stay below X; `--ratio` when they bring less than
that many times the tokens per step of the second ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.prompts import bench_set

RULES = ("greedy", "exact", "typical")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--heads", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--require", nargs="*", default=[], metavar="NODES:X")
    parser.add_argument("--ratio", type=float)
    arguments = parser.parse_args()
    console = Console()
    prompts = [prompt.text for prompt in bench_set.read(arguments.data)[: arguments.limit]]
    table = Table("heads", "kind", "nodes", *arguments.rules, "depth 1, 2, ... (greedy)")
    greedy: dict[tuple[Path, int], float] = {}
    for heads in arguments.heads:
        bench = Bench(arguments.model, heads, 1)
        for nodes in arguments.nodes:
            session = native.Session(
                bench.model, bench.heads, tree=native.Tree(greedy_tree(bench.heads.accuracy, nodes)), n_ctx=2048
            )
            found = {}
            for rule in arguments.rules:
                label = f"{heads.name}, {nodes} nodes, {rule}"
                runs = track(prompts, label, console=Console(stderr=True), transient=True)
                found[rule] = measure(session, bench, list(enumerate(runs)), rule, arguments)
            depths = found["greedy"][1] if "greedy" in found else []
            row = [f"{found[rule][0]:.3f}" for rule in arguments.rules]
            table.add_row(heads.name, bench.heads.kind, str(nodes), *row, " ".join(f"{d:.2f}" for d in depths))
            if "greedy" in found:
                greedy[heads, nodes] = found["greedy"][0]
    console.print(table)
    missed = [line for line in arguments.require if greedy[arguments.heads[0], int(line.split(":")[0])] < bar(line)]
    if arguments.ratio:
        first, second = arguments.heads[:2]
        ratios = {nodes: greedy[first, nodes] / greedy[second, nodes] for nodes in arguments.nodes}
        console.print("ratio of the first to the second: " + ", ".join(f"{n}: {r:.3f}" for n, r in ratios.items()))
        missed += [f"ratio at {nodes} nodes" for nodes, ratio in ratios.items() if ratio < arguments.ratio]
    if missed:
        sys.exit("missed: " + ", ".join(missed))


def bar(line: str) -> float:
    return float(line.split(":")[1])


def measure(
    session: native.Session, bench: Bench, prompts: list[tuple[int, str]], rule: str, arguments: argparse.Namespace
) -> tuple[float, list[float]]:
    """Tokens per step, and the share of steps that accept each depth."""
    temperature = 0.0 if rule == "greedy" else arguments.temperature
    steps, committed, reached = 0, 0.0, [0.0] * session.tree.depth
    for seed, text in prompts:
        session.reset()
        stats = session.generate(
            bench.chat_tokens(text),
            max_tokens=arguments.max_tokens,
            sampling=native.Sampling(temperature=temperature, seed=seed),
            accept=native.Accept(rule),
        ).stats
        steps += stats["steps"]
        committed += stats["tokens_per_step"] * stats["steps"]
        for depth, share in enumerate(stats["acceptance_per_depth"]):
            reached[depth] += share * stats["steps"]
    return committed / steps, [count / steps for count in reached]


if __name__ == "__main__":
    main()
