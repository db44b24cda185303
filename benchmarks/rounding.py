"""What the rounding of our kernels does to a model, beside that of llama.cpp's.

    python benchmarks/rounding.py perplexity MODEL [--types Q4_0 Q4_K_S ...] [--tokens 3072] [--reference]
    python benchmarks/rounding.py flips MODEL [--widths 4 8 16 64] [--tokens 1024]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

import common
from common import fixed_text
from medusa_cli.converters.gguf.file_types import FILE_TYPES
from rich.table import Table

from medusa_cli import native
from medusa_cli.bench.process import Remote
from medusa_cli.support.errors import MedusaError

AS_IS = "as-is"
TYPES = (AS_IS, "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K_S", "Q5_K_S", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")
WINDOW, WIDE, NARROW = 512, 64, 1
CHUNK = 64  # tokens whose differences count as one: those of neighbours are not independent
F16 = 1  # general.file_type
SIDES = {"ours": False, "stock": True}
"""Whether the kernels are llama.cpp's."""


class Scores:
    """A model in a process of its own."""

    def __init__(self, path: str) -> None:
        self._model = native.Model(path)

    def costs(self, tokens: int, narrow: int, more: list[str]) -> dict[str, Any]:
        """Of each token (-ln p) at both widths, and the matrices that run on our kernels by type.

        On half of the processors: both sides run at the same time.
        """
        from _native_testing import score

        threads = max(1, (os.cpu_count() or 2) // 2)
        text = fixed_text(self._model, tokens, list(map(Path, more)))
        wide = [
            cost
            for begin in range(0, tokens, WINDOW)
            for cost in score(self._model, text[begin : begin + WINDOW], width=WIDE, n_threads=threads)[1]
        ]
        costs = {WIDE: wide}
        if narrow:
            costs[NARROW] = score(self._model, text[:narrow], width=NARROW, n_threads=threads)[1]
        buffer = native.kernel_info()["buffer"]
        served = {group.type: group.tensors for group in self._model.placement if group.buffer == buffer}
        return {"costs": costs, "served": served}

    def flips(self, widths: list[int], tokens: int) -> dict[int, list[float]]:
        """Width -> [positions that differ from width 1, largest change of a token's cost]."""
        from _native_testing import score

        text = fixed_text(self._model, tokens)
        best, costs = score(self._model, text, width=1)
        found: dict[int, list[float]] = {}
        for width in widths:
            other_best, other_costs = score(self._model, text, width=width)
            flips = sum(a != b for a, b in zip(best, other_best, strict=True))
            found[width] = [flips, max(abs(a - b) for a, b in zip(costs, other_costs, strict=True))]
        return found


def scored(path: Path, stock: bool, method: str, *arguments: Any) -> Any:
    with Remote(Scores, str(path), stock_kernels=stock) as worker:
        return worker.call(method, *arguments)


@dataclass
class Perplexity:
    """Perplexity of a fixed text with our kernels and with the stock ones, for a model quantized again to each type.

    MODEL is a GGUF or `demo`. --types: GGUF file types, or as-is; every matrix gets that one type where its rows fill
    the blocks (the column "matrices on kernels" shows what it became). The text, the project's own passages and then
    the files of --text, is cut into windows of 512 tokens, decoded 64 at a time; its first --narrow tokens also one by
    one (0: not). Both sides score the same tokens; the standard error is that of the mean difference, over chunks of 64
    tokens. "within": the limit (--limit, in percent) is kept with two standard errors to spare; "missed": it is
    exceeded by more than two, and the script exits with 1; "too short": the text cannot tell. --reference asks which of
    the two is nearer to the truth: the same weights as F16, multiplied by llama.cpp with activations that are not
    quantized.
    """

    model: str
    _: KW_ONLY
    types: tuple[str, ...] = TYPES
    tokens: int = 3072
    text: tuple[Path, ...] = ()
    narrow: int = 512
    limit: float = 0.5
    reference: bool = False

    def run(self) -> None:
        # The standard error needs two chunks.
        if 0 < self.narrow < 2 * CHUNK or self.tokens < 2 * CHUNK:
            raise MedusaError(f"--tokens and --narrow: at least {2 * CHUNK} (--narrow: or 0)")
        source = common.find_model(self.model).path
        columns = ["file type", "matrices on kernels", "width", "stock", "ours", "difference", "standard error"]
        columns += ["verdict", *(["reference", "stock off by", "ours off by"] if self.reference else [])]
        table = Table(*columns, title="perplexity")
        missed = []
        with tempfile.TemporaryDirectory() as folder:
            for name, path in self._requantized(source, Path(folder)):
                missed += self._measure(name, path, table)
        common.show(table)
        if missed:
            raise MedusaError(f"more than {self.limit}% from stock: " + "; ".join(missed))

    def _requantized(self, source: Path, folder: Path) -> Iterator[tuple[str, Path]]:
        """Name and file of the model in each type; each file is removed before the next is made."""
        numbers = {name: number for number, name in FILE_TYPES.items()}
        if unknown := set(self.types) - {AS_IS, *numbers}:
            raise MedusaError(f"no file type {', '.join(unknown)}: there are {', '.join(numbers)}")
        for name in self.types:
            if name == AS_IS:
                yield name, source
                continue
            path = folder / f"{name}.gguf"
            native.quantize_model(str(source), str(path), file_type=numbers[name], allow_requantize=True, pure=True)
            yield name, path
            path.unlink()

    def _measure(self, name: str, path: Path, table: Table) -> list[str]:
        """Adds the rows of one file; lines for what is missed."""
        asked = ("costs", self.tokens, self.narrow, list(map(str, self.text)))
        with ThreadPoolExecutor() as pool:
            jobs = {side: pool.submit(scored, path, stock, *asked) for side, stock in SIDES.items()}
        ours_by_width, stock_by_width = (jobs[side].result()["costs"] for side in SIDES)
        served = jobs["ours"].result()["served"]
        reference = None
        if self.reference:
            with tempfile.TemporaryDirectory() as folder:
                exact = Path(folder) / "reference.gguf"
                native.quantize_model(str(path), str(exact), file_type=F16, allow_requantize=True, pure=True)
                reference = scored(exact, True, *asked)["costs"]
        missed = []
        for width, ours in ours_by_width.items():
            stock = stock_by_width[width]
            percent, error = difference(ours, stock)
            judged = verdict(percent, error, self.limit)
            cells = [name, ", ".join(f"{type_} {count}" for type_, count in served.items()) or "none", width]
            cells += [perplexity(stock), perplexity(ours), f"{percent:+.3f}%", f"{error:.3f}%", judged]
            if reference is not None:
                cells += [perplexity(reference[width]), *(distance(one, reference[width]) for one in (stock, ours))]
            table.add_row(*cells)
            if judged == "missed":
                missed.append(f"{name} at width {width}: {percent:+.3f}%")
        return missed


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


@dataclass
class Flips:
    """How often the width of a forward pass flips the token that a model finds most likely.

    A fixed text is decoded from its beginning to its end, one token at a time and then in pieces of each width, with
    our kernels and with the stock ones: the same tokens, the same cache, cells in the order of the text. Counted are
    the positions whose argmax is not that of width 1.
    """

    model: str
    _: KW_ONLY
    widths: tuple[int, ...] = (4, 8, 16, 64)
    tokens: int = 1024

    def run(self) -> None:
        path = common.find_model(self.model).path
        runs = {side: scored(path, stock, "flips", self.widths, self.tokens) for side, stock in SIDES.items()}
        columns = (f"{side}: {what}" for side in runs for what in ("flips", "share", "largest change of -ln p"))
        table = Table("width", *columns)
        for width in self.widths:
            cells = []
            for run in runs.values():
                flips, change = run[width]
                cells += [str(flips), f"{100 * flips / self.tokens:.2f}%", f"{change:.4f}"]
            table.add_row(str(width), *cells)
        common.show(table)


def parser() -> ArgumentParser:
    return common.parser(__doc__, Perplexity, Flips)


if __name__ == "__main__":
    common.main(parser())
