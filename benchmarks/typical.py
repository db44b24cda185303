"""What typical acceptance brings and what it costs: tokens per step, and the quality of the text, by epsilon.

    python benchmarks/typical.py --data question.jsonl [--model demo] [--heads FILE] [--nodes 16] [-n 128]
                                 [--temperature 0.7] [--epsilon 0.05 0.09 0.15 0.25]

delta = sqrt(epsilon), as in the papers. The quality proxies are those of the text under the base model: perplexity (of
the answer, given the prompt) and repetition (share of its 4-grams that stood in the same answer before). Both depend on
how the text was sampled: the rows are to be compared with `exact`, which is the base model's own distribution.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.prompts import bench_set


def repetition(tokens: list[int], n: int = 4) -> tuple[int, int]:
    """(n-grams that stood before, all n-grams)."""
    grams = [tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)]
    return len(grams) - len(set(grams)), len(grams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.05, 0.09, 0.15, 0.2, 0.25])
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.heads, 1)
    tree = native.Tree(greedy_tree(bench.heads.accuracy, arguments.nodes))
    session = native.Session(bench.model, bench.heads, tree=tree, n_ctx=2048)
    prompts = [bench.chat_tokens(asked.text) for asked in bench_set.read(arguments.data)[: arguments.limit]]
    table = Table("rule", "epsilon", "tokens per step", "perplexity", "repeated 4-grams")
    rules = [("exact", None), *(("typical", epsilon) for epsilon in arguments.epsilon)]
    for kind, epsilon in rules:
        accept = native.Accept(kind) if epsilon is None else native.Accept(kind, epsilon=epsilon, delta=epsilon**0.5)
        steps, committed, costs, again, grams = 0, 0.0, [], 0, 0
        for seed, prompt in enumerate(track(prompts, f"{kind} {epsilon or ''}", console=Console(stderr=True))):
            session.reset()
            run = session.generate(
                prompt,
                max_tokens=arguments.max_tokens,
                sampling=native.Sampling(temperature=arguments.temperature, seed=seed),
                accept=accept,
            )
            steps += run.stats["steps"]
            committed += run.stats["tokens_per_step"] * run.stats["steps"]
            costs += native.score(bench.model, [*prompt, *run.tokens])[1][len(prompt) - 1 :]
            repeated = repetition(run.tokens)
            again, grams = again + repeated[0], grams + repeated[1]
        shown = f"{epsilon:.2f}" if epsilon else "-"
        perplexity = math.exp(sum(costs) / len(costs))
        table.add_row(kind, shown, f"{committed / steps:.3f}", f"{perplexity:.2f}", f"{again / grams:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
