"""Tokens per step of one or more heads files by size of the tree, temperature and rule of acceptance.

    python benchmarks/tokens_per_step.py --data question.jsonl --heads A.gguf B.gguf [--model demo] [--nodes 4 8 16]
                                         [--dynamic] [-n 128] [--rules greedy,exact,typical]
                                         [--temperature 0.7 1.0] [--seeds 3]
                                         [--require 4:1.65 8:1.9 16:2.15] [--ratio 1.12] [--json FILE]

First turns. The fixed tree of each size is built from the accuracies in the heads file, which come from other text;
--dynamic adds trees grown in each step, whose number of steps depends on the clock. greedy: temperature 0; the others:
at each --temperature, seeded by prompt, --seeds times. An answer that falls into a loop counts up to there
(decoding/loops.py); "cut" says how many do. Tokens per step: tokens of all steps over steps; tokens/s: of the steps,
the rules taking turns prompt by prompt. `--require NODES:X` exits with 1 when the first heads, greedy, stay below X;
`--ratio` when they bring less than that many times the tokens per step of the second ones.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from common import Bench
from rich.console import Console
from rich.progress import track
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.tree_search import greedy_tree
from medusa_cli.prompts import bench_set

RULES = ("greedy", "exact", "rejection", "typical", "nucleus")
SEEDS_APART = 1000


@dataclass
class Sums:
    """Of all answers by one rule."""

    steps: int = 0
    committed: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    cut: int = 0
    reached: Counter[int] = field(default_factory=Counter)

    def add(self, answer: native.Generation) -> None:
        stats = answer.stats
        self.steps += stats["steps"] - stats["plain_steps"]
        self.committed += stats["tokens_per_step"] * (stats["steps"] - stats["plain_steps"])
        self.tokens += len(answer.tokens) - 1
        self.seconds += sum(stats["timings_ms"].values()) / 1000
        for depth, share in enumerate(stats["acceptance_per_depth"]):
            self.reached[depth] += share * (stats["steps"] - stats["plain_steps"])

    @property
    def per_step(self) -> float:
        return self.committed / max(self.steps, 1)

    @property
    def per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def depths(self) -> str:
        return " ".join(f"{self.reached[depth] / self.steps:.2f}" for depth in sorted(self.reached))


def rules(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in RULES:
            raise argparse.ArgumentTypeError(f"no rule {name!r}: there are {', '.join(RULES)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--heads", type=Path, nargs="+", default=[None], help="default: the model's own")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--nodes", type=int, nargs="*", default=[4, 8, 16])
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--rules", type=rules, default=["greedy", "exact", "typical"])
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.7])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--require", nargs="*", default=[], metavar="NODES:X")
    parser.add_argument("--ratio", type=float)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console()
    prompts = [prompt.text for prompt in bench_set.read(arguments.data)[: arguments.limit]]
    table = Table("heads", "nodes", "temperature", "rule", "tokens per step", "tokens/s", "cut", "depth 1, 2, ...")
    greedy: dict[tuple[Path | None, int], float] = {}
    rows = []
    for heads in arguments.heads:
        bench = Bench(arguments.model, heads, 1)
        for nodes in [*arguments.nodes, *([0] if arguments.dynamic else [])]:
            for temperature in arguments.temperature:
                found = measure(session_of(bench, nodes), bench, prompts, temperature, arguments)
                for rule, sums in found.items():
                    shown = "0" if rule == "greedy" else f"{temperature:g}"
                    rows.append(
                        {
                            "heads": str(heads.name if heads else arguments.model),
                            "nodes": nodes or "dynamic",
                            "temperature": float(shown),
                            "rule": rule,
                            "tokens_per_step": sums.per_step,
                            "steps": sums.steps,
                        }
                    )
                    table.add_row(
                        bench.heads.kind if heads is None else heads.name,
                        str(nodes or "dynamic"),
                        shown,
                        rule,
                        f"{sums.per_step:.3f}",
                        f"{sums.per_second:.1f}",
                        str(sums.cut),
                        sums.depths,
                    )
                if "greedy" in found:
                    greedy[heads, nodes] = found["greedy"].per_step
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    judge(arguments, greedy, console)


def judge(arguments: argparse.Namespace, greedy: dict[tuple[Path | None, int], float], console: Console) -> None:
    """Exits with 1 where --require or --ratio is missed."""
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


def session_of(bench: Bench, nodes: int) -> native.Session:
    """0 nodes: trees of each step's own."""
    if nodes == 0:
        return native.Session(bench.model, bench.heads, dynamic=native.DynamicTree(), n_ctx=2048)
    return native.Session(
        bench.model, bench.heads, tree=native.Tree(greedy_tree(bench.heads.accuracy, nodes)), n_ctx=2048
    )


def measure(
    session: native.Session, bench: Bench, prompts: list[str], temperature: float, arguments: argparse.Namespace
) -> dict[str, Sums]:
    found = {rule: Sums() for rule in arguments.rules}
    rounds = [(seed, at) for seed in range(arguments.seeds) for at in range(len(prompts))]
    label = f"{session.tree.size} nodes, temperature {temperature:g}"
    for seed, at in track(rounds, label, console=Console(stderr=True), transient=True):
        tokens = bench.chat_tokens(prompts[at])
        for rule in arguments.rules:
            sampling = native.Sampling(
                temperature=0.0 if rule == "greedy" else temperature, seed=SEEDS_APART * seed + at
            )
            answer, cut = up_to_its_loop(session, tokens, arguments.max_tokens, sampling, native.Accept(rule))
            found[rule].add(answer)
            found[rule].cut += cut
    return found


def up_to_its_loop(
    session: native.Session, tokens: list[int], most: int, sampling: native.Sampling, rule: native.Accept
) -> tuple[native.Generation, bool]:
    """The answer, again and shorter where it loops."""
    session.reset()
    answer = session.generate(tokens, max_tokens=most, sampling=sampling, accept=rule)
    start = loop_start(list(answer.tokens))
    if start == len(answer.tokens):
        return answer, False
    session.reset()
    return session.generate(tokens, max_tokens=max(start, 2), sampling=sampling, accept=rule), True


if __name__ == "__main__":
    main()
