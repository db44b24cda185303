"""What a quantized KV cache brings behind a long text: plain tokens with each type of cache, in turn.

    python benchmarks/cache_types.py MODEL [--context 32000] [--types f16 q8_0] [-n 16] [--rounds 4] [--threads 2]
                                     [--text FILE ...]

Each session reads the same text once (the training passages, then --text; default: the pages in docs) and goes on with
it for -n tokens a round, greedily, without drafts. Milliseconds of a token: the median over the rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from common import DOCS, fixed_text
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.models import references


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=32000)
    parser.add_argument("--types", nargs="+", default=["f16", "q8_0"])
    parser.add_argument("-n", "--max-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--text", type=Path, nargs="*", default=DOCS)
    arguments = parser.parse_args()
    model = native.Model(str(references.resolve(arguments.model, Console(stderr=True)).path))
    text = fixed_text(model, arguments.context, arguments.text)
    n_ctx = arguments.context + arguments.max_tokens + 1
    sessions = {
        name: native.Session(model, n_ctx=n_ctx, type_k=name, type_v=name, n_threads=arguments.threads)
        for name in arguments.types
    }
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for turn in range(arguments.rounds + 1):  # the first one reads the text
        for name, session in sessions.items():
            answer = session.generate(text, max_tokens=arguments.max_tokens, ignore_eos=True)
            if turn:
                steps = sum(answer.stats["timings_ms"].values())
                times[name].append(steps / (len(answer.tokens) - 1))
    first = median(times[arguments.types[0]])
    table = Table("cache", "ms a token", "speed")
    for name, found in times.items():
        table.add_row(name, f"{median(found):.1f}", f"{first / median(found):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
