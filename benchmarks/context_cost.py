"""What one pass over n tokens costs behind texts of several lengths, beside a plain read of the cache.

    python benchmarks/context_cost.py MODEL [--contexts 64 4096] [--widths 1 8] [--rounds 3] [--no-stock]
                                      [--threads 0] [--out costs.json] [--plot costs.svg]

Ours and unmodified llama.cpp kernels (MEDUSA_ISA=off) are measured in turn, in two processes. "reads" says how many
plain reads of the cache (at the speed of `machine_limits` in the same run) one pass takes longer than behind the
shortest text. With --out, what the file has is not measured again; --plot draws all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SIDES = {"ours": None, "stock": "off"}


class Worker:
    """A process with the model loaded."""

    def __init__(self, model: str, isa: str | None, threads: int) -> None:
        environment = dict(os.environ) | ({} if isa is None else {"MEDUSA_ISA": isa})
        self.process = subprocess.Popen(
            [sys.executable, __file__, model, "--worker", "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, what: str, *numbers: int) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps([what, *numbers]), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("a worker process ended early")
        return json.loads(line)


def work(model_path: str, threads: int) -> None:
    """Answers ["context", tokens, widest], ["pass", width], ["bandwidth"] and ["cache"], one a line."""
    from medusa_cli import native
    from medusa_cli.decoding import offload
    from medusa_cli.models import references

    path = references.resolve(model_path, Console(stderr=True)).path
    model = native.Model(str(path))
    timer: Any = None
    for line in sys.stdin:
        what, *numbers = json.loads(line)
        answer: Any = None
        if what == "context":
            timer = native.VerifyTimer(model, numbers[1], position=numbers[0], hidden=False, n_threads=threads)
        elif what == "pass":
            # The first pass builds the graph and warms the caches.
            answer = statistics.median(timer.time(numbers[0], passes=4)[1:])
        elif what == "bandwidth":
            answer = native.machine_limits(n_threads=threads, rounds=5)[0]
        else:
            shape = offload.shape_of(native.read_gguf(str(path)))
            answer = 2 * (sum(shape.keys) + sum(shape.values))
        print(json.dumps(answer), flush=True)


def measure(arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    """Fills `found`: {"cache": bytes of a token, "bandwidth": bytes per second, SIDE: {context: {width: ms}}}."""
    sides = [side for side in SIDES if side == "ours" or not arguments.no_stock]
    workers = {side: Worker(arguments.model, SIDES[side], arguments.threads) for side in sides}
    found["cache"] = workers["ours"].ask("cache")
    found["bandwidth"] = max(found.get("bandwidth", 0), workers["ours"].ask("bandwidth"))
    for context in arguments.contexts:
        wanted = {
            side: [width for width in arguments.widths if str(width) not in found[side].get(str(context), {})]
            for side in sides
        }
        for side in sides:
            if wanted[side]:
                workers[side].ask("context", context, max(arguments.widths))
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(arguments.rounds):
            for width in arguments.widths:
                for side in sides:
                    if width in wanted[side]:
                        times.setdefault((side, width), []).append(workers[side].ask("pass", width))
        for (side, width), all_of in times.items():
            found[side].setdefault(str(context), {})[str(width)] = statistics.median(all_of)
        found["bandwidth"] = max(found["bandwidth"], workers["ours"].ask("bandwidth"))
        if arguments.out:
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")


def show(found: dict[str, Any]) -> None:
    print(f"one plain read: {found['bandwidth'] / 1e9:.1f} GB/s; {found['cache']} bytes a token")
    table = Table("kernels", "context", "tokens", "ms", "of T(1)", "reads")
    for side in SIDES:
        shortest = min(found[side], key=int, default=None)
        for context, times in found[side].items():
            for width, ms in times.items():
                start = found[side][shortest].get(width)
                read = int(context) * found["cache"] / found["bandwidth"] * 1e3
                reads = "" if context == shortest or start is None else f"{(ms - start) / read:.2f}"
                relative = f"{ms / times['1']:.2f}" if "1" in times else ""
                table.add_row(side, context, width, f"{ms:.2f}", relative, reads)
    Console().print(table)


def draw(found: dict[str, Any], path: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "context"
    figure = Figure(figsize=(8, 4), layout="constrained")
    for axes, side in zip(figure.subplots(1, 2, sharey=True), SIDES, strict=True):
        widths: list[int] = []
        for context, times in found[side].items():
            points = sorted((int(width), ms) for width, ms in times.items())
            widths = [width for width, _ in points]
            axes.plot(*zip(*points, strict=True), marker=".", label=f"behind {int(context):,}")
        axes.set(title=side, xlabel="tokens of a pass", xscale="log", yscale="log")
        axes.set_xticks(widths, map(str, widths), minor=False)
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda ms, _: f"{ms:g}")
        axes.grid(axis="y", alpha=0.3)
        axes.legend(fontsize="small", loc="upper left", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("milliseconds")
    figure.savefig(path, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--contexts", type=int, nargs="+", default=[64, 4096])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--no-stock", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.model, arguments.threads)
    found: dict[str, Any] = {side: {} for side in SIDES}
    if arguments.out and arguments.out.exists():
        found = json.loads(arguments.out.read_text())
    measure(arguments, found)
    show(found)
    if arguments.plot:
        draw(found, arguments.plot)


if __name__ == "__main__":
    main()
