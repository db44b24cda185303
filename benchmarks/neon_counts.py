"""How many instructions the NEON products execute, counted under qemu: no ARM processor is needed.

    python benchmarks/neon_counts.py BUILD [--ggml FOLDER_OF_GGML_H] [--compiler clang++-19]
        [--isa neon-i8mm] [--types q4_0 q4_K ...] [--widths 1 2 4 8 9 16] [--models neoverse-n1 ...]

BUILD: a folder of the kernel lab, cross-compiled for 64-bit ARM; with --ggml it is (re)built first. The lab computes
each product once; qemu writes down the address of every instruction executed within. Needs qemu-aarch64 (one that knows
-singlestep), cmake, aarch64-linux-gnu-g++ and its objdump and nm.

A block is 32 weights of one row. Printed for each type and number of columns: instructions per block, multiplications
per instruction, the share of sdot and smmla among all, and that of loads and stores on the stack. With --models also
cycles per block, as llvm-mca-19 estimates them for a core: it knows the core's units, but no caches and no mispredicted
branches, and takes the instructions for one group of rows as one straight line.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

TYPES = ("q4_0", "q4_1", "q5_0", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "mxfp4")
WIDTHS = (1, 2, 4, 8, 9, 16)
BLOCK, GROUP, SUPER_BLOCK = 32, 16, 256  # weights of a block, rows of a group, columns of the shortest row
ROWS, COLUMNS = 256, 512
TILES = r"multiply_(tile|pairs)"
OTHERS = r"anonymous namespace\)::(multiply\(|run|dispatch|interleave|lay_out|scratch|in_strips)"
DOTS, SHARES = ("sdot", "smmla"), ("dots", "stack")
EXECUTED = re.compile(rb"^Trace 0: \S+ \[[0-9a-f]+/([0-9a-f]+)/", re.MULTILINE)
LISTED = re.compile(r"^ +([0-9a-f]+):\t(\S+)(?:\t(.*))?$", re.MULTILINE)


@dataclass
class Program:
    """What lies where. `tiles` and `others`: addresses of the products; `entries`: where a product begins."""

    path: Path
    listing: dict[int, str]
    tiles: list[range]
    others: list[range]
    entries: set[int]

    @property
    def filter(self) -> str:
        spans = self.tiles + self.others
        return f"{min(span.start for span in spans):#x}..{max(span.stop for span in spans) - 1:#x}"


def build(folder: Path, ggml: Path, compiler: str) -> None:
    source = Path(__file__).parents[1] / "native" / "lab"
    options = {
        "GGML_INCLUDE_DIR": str(ggml),
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_CXX_COMPILER_TARGET": "aarch64-linux-gnu",  # of Clang; GCC is built for one
        "CMAKE_EXE_LINKER_FLAGS": "-static",
    }
    command = ["cmake", "-S", str(source), "-B", str(folder), *(f"-D{name}={value}" for name, value in options.items())]
    subprocess.run(command, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(folder)], check=True, stdout=sys.stderr)


def read_program(path: Path) -> Program:
    symbols = subprocess.check_output(["aarch64-linux-gnu-nm", "-S", "--demangle", str(path)], text=True)
    tiles: list[range] = []
    others: list[range] = []
    entries = set()
    for start, size, name in re.findall(r"^([0-9a-f]+) ([0-9a-f]+) [tTwW] (.*)$", symbols, re.MULTILINE):
        span = range(int(start, 16), int(start, 16) + int(size, 16))
        if re.search(rf"\b{TILES}<", name):
            tiles.append(span)
        elif re.search(OTHERS, name):
            others.append(span)
            if "::multiply(medusa::kernels::Format" in name:
                entries.add(span.start)
    text = subprocess.check_output(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(path)], text=True)
    return Program(path, listing_of(text), tiles, others, entries)


def listing_of(text: str) -> dict[int, str]:
    """Address -> instruction without comments, each target of a branch replaced by one label."""
    found = {}
    for address, name, operands in LISTED.findall(text):
        operands = re.sub(r"\b[0-9a-f]+ <[^>]*>", "target", operands.split(" //")[0])
        found[int(address, 16)] = f"{name}\t{operands}".strip()
    return found


def trace(program: Program, isa: str, type_: str, widths: Iterable[int], rows: int, columns: int) -> list[int]:
    """The addresses of all instructions executed in products of these widths and of 1, one after another."""
    command = ["qemu-aarch64", "-cpu", "max", "-singlestep", "-d", "exec,nochain", "-dfilter", program.filter]
    command += [str(program.path), "--once", "--isa", isa, "--type", type_, "--rows", str(rows)]
    command += ["--columns", str(columns), "--widths", ",".join(map(str, widths))]
    log = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True).stderr
    return [int(address, 16) for address in EXECUTED.findall(log)]


def products(addresses: Iterable[int], entries: set[int]) -> Iterator[list[int]]:
    """The trace, cut where a product begins; what comes before the first is left out."""
    current: list[int] | None = None
    for address in addresses:
        if address in entries:
            if current:
                yield current
            current = []
        if current is not None:
            current.append(address)
    if current:
        yield current


def inside(addresses: Iterable[int], spans: list[range]) -> list[int]:
    wanted = {address for span in spans for address in span[::4]}
    return [address for address in addresses if address in wanted]


@dataclass
class Counts:
    blocks: int
    columns: int
    instructions: int
    dots: int
    stack: int

    def row(self) -> dict[str, float]:
        return {
            "instructions": self.instructions / self.blocks,
            "products": self.blocks * self.columns * BLOCK / self.instructions,
            "dots": self.dots / self.instructions,
            "stack": self.stack / self.instructions,
        }


def count(addresses: Iterable[int], listing: dict[int, str], blocks: int, columns: int) -> Counts:
    times = Counter(addresses)
    kinds = {address: listing[address] for address in times}
    return Counts(
        blocks,
        columns,
        times.total(),
        sum(times[address] for address, text in kinds.items() if text.split("\t")[0] in DOTS),
        sum(times[address] for address, text in kinds.items() if re.match(r"(ld|st)\w+\t.*\[sp", text)),
    )


def cycles(instructions: list[str], model: str) -> int:
    """What llvm-mca takes this model of a core to need for these instructions, in this order."""
    # It takes 100 cycles for any call.
    source = "".join(text + "\n" for text in instructions if text.split("\t")[0] not in ("ret", "bl"))
    command = ["llvm-mca-19", "-mtriple=aarch64", f"-mcpu={model}", "-mattr=+dotprod,+i8mm,+fp-armv8", "-iterations=1"]
    out = subprocess.run(command, input=source, stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(re.findall(r"^Total Cycles: +(\d+)", out, re.MULTILINE)[0])


Row = dict[str, object]


def measure(program: Program, isa: str, type_: str, widths: list[int], models: list[str]) -> Iterator[Row]:
    every = sorted({1, *widths})
    traces = products(trace(program, isa, type_, every, ROWS, COLUMNS), program.entries)
    short = products(trace(program, isa, type_, every, GROUP, SUPER_BLOCK) if models else [], program.entries)
    for n, addresses in zip(every, traces, strict=True):
        counted = inside(addresses, program.tiles + program.others)
        row = count(counted, program.listing, ROWS * COLUMNS // BLOCK, n).row()
        straight = [program.listing[address] for address in inside(next(short, []), program.tiles)]
        for model in models:
            row[model] = cycles(straight, model) / (GROUP * SUPER_BLOCK // BLOCK)
        if n in widths:
            yield {"isa": isa, "type": type_, "columns": n, **row}


def table_row(row: Row) -> str:
    """Shares as percentages, other fractions with one digit."""
    cells = [
        f"{value:.0%}" if name in SHARES else f"{value:.1f}" if isinstance(value, float) else str(value)
        for name, value in row.items()
    ]
    return "| " + " | ".join(cells) + " |"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--ggml", type=Path, help="build first: the folder of ggml.h")
    parser.add_argument("--compiler", default="aarch64-linux-gnu-g++")
    parser.add_argument("--isa", nargs="+", default=["neon-dotprod", "neon-i8mm"])
    parser.add_argument("--types", nargs="+", default=TYPES)
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    parser.add_argument("--models", nargs="*", default=[], help="cores that llvm-mca-19 knows")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    if arguments.ggml:
        build(arguments.build, arguments.ggml.resolve(), arguments.compiler)
    program = read_program(arguments.build / "kernel_lab")
    head = ["kernels", "type", "columns", "instructions", "products", *SHARES, *arguments.models]
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for isa in arguments.isa:
        for type_ in arguments.types:
            for row in measure(program, isa, type_, arguments.widths, arguments.models):
                print(table_row(row), flush=True)


if __name__ == "__main__":
    main()
