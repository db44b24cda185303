"""Whole speed of several heads files for one model, beside plain decoding, and the size of the files.

    python benchmarks/drafts_speed.py --data question.jsonl --heads A.gguf B.gguf [--model demo] [--nodes 8]
                                      [--questions 4] [-n 48] [--rounds 2] [--threads 0]

Greedy answers. All take turns question by question; of each answer the quickest round counts, without the prompt. Trees
are the best of `--nodes` nodes by the accuracies in the files.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import prompts
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.models import references
from medusa_cli.prompts import bench_set

PLAIN = "no drafts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--heads", type=Path, nargs="+", required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("-n", "--max-tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=0)
    arguments = parser.parse_args()
    model = native.Model(str(references.resolve(arguments.model, Console(stderr=True)).path))
    sessions = {PLAIN: native.Session(model, n_ctx=2048, n_threads=arguments.threads)}
    for path in arguments.heads:
        heads = native.Heads(model, str(path))
        tree = native.Tree(greedy_tree(heads.accuracy, arguments.nodes))
        sessions[path.name] = native.Session(model, heads, tree=tree, n_ctx=2048, n_threads=arguments.threads)
    asked = [prompt.text for prompt in bench_set.read(arguments.data)[: arguments.questions]]
    seconds: dict[str, float] = dict.fromkeys(sessions, 0.0)
    tokens, steps, committed = (dict.fromkeys(sessions, 0.0) for _ in range(3))
    for text in asked:
        prompt = prompts.chat_tokens(model, [{"role": "user", "content": text}])
        least = dict.fromkeys(sessions, math.inf)
        for _ in range(arguments.rounds):
            for name, session in sessions.items():
                session.reset()
                answer = session.generate(
                    prompt, max_tokens=arguments.max_tokens, sampling=native.Sampling(temperature=0.0)
                )
                stats, count = answer.stats, len(answer.tokens) - 1
                least[name] = min(least[name], sum(stats["timings_ms"].values()) / 1000 / max(count, 1))
        for name, session in sessions.items():
            assert session.last is not None
            count = len(session.last.tokens) - 1
            stats = session.last.stats
            seconds[name], tokens[name] = seconds[name] + least[name] * count, tokens[name] + count
            steps[name] += stats["steps"]
            committed[name] += stats["tokens_per_step"] * stats["steps"]
    table = Table("drafts", "tokens/s", "of plain", "tokens per step", "file, MB")
    plain = tokens[PLAIN] / seconds[PLAIN]
    sizes = {path.name: f"{path.stat().st_size / 1e6:.1f}" for path in arguments.heads}
    for name in sessions:
        speed = tokens[name] / seconds[name]
        per_step = f"{committed[name] / steps[name]:.2f}" if name != PLAIN else ""
        table.add_row(name, f"{speed:.0f}", f"{speed / plain:.2f}", per_step, sizes.get(name, ""))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
