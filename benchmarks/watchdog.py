"""Is a session with the watchdog ever slower than plain decoding? Real heads and useless ones, in turn with plain.

    python benchmarks/watchdog.py [--data benchmarks/prompts.jsonl] [--model demo] [--heads FILE] [--nodes 4] [-n 128]
                                  [--repeat 1] [--limit N] [--floor 0.97]

Greedy, to the full length whatever the model says. Useless heads: the real ones with their weights shuffled. Prompts
are decoded one after another by every session, in changing order; sessions keep what their watchdogs learn, as in a
chat. `always`: every step drafts. Prints medians over prompts of the speed relative to plain decoding of the same
prompt in the same round; exits with 1 when that of a watched session is below --floor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import Bench
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.models import demo
from medusa_cli.prompts import bench_set

PROMPTS = Path(__file__).with_name("prompts.jsonl")
PLAIN = "plain"


Q8_0 = np.dtype([("scale", "<f2"), ("q", "i1", 32)])


def shuffle_heads(source: Path, target: Path, seed: int = 0) -> None:
    """A copy of a file of heads in which the values of each floating-point tensor have changed places."""
    data = bytearray(source.read_bytes())
    kinds: dict[str, np.dtype[Any]] = {"f16": np.dtype("<f2"), "f32": np.dtype("<f4")}
    found = native.read_gguf(str(source))
    rng = np.random.default_rng(seed)
    for tensor in found.tensors:
        if tensor.type in kinds and tensor.name.endswith((".weight", ".bias")):
            values = np.frombuffer(data, kinds[tensor.type], int(np.prod(tensor.shape)), tensor.offset)
            values[:] = rng.permutation(values)
        elif tensor.type == "q8_0":
            blocks = np.frombuffer(data, Q8_0, tensor.nbytes // Q8_0.itemsize, tensor.offset)
            blocks["q"] = rng.permutation(blocks["q"].ravel()).reshape(blocks["q"].shape)
    target.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=PROMPTS)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--floor", type=float, default=0.97)
    arguments = parser.parse_args()
    console = Console()
    bench = Bench(arguments.model, arguments.heads, arguments.nodes)
    with tempfile.TemporaryDirectory() as folder:
        useless_file = Path(folder) / "heads.gguf"
        shuffle_heads(arguments.heads or demo.DEMO_HEADS, useless_file)
        useless = native.Heads(bench.model, str(useless_file))
        sessions = {
            PLAIN: (bench.plain, False),
            "real heads, always": (bench.drafting, False),
            "real heads": (native.Session(bench.model, bench.heads, tree=bench.tree), True),
            "useless heads, always": (native.Session(bench.model, useless, tree=bench.tree), False),
            "useless heads": (native.Session(bench.model, useless, tree=bench.tree), True),
            # These look after themselves.
            "real heads, dynamic trees": (
                native.Session(bench.model, bench.heads, dynamic=native.DynamicTree()),
                False,
            ),
            "useless heads, dynamic trees": (native.Session(bench.model, useless, dynamic=native.DynamicTree()), False),
        }
        prompts = bench_set.read(arguments.data)[: arguments.limit] * arguments.repeat
        found = measure(bench, sessions, [prompt.text for prompt in prompts], arguments.max_tokens)
    table = Table("session", "of plain's speed, median", "lowest", "tokens per step", "plain steps")
    slow = []
    for name, runs in found.items():
        ratios = [
            run["tokens_per_second"] / base["tokens_per_second"] for run, base in zip(runs, found[PLAIN], strict=True)
        ]
        median = statistics.median(ratios)
        steps, undrafted = (sum(run[key] for run in runs) for key in ("steps", "plain_steps"))
        committed = sum(run["tokens_per_step"] * (run["steps"] - run["plain_steps"]) for run in runs)
        per_step = f"{committed / (steps - undrafted):.2f}" if steps > undrafted else "-"
        table.add_row(name, f"{median:.3f}", f"{min(ratios):.3f}", per_step, f"{undrafted / steps:.0%}")
        if (sessions[name][1] or "dynamic" in name) and median < arguments.floor:
            slow.append(name)
    console.print(table)
    speed = statistics.median(run["tokens_per_second"] for run in found[PLAIN])
    console.print(f"{len(prompts)} answers, tree of {bench.tree.size} nodes, plain: {speed:.1f} tokens/s (median)")
    if slow:
        sys.exit(f"slower than {arguments.floor} of plain: {', '.join(slow)}")


def measure(
    bench: Bench, sessions: dict[str, tuple[native.Session, bool]], texts: list[str], max_tokens: int
) -> dict[str, list[dict[str, float]]]:
    """Statistics of each session's answers. A first answer warms up all of them, watchdogs excepted."""
    names = list(sessions)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for session, _ in sessions.values():
        session.generate(bench.chat_tokens(texts[0]), max_tokens=16)
    for number, text in enumerate(texts):
        prompt = bench.chat_tokens(text)
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            session, watched = sessions[name]
            session.reset()
            stats = session.generate(prompt, max_tokens=max_tokens, ignore_eos=True, watchdog=watched).stats
            found[name].append(stats)
    return found


if __name__ == "__main__":
    main()
