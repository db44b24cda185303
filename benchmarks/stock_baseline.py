"""Is the method `stock` of `medusa bench` really llama.cpp? Its session against a bare loop over llama.cpp's interface.

    python benchmarks/stock_baseline.py MODEL [-n 128] [--rounds 9] [--threads 2] [--require 0.97]

Both in one process with MEDUSA_ISA=off, in turn, after the same prompt, greedy. The bare loop uses llama.cpp's default
context (flash attention as it chooses, its own greedy sampler) and is Python, which costs it some microseconds a token.
Where a copy of the weights comes to lie in memory can change its speed by a tenth (seen with two copies under the same
bare loop, 1.5B), so both copies are loaded anew for each round, in alternating order, and the spread is printed.
Prints the median of the ratios of their speeds and how many texts are equal; --require exits with 1 below that ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

PROMPT = "Write a story about the sea."


def bare_loop(model: Any, prompt: Sequence[int], n_ctx: int, tokens: int, threads: int) -> tuple[float, list[int]]:
    """(tokens per second without the prompt, the tokens)."""
    import llama_cpp

    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = n_ctx, threads, threads
    context = llama_cpp.llama_init_from_model(model, params)
    sampler = llama_cpp.llama_sampler_init_greedy()

    def decode(batch: Sequence[int]) -> None:
        array = (llama_cpp.llama_token * len(batch))(*batch)
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(batch))):
            sys.exit("llama_decode failed")

    decode(prompt)
    said = [llama_cpp.llama_sampler_sample(sampler, context, -1)]
    begun = time.perf_counter()
    while len(said) < tokens:
        decode(said[-1:])
        said.append(llama_cpp.llama_sampler_sample(sampler, context, -1))
    seconds = time.perf_counter() - begun
    llama_cpp.llama_sampler_free(sampler)
    llama_cpp.llama_free(context)
    return (tokens - 1) / seconds, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--require", type=float)
    arguments = parser.parse_args()
    os.environ["MEDUSA_ISA"] = "off"
    from medusa_cli import native
    from medusa_cli.models import references

    path = str(references.resolve(arguments.model, Console(stderr=True)).path)
    import llama_cpp

    def load_theirs() -> Any:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        loaded = llama_cpp.llama_model_load_from_file(path.encode(), params)
        return loaded or sys.exit(f"llama.cpp does not load {path}: give a plain GGUF, without heads")

    ratios, same = [], 0
    for number in range(arguments.rounds):
        theirs = load_theirs() if number % 2 else None
        model = native.Model(path, n_gpu_layers=0)
        theirs = theirs or load_theirs()
        prompt = model.tokenize(PROMPT)
        n_ctx = len(prompt) + arguments.max_tokens + 1
        session = native.Session(model, n_ctx=n_ctx, n_threads=arguments.threads)
        speed, said = bare_loop(theirs, prompt, n_ctx, arguments.max_tokens, arguments.threads)
        done = session.generate(prompt, max_tokens=arguments.max_tokens, ignore_eos=True)
        ratios.append(done.stats["tokens_per_second"] / speed)
        same += list(done.tokens) == said
        llama_cpp.llama_model_free(theirs)
    ratio = statistics.median(ratios)
    print(
        f"stock session / bare llama.cpp loop: {ratio:.3f} (median of {len(ratios)}, "
        f"{min(ratios):.3f} to {max(ratios):.3f}), {same} texts equal"
    )
    if arguments.require and ratio < arguments.require:
        sys.exit(f"{ratio:.3f} is below {arguments.require}")


if __name__ == "__main__":
    main()
