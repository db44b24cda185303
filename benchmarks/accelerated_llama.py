"""llama-cpp-python's own Llama with and without medusa_cli.accelerate(): tokens/s of prompts and of answers.

    python benchmarks/accelerated_llama.py [MODEL ...] [--rounds 5] [--prompt 256] [--tokens 48]

The ways take turns, round by round, in one process: stock; accelerated; accelerated with flash_attn=True, where our
attention runs, too. Printed are medians of tokens/s, and the median of the rounds' own ratios to stock. Answers are
greedy and of a fixed length.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from medusa_cli import accelerate, native
from medusa_cli.models import references
from medusa_cli.prompts.seeds.passages import PASSAGES

WAYS = {"Llama": (False, False), "with accelerate()": (True, False), "and flash_attn=True": (True, True)}
"""Of each way: whether it is accelerated, and flash_attn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=["demo"], metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of the answer")
    arguments = parser.parse_args()
    print(f"Kernels: {native.kernel_info()['selected']}. {native.physical_cores()} threads.\n")
    print("| model | | prompt, tokens/s | | answer, tokens/s | |\n|---|---|---|---|---|---|")
    for name in arguments.models:
        print_rows(name, measure(name, arguments.rounds, arguments.prompt, arguments.tokens))


def load(path: str, way: str) -> Any:
    from llama_cpp import Llama

    on, flash = WAYS[way]
    accelerate(on)
    return Llama(path, n_ctx=1024, n_threads=native.physical_cores(), flash_attn=flash, verbose=False)


def measure(name: str, rounds: int, prompt: int, tokens: int) -> dict[str, list[tuple[float, float]]]:
    """Of each way, tokens/s of the prompt and of the answer in each round. A first round warms up and is dropped."""
    path = str(references.resolve(name, Console(stderr=True)).path)
    loaded = {way: load(path, way) for way in WAYS}
    text = loaded["Llama"].tokenize("\n\n".join(PASSAGES).encode())[:prompt]
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way, llama in loaded.items():
            accelerate(WAYS[way][0])  # attention goes by the newest call
            speeds = answer(llama, text, tokens)
            if number:
                found[way].append(speeds)
    return found


def answer(llama: Any, prompt: Sequence[int], tokens: int) -> tuple[float, float]:
    llama.reset()
    begun = time.perf_counter()
    generator = llama.generate(prompt, temp=0.0)
    next(generator)
    first = time.perf_counter()
    for _ in range(tokens):
        next(generator)
    return len(prompt) / (first - begun), tokens / (time.perf_counter() - first)


def print_rows(name: str, found: dict[str, list[tuple[float, float]]]) -> None:
    stock = found["Llama"]
    for way, speeds in found.items():
        cells = [name, way]
        for part in (0, 1):
            ratio = statistics.median(mine[part] / plain[part] for mine, plain in zip(speeds, stock, strict=True))
            cells += [f"{statistics.median(speed[part] for speed in speeds):.0f}", f"{ratio:.2f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
