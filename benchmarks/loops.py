"""How many answers fall into a loop, by sampling, and what a penalty on repeats costs.

    python benchmarks/loops.py MODEL [--data mt_bench_dev.jsonl] [--penalties 1 1.05 1.1] [--seeds 2] [--tokens 512]

Each prompt (without --data: one poem) is answered with each seed and each repeat penalty, at the temperature of a chat
and otherwise with the defaults of the engine, loops not stopped. Printed for each penalty: answers that ended by
themselves; those that say the same 1 to 64 tokens over and over until their end (what `--stop-loops` ends); those in
which decoding/loops.py finds a loop, which also counts tables and copied code; tokens per step up to there, and
milliseconds of acceptance a step.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.options import CHAT_TEMPERATURE, DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import Engine, open_engine
from medusa_cli.decoding.settings import Settings
from medusa_cli.prompts import bench_set

POEM = "Write a short poem about the sea."


def answers(engine: Engine, prompts: list[str], penalty: float, seeds: int, tokens: int) -> list[native.Generation]:
    found = []
    for prompt in prompts:
        asked = engine.chat_tokens([{"role": "user", "content": prompt}])
        for seed in range(seeds):
            settings = Settings(CHAT_TEMPERATURE, repeat_penalty=penalty, max_tokens=tokens)
            engine.session.reset()
            found.append(engine.generate(asked, settings, seed, None))
    return found


def repeats_to_its_end(text: list[int]) -> bool:
    """By the definition of `--stop-loops`, which ends an answer as soon as one of its beginnings does."""
    return native.testing.loop_end(text) is not None


def row(penalty: float, found: list[native.Generation]) -> list[str]:
    texts = [list(one.tokens) for one in found]
    whole = [one for one, text in zip(found, texts, strict=True) if loop_start(text) == len(text)]
    steps = sum(one.stats["steps"] - one.stats["plain_steps"] for one in whole)
    committed = sum(one.stats["tokens_per_step"] * (one.stats["steps"] - one.stats["plain_steps"]) for one in whole)
    accept = sum(one.stats["timings_ms"]["accept"] for one in whole) / sum(one.stats["steps"] for one in whole)
    ended = sum(one.stop_reason == "eos" for one in found)
    loops = sum(map(repeats_to_its_end, texts))
    return [f"{penalty:g}", f"{ended} of {len(found)}", str(loops), str(len(found) - len(whole)),
            f"{committed / steps:.2f}", f"{accept:.3f}"]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--penalties", type=float, nargs="+", default=[1.0, 1.05, 1.1])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    arguments = parser.parse_args()
    prompts = [POEM] if arguments.data is None else [prompt.text for prompt in bench_set.read(arguments.data)]
    engine = open_engine(arguments.model, EngineOptions(), DraftOptions(), Console(stderr=True))
    table = Table(
        "repeat penalty", "ended by themselves", "in a loop", "repeats by loops.py", "tokens per step, the others",
        "acceptance, ms a step", box=None,
    )  # fmt: skip
    for penalty in arguments.penalties:
        table.add_row(*row(penalty, answers(engine, prompts, penalty, arguments.seeds, arguments.tokens)))
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
