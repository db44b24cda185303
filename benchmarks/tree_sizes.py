"""Is the tuned way to decode the best one? Trees of every size in turn with it, and with dynamic trees.

    python benchmarks/tree_sizes.py [--model demo] [--heads FILE] [--data benchmarks/prompts.jsonl] [--largest 16]
                                    [--minutes 3] [-n 96] [--margin 0.03] [--dynamic-gain X]

Needs the profile that `medusa tune` stored on this machine: its accuracies make the likeliest tree of each size, and
the chains. Every session answers a prompt before the next one comes, in changing order, every other prompt greedily,
the rest at temperature 0.7; figures are means over the prompts of the speed relative to plain decoding of the same one.
Exits with 1 when what was tuned is slower than the fastest fixed tree (or plain decoding) by more than --margin, or,
with --dynamic-gain, when dynamic trees are not faster than the fastest fixed one by that share. The fastest of many is
partly the luckiest: the more prompts, the fairer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from medusa_cli.bench import summary
from medusa_cli.decoding import devices, profile
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.decoding.tree_search import Choice, greedy_tree
from medusa_cli.decoding.trees import DYNAMIC
from medusa_cli.prompts import bench_set
from medusa_cli.support import progress
from medusa_cli.tuning import decode, run
from medusa_cli.tuning.choose import PLAIN, Candidate

PROMPTS = Path(__file__).with_name("prompts.jsonl")
SIZES = devices.RULES[devices.DeviceKind.cpu].sizes
"""Of the trees: the finest list there is, whatever the model runs on."""


def fixed_trees(accuracy: list[list[float]], largest: int, tuned: list[list[int]]) -> list[Candidate]:
    """The likeliest tree of each size, all chains, and the tuned tree; each once."""
    chains = [[(0,) * depth for depth in range(1, length + 1)] for length in range(1, len(accuracy) + 1)]
    found: dict[frozenset[Choice], Candidate] = {}
    likeliest = [greedy_tree(accuracy, size) for size in SIZES if 1 < size <= largest]
    for choices in (*likeliest, *chains, [tuple(choice) for choice in tuned]):
        if choices:
            found.setdefault(frozenset(choices), Candidate(choices, 0.0))
    return list(found.values())


def chosen_name(stored: dict[str, Any], trees: list[Candidate]) -> str:
    """What the profile decodes with, as the sessions are called."""
    if stored["dynamic"]:
        return DYNAMIC
    tuned = {tuple(choice) for choice in stored["tree"]}
    return next((tree.name for tree in trees if set(tree.choices) == tuned), PLAIN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--data", type=Path, default=PROMPTS)
    parser.add_argument("--largest", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("-n", "--max-tokens", type=int, default=96)
    parser.add_argument("--margin", type=float, default=0.03)
    parser.add_argument("--dynamic-gain", type=float)
    arguments = parser.parse_args()
    console = Console()
    opened = run.open_model(arguments.model, arguments.heads, EngineOptions(), Console(stderr=True))
    stored = profile.load(opened.key)
    if stored is None:
        sys.exit(f"{opened.name} was not tuned here: run `medusa tune {arguments.model}` first")
    trees = fixed_trees(stored["accuracy"], arguments.largest, stored["tree"])
    sessions = {
        PLAIN: opened.session(None),
        **{tree.name: opened.session(tree.tree) for tree in trees},
        DYNAMIC: opened.session(profile.tuned_of(stored).start),
    }
    asked = [[{"role": "user", "content": prompt.text}] for prompt in bench_set.read(arguments.data)]
    prompts = [chat_tokens(opened.model, messages, bare_if_no_template=True) for messages in asked]
    deadline = time.monotonic() + 60 * arguments.minutes
    with progress.phase(Console(stderr=True), "Decoding", "answers") as bar:
        total = len(prompts) * len(sessions)
        found = decode.in_turn(
            sessions, prompts, arguments.max_tokens, deadline, lambda answers: bar.update(answers, total)
        )
    if not found:
        sys.exit("the answers are too short to tell speeds apart: give other prompts with --data")
    judge(found, chosen_name(stored, trees), arguments, console)


def judge(found: dict[str, decode.Decoded], tuned: str, arguments: argparse.Namespace, console: Console) -> None:
    """Prints the table and what it says of the tuned way and of dynamic trees."""
    fixed = {name: decoded.speedup for name, decoded in found.items() if name != DYNAMIC}
    best = max(fixed, key=lambda name: fixed[name])
    table = Table("decoding", "of plain's speed, mean", "95%", "tokens per step")
    for name, decoded in found.items():
        interval = summary.confidence(decoded.ratios)
        spread = "-" if interval is None else f"±{(interval[1] - interval[0]) / 2:.3f}"
        marks = " (tuned)" * (name == tuned) + " (best fixed)" * (name == best)
        table.add_row(f"{name}{marks}", f"{decoded.speedup:.3f}", spread, f"{decoded.tokens_per_step:.2f}")
    console.print(table)
    console.print(f"{len(found[PLAIN].ratios)} prompts")
    missed = []
    tuned_ratio = found[tuned].speedup / fixed[best]
    console.print(f"tuned ({tuned}) over the best fixed ({best}): {tuned_ratio:.3f}")
    if tuned_ratio < 1 - arguments.margin:
        missed.append(f"tuned is {1 - tuned_ratio:.1%} slower than {best}")
    pairs = zip(found[DYNAMIC].ratios, found[best].ratios, strict=True)
    gain = statistics.mean(one / other for one, other in pairs) - 1
    console.print(f"dynamic over the best fixed ({best}), prompt by prompt: {1 + gain:.3f}")
    if arguments.dynamic_gain is not None and gain < arguments.dynamic_gain:
        missed.append(f"dynamic gains {gain:.1%}, {arguments.dynamic_gain:.1%} was asked for")
    if missed:
        sys.exit("; ".join(missed))


if __name__ == "__main__":
    main()
