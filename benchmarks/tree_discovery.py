"""Trees by accuracies (Medusa 2.3.3) beside trees by simulated decoding (Hydra 4): tokens per step by size.

    python benchmarks/tree_discovery.py [--model demo] [--heads FILE] [--data FILE] [--minutes 3] [--nodes 2 4 8 ...]

The model answers prompts (--data: JSON lines; default: those that `medusa tune` makes up), half greedily, half at
temperature 0.7. Every other answer makes the trees of both kinds, the rest scores them; then the roles are changed.
No clock is in it: the figures are those of the heads.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from medusa_cli.decoding import tree_search
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.tuning import choose, run, texts
from medusa_cli.tuning.methods import TreeMethod


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 4, 8, 16, 32, 64, 100])
    arguments = parser.parse_args()
    console, messages = Console(), Console(stderr=True)
    opened = run.open_model(arguments.model, arguments.heads, EngineOptions(), messages)
    asked = [[{"role": "user", "content": text}] for text in texts.prompts(arguments.data)]
    prompts = [chat_tokens(opened.model, messages, bare_if_no_template=True) for messages in asked]
    deadline = time.monotonic() + 60 * arguments.minutes
    ranked = texts.rank_texts(opened.model, opened.heads, prompts, 0, deadline, lambda done: None)
    halves = choose.halves(ranked)
    table = Table("nodes", "accuracies", "simulated", "ratio", "simulated, on its own text", "shared nodes")
    for nodes in arguments.nodes:
        ours, simulated, own, shared = score(halves, nodes)
        columns = (f"{ours:.3f}", f"{simulated:.3f}", f"{simulated / ours:.3f}", f"{own:.3f}", f"{shared:.0%}")
        table.add_row(str(nodes), *columns)
    console.print(f"{sum(map(len, ranked))} positions in {len(ranked)} answers; tokens per step on held-out text")
    console.print(table)


def score(halves: tuple[list[texts.Ranks], list[texts.Ranks]], nodes: int) -> tuple[float, float, float, float]:
    """Tokens per step of both trees, of the simulated one on the text that made it, and the share of common nodes.

    Means over both ways to divide the answers.
    """
    rows = []
    for built_on, held_out in (halves, halves[::-1]):
        accuracy = tree_search.accuracy_table(built_on)
        trees = [choose.trees_by_size(method, accuracy, built_on, [nodes])[nodes] for method in TreeMethod]
        scores = [tree_search.simulate(held_out, tree)[0] for tree in trees]
        shared = len(set(trees[0]) & set(trees[1])) / max(1, len(trees[0]))
        rows.append((*scores, tree_search.simulate(built_on, trees[1])[0], shared))
    ours, simulated, own, shared = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return ours, simulated, own, shared


if __name__ == "__main__":
    main()
