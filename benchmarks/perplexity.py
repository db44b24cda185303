"""Perplexity of a fixed text with our kernels and with the stock ones, for a model quantized again to each type.

    python benchmarks/perplexity.py MODEL [--types Q4_0 Q4_K ...] [--tokens 3072] [--text FILE ...] [--narrow 512]
                                    [--limit 0.5] [--reference]

MODEL is a GGUF or `demo`. `--types`: GGUF file types, or as-is; every matrix gets that one type where its rows fill
the blocks (the column "matrices on kernels" shows what it became). The text, the project's own passages and then the
files of `--text`, is cut into windows of 512 tokens, decoded 64 at a time; its beginning also token by token
(`--narrow 0`: not). Both sides score the same tokens; the standard error is that of the mean difference, over chunks of
64 tokens. "within": the limit is kept with two standard errors to spare; "missed": it is exceeded by more than two, and
the script exits with 1; "too short": the text cannot tell. `--reference` asks which of the two is nearer to the truth:
the same weights as F16, multiplied by llama.cpp with activations that are not quantized.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import OURS, STOCK, fixed_text, in_worker
from medusa_cli.converters.gguf.file_types import FILE_TYPES
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.models import references

AS_IS = "as-is"
TYPES = (AS_IS, "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K_S", "Q5_K_S", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
WINDOW, WIDE, NARROW = 512, 64, 1
CHUNK = 64  # tokens whose differences count as one: those of neighbours are not independent
F16 = 1  # general.file_type


def score(path: str, tokens: int, narrow: int, more: list[Path]) -> dict[str, Any]:
    """Costs of each token (-ln p) at both widths, and the matrices that run on our kernels by type.

    On half of the processors: both sides run at the same time.
    """
    threads = max(1, (os.cpu_count() or 2) // 2)
    model = native.Model(path)
    text = fixed_text(model, tokens, more)
    wide = [
        cost
        for begin in range(0, tokens, WINDOW)
        for cost in native.score(model, text[begin : begin + WINDOW], width=WIDE, n_threads=threads)[1]
    ]
    buffer = native.kernel_info()["buffer"]
    costs = {WIDE: wide}
    if narrow:
        costs[NARROW] = native.score(model, text[:narrow], width=NARROW, n_threads=threads)[1]
    return {
        "costs": costs,
        "served": {group.type: group.tensors for group in model.placement if group.buffer == buffer},
    }


def requantized(source: Path, types: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of the model in each type; each file is removed before the next is made."""
    numbers = {name: number for number, name in FILE_TYPES.items()}
    for name in types:
        if name == AS_IS:
            yield name, source
            continue
        path = folder / f"{name}.gguf"
        native.quantize_model(str(source), str(path), file_type=numbers[name], allow_requantize=True, pure=True)
        yield name, path
        path.unlink()


def perplexity(costs: list[float]) -> str:
    return f"{math.exp(statistics.fmean(costs)):.4f}"


def difference(ours: list[float], stock: list[float]) -> tuple[float, float]:
    """Of the perplexities, in percent of stock's, with its standard error."""
    changes = [a - b for a, b in zip(ours, stock, strict=True)]
    chunks = [statistics.fmean(changes[i : i + CHUNK]) for i in range(0, len(changes), CHUNK)]
    return 100 * math.expm1(statistics.fmean(changes)), 100 * statistics.stdev(chunks) / math.sqrt(len(chunks))


def verdict(percent: float, error: float, limit: float) -> str:
    if abs(percent) + 2 * error <= limit:
        return "within"
    return "too short" if abs(percent) - 2 * error <= limit else "missed"


def distance(costs: list[float], reference: list[float]) -> str:
    """How far the cost of a token is off, on average."""
    return f"{statistics.fmean(abs(a - b) for a, b in zip(costs, reference, strict=True)):.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument(
        "--types", nargs="*", default=list(TYPES), choices=[AS_IS, *FILE_TYPES.values()], metavar="TYPE"
    )
    parser.add_argument("--tokens", type=int, default=3072)
    parser.add_argument("--text", type=Path, nargs="*", default=[], metavar="FILE", help="after the passages")
    parser.add_argument("--narrow", type=int, default=512)
    parser.add_argument("--limit", type=float, default=0.5, help="largest difference, in percent")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(score(arguments.model, arguments.tokens, arguments.narrow, arguments.text)))
        return
    # The standard error needs two chunks.
    if 0 < arguments.narrow < 2 * CHUNK or arguments.tokens < 2 * CHUNK:
        parser.error(f"--tokens and --narrow: at least {2 * CHUNK} (--narrow: or 0)")

    source = references.resolve(arguments.model, Console(stderr=True)).path
    columns = ["file type", "matrices on kernels", "width", "stock", "ours", "difference", "standard error", "verdict"]
    if arguments.reference:
        columns += ["reference", "stock off by", "ours off by"]
    table = Table(*columns, title="perplexity")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in requantized(source, arguments.types, Path(folder)):
            sizes = ["--tokens", str(arguments.tokens), "--narrow", str(arguments.narrow)]
            sizes += ["--text", *map(str, arguments.text)]
            with ThreadPoolExecutor() as pool:
                jobs = {
                    kind: pool.submit(in_worker, kind, __file__, str(path), "--worker", *sizes)
                    for kind in (OURS, STOCK)
                }
            runs = {kind: job.result() for kind, job in jobs.items()}
            reference = None
            if arguments.reference:
                exact = Path(folder) / "reference.gguf"
                native.quantize_model(str(path), str(exact), file_type=F16, allow_requantize=True, pure=True)
                reference = in_worker(STOCK, __file__, str(exact), "--worker", *sizes)["costs"]
            served = ", ".join(f"{type_} {count}" for type_, count in runs[OURS]["served"].items()) or "none"
            for width, ours in runs[OURS]["costs"].items():
                stock = runs[STOCK]["costs"][width]
                percent, error = difference(ours, stock)
                judged = verdict(percent, error, arguments.limit)
                cells = [name, served, width, perplexity(stock), perplexity(ours)]
                cells += [f"{percent:+.3f}%", f"{error:.3f}%", judged]
                if reference is not None:
                    cells += [perplexity(reference[width]), *(distance(one, reference[width]) for one in (stock, ours))]
                table.add_row(*cells)
                if judged == "missed":
                    missed.append(f"{name} at width {width}: {percent:+.3f}%")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if missed:
        sys.exit(f"more than {arguments.limit}% from stock: " + "; ".join(missed))


if __name__ == "__main__":
    main()
