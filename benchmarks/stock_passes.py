"""What passes of llama-cpp-python's own llama.cpp cost, without medusa: beside verify_cost.py on another build of it.

    [LLAMA_CPP_LIB_PATH=FOLDER] python benchmarks/stock_passes.py MODEL [--threads 2] [--widths 1 4 8 16 512]

LLAMA_CPP_LIB_PATH: where another build's libllama lies, for example one without AVX-512. Prints the milliseconds of a
pass of so many tokens behind 64 others: the quickest of several; of a pass the last token alone asks for logits.
"""

from __future__ import annotations

import argparse
import time

import llama_cpp

POSITION, FIRST_TOKEN = 64, 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 4, 8, 16, 512])
    arguments = parser.parse_args()
    model = llama_cpp.Llama(
        arguments.model, n_ctx=1024, n_batch=512, n_threads=arguments.threads, n_threads_batch=arguments.threads,
        flash_attn=True, verbose=False,
    )  # fmt: skip
    print(llama_cpp.llama_print_system_info().decode())
    model.eval(range(FIRST_TOKEN, FIRST_TOKEN + POSITION))
    for width in arguments.widths:
        print(f"{width:4} tokens: {pass_ms(model, width):.1f} ms")


def pass_ms(model: llama_cpp.Llama, width: int) -> float:
    """The quickest of some passes of `width` tokens."""
    best = float("inf")
    for _ in range(1 if width > 64 else 8):
        model.n_tokens = POSITION  # eval() forgets what lies behind
        start = time.perf_counter()
        model.eval(range(FIRST_TOKEN, FIRST_TOKEN + width))
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best


if __name__ == "__main__":
    main()
