"""Memory over a long run: resident size of one process before and after thousands of generated tokens.

    python benchmarks/soak.py [--model demo] [--heads FILE] [--tokens 5000] [--limit-mib 2]

Answers of up to 500 tokens, one after another in one session, sampled, after a warm-up of one answer. Exits with 1 when
the process grew by more than --limit-mib.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import Bench

from medusa_cli import native

ANSWER = 500


def resident_bytes() -> int:
    """Resident size of this process: memory of its own, file pages left out (they come and go with the cache)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon in /proc/self/status: this script needs Linux")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--heads", type=Path)
    parser.add_argument("--tokens", type=int, default=5000)
    parser.add_argument("--limit-mib", type=float, default=2.0)
    arguments = parser.parse_args()
    bench = Bench(arguments.model, arguments.heads, 16)

    def answer(number: int) -> int:
        prompt = bench.chat_tokens(f"Write a long story about the number {number}.")
        sampling = native.Sampling(temperature=0.8, seed=number)
        return len(bench.drafting.generate(prompt, max_tokens=ANSWER, sampling=sampling, ignore_eos=True).tokens)

    answer(0)
    before, done, number = resident_bytes(), 0, 0
    while done < arguments.tokens:
        number += 1
        done += answer(number)
        print(f"\r{done} tokens, {resident_bytes() / (1 << 20):.2f} MiB", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    after = resident_bytes()
    grown = (after - before) / (1 << 20)
    print(f"before {before / (1 << 20):.2f} MiB, after {done} tokens {after / (1 << 20):.2f} MiB: {grown:+.2f} MiB")
    if grown > arguments.limit_mib:
        sys.exit(f"grew by more than {arguments.limit_mib:g} MiB")


if __name__ == "__main__":
    main()
