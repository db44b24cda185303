"""What prompt lookup costs a token, by how long the text is already.

    python benchmarks/lookup_cost.py [--length 131072] [--repeat 5]

The text repeats itself now and then, as a conversation does: pieces of earlier tokens between new ones. For each part
of the text, the microseconds of CPU time for one token: it is appended, the longest match is found, and 15 tokens that
followed the match are read.
"""

from __future__ import annotations

import argparse
import random
import time

from rich.console import Console
from rich.table import Table

from medusa_cli import native

VOCABULARY, DRAFTED = 49_152, 15
PIECE, REPEATED = 24, 0.3  # tokens of a piece; the share of pieces that stood there before
PARTS = (1_024, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072)  # where a row of the table ends


def conversation(length: int) -> list[int]:
    """So many token ids, of which about REPEATED stand in pieces that occurred before."""
    rng = random.Random(0)
    text: list[int] = []
    while len(text) < length:
        if len(text) > PIECE and rng.random() < REPEATED:
            start = rng.randrange(len(text) - PIECE)
            text += text[start : start + PIECE]
        else:
            text += [rng.randrange(VOCABULARY) for _ in range(PIECE)]
    return text[:length]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=131_072)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    text = conversation(arguments.length)
    parts = [end for end in PARTS if end <= arguments.length]
    best = dict.fromkeys(parts, float("inf"))
    for _ in range(arguments.repeat):
        index, begin = native.testing.LookupIndex(2, 8), 0
        for end in parts:
            start = time.process_time()
            for token in text[begin:end]:
                index.append(token)
                index.continuation(DRAFTED)
            best[end] = min(best[end], (time.process_time() - start) / (end - begin) * 1e6)
            begin = end
    table = Table("tokens", "µs a token")
    begin = 0
    for end, cost in best.items():
        table.add_row(f"{begin:,} to {end:,}", f"{cost:.2f}")
        begin = end
    Console().print(table)


if __name__ == "__main__":
    main()
