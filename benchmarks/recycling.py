"""Tokens per step of drafts that need no training, alone and beside heads, with a given number of nodes in a step.

    python benchmarks/recycling.py --data question.jsonl [--model demo] [--nodes 4 8 16] [-n 128] [--limit 40]
                                   [--cold] [--heads]

First turns, greedy, one thread. Every step takes its likeliest nodes up to the given number, root included, as if they
cost nothing: what the drafts are worth, whatever a machine asks for them. Recycling knows what it found at the earlier
questions of its own row; --cold: of this question alone. --heads: with the model's own heads, too.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.models import references
from medusa_cli.prompts import bench_set

MOST = 32
ALMOST_FREE = [(1, 1.0), (MOST, 1.001)]
GREEDY = native.Sampling(temperature=0.0)


@dataclass(frozen=True)
class Drafts:
    heads: native.Heads | None
    lookup: bool
    recycling: bool

    def __str__(self) -> str:
        taking_part = {"heads": self.heads, "lookup": self.lookup, "recycling": self.recycling}
        return " + ".join(name for name, part in taking_part.items() if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8, 16], choices=range(2, MOST + 1), metavar="N")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--heads", action="store_true")
    arguments = parser.parse_args()
    reference = references.resolve(arguments.model, Console(stderr=True))
    model = native.Model(str(reference.path))
    prompts = [prompt.text for prompt in bench_set.read(arguments.data)[: arguments.limit]]
    prompts_tokens = [chat_tokens(model, [{"role": "user", "content": text}]) for text in prompts]
    rows: list[Drafts] = [Drafts(None, True, True)]
    if arguments.heads:
        heads = native.Heads(model, str(reference.heads.path if reference.heads else reference.path))
        rows += [Drafts(heads, False, False), Drafts(heads, True, False), Drafts(heads, True, True)]
    table = Table("drafts", "nodes", "tokens per step")
    for nodes in arguments.nodes:
        for drafts in rows:
            committed = steps = 0.0
            session = open_session(model, drafts, nodes)
            for tokens in track(prompts_tokens, f"{drafts}, {nodes}", console=Console(stderr=True), transient=True):
                if arguments.cold:
                    session = open_session(model, drafts, nodes)
                session.reset()
                stats = session.generate(tokens, max_tokens=arguments.max_tokens, sampling=GREEDY).stats
                steps += stats["steps"]
                committed += stats["tokens_per_step"] * stats["steps"]
            table.add_row(str(drafts), str(nodes), f"{committed / steps:.2f}")
    Console().print(table)


def open_session(model: native.Model, drafts: Drafts, nodes: int) -> native.Session:
    dynamic = native.DynamicTree(costs=ALMOST_FREE, learns_costs=False, max_nodes=nodes)
    return native.Session(
        model, drafts.heads, dynamic=dynamic, lookup=drafts.lookup, recycling=drafts.recycling, n_ctx=2048, n_threads=1
    )


if __name__ == "__main__":
    main()
