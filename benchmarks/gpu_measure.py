"""Everything that is to be known of a GPU, in one go of at most 20 minutes.

    GGML_BACKEND_PATH=libggml-cuda.so python benchmarks/gpu_measure.py --json gpu.json
    python benchmarks/gpu_measure.py --json gpu.json [--only passes,speed] [--minutes 9] [--again] [--show]
                                     [--size 7b] [--contexts 512,4096,8192] [--widest 64] [--folder DIR]
                                     [--text-model demo] [--heads FILE] [--draft-model FILE] [--device NAME]

Needs medusa with a GPU build of llama-cpp-python, or the stock one and a backend built as a module, which
GGML_BACKEND_PATH names (docs/gpu.md has both). Nothing is fetched but the text model `demo`, once; a machine without
a network needs its base file (MEDUSA_DEMO_MODEL), or leaves out `texts` and `methods`. The first step makes the model
whose passes are timed: 4.4 GB of random weights in the shape of Mistral 7B, Q4_K_M (--size 1b: 0.7 GB).

    step      what it finds                                                               seconds at most
    model     the made-up model and its Medusa and Hydra heads, in --folder               120
    passes    T(n) for n = 1..widest at all contexts but the last; T(1), T(widest) there  180
    overhead  a step beyond its bare pass: 16 nodes, widest nodes. Goals: 6%, 12% of T(1)  90
    speed     speed over plain with 2.3 and 3.2 tokens per step (acceptance made up),     200
              as a share of tokens per step / (T(n)/T(1)). Goal: 0.92
    texts     greedy texts of the text model, drafted and plain: equal, or explained      120
    methods   plain, medusa, llama.cpp's own drafting: `medusa bench` on the text model   150
    tests     the tests of engine and devices, where the repository is at hand            300

Every step runs in a process of its own (ggml ends a process on a CUDA error) and stops when its time is up; each row
is written to the JSON file as it is found. Run again with the same file, what is there is not measured again and what
was cut short goes on: several short calls do as well as one. --minutes: of this call; steps that do not fit into it
are left to the next one. --again measures anew. --show prints what the file holds. Exits with 1 when a step failed, a
difference of texts is not explained, or a test failed; a goal that is missed is shown, and no failure.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import made_up_model
from gpu_steps import BENCH_KEYS, GRACE, STEPS, WHOLE, Order, Row, TimeUp, Unavailable
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.support.atomic import atomic_file

SECONDS = {"model": 120, "passes": 180, "overhead": 90, "speed": 200, "texts": 120, "methods": 150, "tests": 300}
MEASURED_WITH = ("size", "contexts", "widest", "text_model", "heads", "draft_model", "threads", "device")
"""Of an order: results of different ones do not belong into one file."""
DONE, CUT, FAILED, SKIPPED = "done", "cut short", "failed", "skipped"
LIST = "benchmarks/gpu_measure.py: "
GOAL_SHARE, GOALS_BEYOND = 0.92, (0.06, 0.12)
"""Of the speedup that is promised; most that a step takes beyond its pass, with the smaller tree and the larger."""


class Results:
    """The JSON file: {"machine", "settings", "steps": {name: {"state", "why", "seconds", "rows"}}}."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {"steps": {}}

    def step(self, name: str) -> dict[str, Any]:
        empty = {"state": CUT, "why": "", "seconds": 0.0, "rows": []}
        found: dict[str, Any] = self.content["steps"].setdefault(name, empty)
        return found

    def save(self) -> None:
        with atomic_file(self.path) as file:
            file.write(json.dumps(self.content, indent=1).encode())


def work(path: Path, name: str, order: Order, pretend: bool) -> None:
    """One step, in a process of its own: rows go to the file as they come."""
    if pretend:
        import _native_testing as testing

        testing.pretend_device()
    results = Results(path)
    step, begin = results.step(name), time.monotonic()
    if name in WHOLE:
        step["rows"] = []
    before = step["seconds"]
    step.update(state=FAILED, why="the process ended")  # unless it comes to say something else
    results.save()
    state, why = DONE, ""
    try:
        for row in STEPS[name](order, list(step["rows"])):
            step["rows"].append(row)
            step["seconds"] = before + time.monotonic() - begin
            results.save()
            if name not in WHOLE and time.monotonic() - begin > order.seconds:
                raise TimeUp
    except TimeUp:
        state, why = CUT, f"{order.seconds:.0f} seconds were up"
    except Unavailable as missing:
        state, why = SKIPPED, str(missing)
    except (native.NativeError, OSError) as error:
        state, why = FAILED, " ".join(str(error).split())
    step.update(state=state, why=why, seconds=before + time.monotonic() - begin)
    results.save()


def run_step(results: Results, name: str, order: Order, arguments: argparse.Namespace) -> None:
    """Starts that process, and ends it where it hangs."""
    command = [
        sys.executable,
        __file__,
        "--json",
        str(results.path),
        "--work",
        name,
        "--order",
        json.dumps(asdict(order)),
    ]
    process = subprocess.Popen(command + ["--pretend"] * arguments.pretend, stderr=subprocess.PIPE, text=True)
    hung = False
    try:
        _, errors = process.communicate(timeout=order.seconds + 3 * GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        hung, (_, errors) = True, process.communicate()
    results.content = Results(results.path).content
    if process.returncode or hung:
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        results.step(name).update(state=FAILED, why="it hung and was ended" if hung else last)
    judge(name, results.step(name))
    results.save()


def judge(name: str, step: dict[str, Any]) -> None:
    """A wrong text or a failed test is a failed step."""
    if step["state"] not in (DONE, CUT):
        return
    wrong = [f"{row['tree']}/{row['prompt']}" for row in step["rows"] if name == "texts" and not row["explained"]]
    if wrong:
        step.update(state=FAILED, why=f"not explained: {', '.join(wrong)}")
    counts = step["rows"][-1]["counts"] if name == "tests" and step["rows"] else {}
    if counts.get("failed") or counts.get("error"):
        step.update(state=FAILED, why=f"failed: {', '.join(step['rows'][-1]['failed'])}")
    if name in ("methods", "tests") and step["state"] == DONE and step["rows"] == []:
        step.update(state=FAILED, why="it found nothing")


def machine(pretend: bool) -> dict[str, Any]:
    if pretend:
        import _native_testing as testing

        testing.pretend_device()
    devices = [device for device in native.system_info()["devices"] if device["type"] != "cpu"]
    return {
        "devices": [f"{one['name']}: {one['description']} ({one['backend']})" for one in devices],
        "system": platform.platform(),
        "kernels": native.kernel_info()["selected"],
        "libllama": native.libllama_version(),
        "llama_cpp_python": native.LLAMA_CPP_PYTHON,
    }


# --- tables -----------------------------------------------------------------------------------------------


def passes_table(rows: Sequence[Row]) -> Table:
    contexts = sorted({row["context"] for row in rows})
    ms = {(row["context"], row["nodes"]): row["ms"] for row in rows}
    table = Table("n", *(f"at {context}" for context in contexts), title="Passes over n tokens: ms, and T(n)/T(1)")
    for n in sorted({row["nodes"] for row in rows}):
        cells = [(ms.get((context, n)), ms.get((context, 1))) for context in contexts]
        table.add_row(str(n), *("" if t is None or one is None else f"{t:.2f}  {t / one:.2f}" for t, one in cells))
    return table


def overhead_table(rows: Sequence[Row]) -> Table:
    title = "Steps: ms; beyond the pass, in T(1)"
    table = Table("nodes", "at", "heads", "T(1)", "T(n)", "step", "beyond", "heads alone", "goal", title=title)
    largest = max(row["nodes"] for row in rows)
    for row in rows:
        goal = GOALS_BEYOND[row["nodes"] == largest]
        times = (f"{row[key]:.2f}" for key in ("pass_1_ms", "pass_ms", "step_ms"))
        shares = f"{row['beyond']:.1%}", f"{row['drafting']:.1%}"
        table.add_row(
            str(row["nodes"]), str(row["context"]), row["heads"], *times, *shares,
            f"{goal:.0%} {verdict(row['beyond'] <= goal)}",
        )  # fmt: skip
    return table


def speed_table(rows: Sequence[Row]) -> Table:
    title = f"Speed over plain; share: of tokens per step / (T(n)/T(1)), goal {GOAL_SHARE}"
    table = Table("at", "heads", "nodes", "tok/step", "T(n)/T(1)", "plain tok/s", "speedup", "share", title=title)
    for row in rows:
        place = str(row["context"]), row["heads"], str(row["nodes"])
        figures = row["tokens_per_step"], row["pass_cost"], row["plain_tokens_per_second"], row["speedup"]
        share = f"{row['share']:.2f} {verdict(row['share'] >= GOAL_SHARE)}"
        table.add_row(*place, *(f"{figure:.2f}" for figure in figures), share)
    return table


def texts_table(rows: Sequence[Row]) -> Table:
    table = Table("tree", "texts", "identical", "explained", "wrong", "tok/step", "speedup", title="Greedy texts")
    for tree in dict.fromkeys(row["tree"] for row in rows):
        mine = [row for row in rows if row["tree"] == tree]
        differing = [row for row in mine if row["first_difference"] is not None]
        wrong = sum(not row["explained"] for row in differing)
        means = (f"{sum(row[key] for row in mine) / len(mine):.2f}" for key in ("tokens_per_step", "speedup"))
        counts = len(mine), len(mine) - len(differing), len(differing) - wrong, wrong
        table.add_row(tree, *map(str, counts), *means)
    return table


def methods_table(rows: Sequence[Row]) -> Table:
    table = Table("method", "tok/s", "of stock", "of plain", "tok/step", title="Methods")
    for row in rows:
        figures = (row[key] for key in BENCH_KEYS[:4])
        table.add_row(row["method"], *("" if figure is None else f"{figure:.2f}" for figure in figures))
    return table


def tests_table(rows: Sequence[Row]) -> Table:
    counts = rows[-1]["counts"]
    table = Table(*counts, title="Tests")
    table.add_row(*map(str, counts.values()))
    return table


def verdict(met: bool) -> str:
    return "met" if met else "missed"


TABLES = {
    "passes": passes_table, "overhead": overhead_table, "speed": speed_table, "texts": texts_table,
    "methods": methods_table, "tests": tests_table,
}  # fmt: skip


def show(results: Results, console: Console) -> None:
    """What the file holds: how the steps went, then a table of each."""
    for line in results.content.get("machine", {}).get("devices") or ["no GPU: this is the CPU"]:
        console.print(line, markup=False, highlight=False)
    table = Table("step", "state", "s", "rows", "")
    for name in STEPS:
        if name in results.content["steps"]:
            step = results.step(name)
            table.add_row(name, step["state"], f"{step['seconds']:.0f}", str(len(step["rows"])), step["why"])
    console.print(table)
    for name, make in TABLES.items():
        if rows := results.content["steps"].get(name, {}).get("rows"):
            console.print(make(rows))


# --- the command line ----------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", default=",".join(STEPS))
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--size", choices=made_up_model.SIZES, default="7b")
    parser.add_argument("--contexts", default="512,4096,8192")
    parser.add_argument("--widest", type=int, default=64)
    parser.add_argument("--folder", default="build/gpu")
    parser.add_argument("--text-model", default="demo")
    parser.add_argument("--heads")
    parser.add_argument("--draft-model")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--tests", default="tests/engine,tests/device")
    parser.add_argument("--pretend", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--order", help=argparse.SUPPRESS)
    return parser


def order_of(arguments: argparse.Namespace) -> Order:
    contexts = tuple(sorted(int(part) for part in arguments.contexts.split(",")))
    return Order(
        arguments.size, arguments.folder, contexts, arguments.widest, arguments.text_model, arguments.heads,
        arguments.draft_model, arguments.threads, arguments.device, tuple(arguments.tests.split(",")), 0.0,
    )  # fmt: skip


def begin(results: Results, order: Order, arguments: argparse.Namespace) -> None:
    """Notes what is measured where. Ends the program where the file holds something else."""
    settings = json.loads(json.dumps({key: value for key, value in asdict(order).items() if key in MEASURED_WITH}))
    here = machine(arguments.pretend)
    for key, value in (("settings", settings), ("machine", here)):
        if results.content.setdefault(key, value) != value:
            sys.exit(f"{LIST}{results.path} holds results of other {key}: give another file with --json")
    if arguments.again:
        for name in arguments.only.split(","):
            results.content["steps"].pop(name, None)
    results.save()


def main() -> None:
    arguments = parser().parse_args()
    results = Results(arguments.json)
    if arguments.work:
        order = Order(**json.loads(arguments.order))
        return work(arguments.json, arguments.work, order, arguments.pretend)
    if arguments.show:
        return show(results, Console())
    wanted = arguments.only.split(",")
    if unknown := [name for name in wanted if name not in STEPS]:
        sys.exit(f"{LIST}no step {unknown[0]!r}: there are {', '.join(STEPS)}")
    order, deadline = order_of(arguments), time.monotonic() + 60 * arguments.minutes
    begin(results, order, arguments)
    for name in [name for name in STEPS if name in wanted and results.step(name)["state"] != DONE]:
        seconds = min(SECONDS[name], deadline - time.monotonic() - GRACE)
        if seconds <= 0:
            results.step(name)["why"] = "no time was left"
            results.save()
            continue
        run_step(results, name, Order(**{**asdict(order), "seconds": seconds}), arguments)
        step = results.step(name)
        print(f"{name}: {step['state']}, {step['seconds']:.0f} s {step['why']}".rstrip(), file=sys.stderr, flush=True)
    show(results, Console())
    sys.exit(any(results.step(name)["state"] == FAILED for name in wanted))


if __name__ == "__main__":
    main()
