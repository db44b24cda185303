"""What gpu_measure.py measures, step by step. Each step yields rows as it finds them, and leaves out those it is given.

Acceptance is made up where a model is: each first child of a tree is accepted with one probability, whatever the model
says (native.Accept, "synthetic"). Passes, heads, transfers and sampling at each accepted node are real, and none of
them takes longer or shorter for what a token says.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lossless
import made_up_model
from medusa_cli.converters.heads import schema
from rich.console import Console

from medusa_cli import native
from medusa_cli.decoding import prompts, tree_search
from medusa_cli.models import references
from medusa_cli.prompts import bench_set
from medusa_cli.support.children import child

ROOT = Path(__file__).parent.parent
PROMPTS = Path(__file__).with_name("prompts.jsonl")
KINDS: tuple[schema.Kind, ...] = ("medusa", "hydra")
RANKS = [0.52, 0.13, 0.06, 0.04, 0.03, 0.02, 0.02, 0.01, 0.01, 0.01]
"""How often a head's n-th guess is right, about as the demo's heads: this shapes the trees, and nothing else."""
WARM_UP, PASSES, ROUNDS = 3, 5, 3
"""Passes of one width in a row that do not count (graphs are captured) and that do; rounds of interleaved answers."""
ANSWER, PLAIN_ANSWER = 192, 64
"""Tokens of a drafted and a plain answer to the made-up model."""
TEXT_SIZES = (8, 16, 64)
DYNAMIC = "dynamic"
METHODS = "stock,plain,medusa,medusa+lookup,llama-lookup"

Row = dict[str, Any]
Step = Callable[["Order", Sequence[Row]], Iterator[Row]]


class Unavailable(Exception):
    """A step cannot be done here; the message says what is missing."""


class TimeUp(Exception):
    """The time was up before the step was done; the rows that it has given hold all the same."""


@dataclass(frozen=True)
class Order:
    """What is to be measured. contexts: ascending; passes of all widths at all but the last, the widest at the last.

    threads: of the CPU's part, 0 for all cores. seconds: this step's, from its start. Paths are texts, for JSON.
    """

    size: str
    folder: str
    contexts: tuple[int, ...]
    widest: int
    text_model: str
    heads: str | None
    draft_model: str | None
    threads: int
    device: str | None
    tests: tuple[str, ...]
    seconds: float

    @property
    def base(self) -> Path:
        return Path(self.folder) / f"{self.size}.gguf"

    def heads_of(self, kind: str) -> Path:
        return Path(self.folder) / f"{self.size}-{kind}.gguf"

    def open_base(self) -> native.Model:
        """Unavailable before the step that makes it."""
        if not all(path.exists() for path in (self.base, *map(self.heads_of, KINDS))):
            raise Unavailable("there is no made-up model: run the step `model` first")
        return self.load(str(self.base))

    def load(self, path: str) -> native.Model:
        names = None if self.device is None else [] if self.device == "none" else self.device.split(",")
        return native.Model(path, devices=names)


def tree_of(nodes: int) -> native.Tree:
    """The likeliest tree of so many nodes, root included."""
    return native.Tree(tree_search.greedy_tree([RANKS] * made_up_model.HEADS, nodes))


def rate_for(tokens_per_step: float, depth: int) -> float | None:
    """r with 1 + r + ... + r^depth tokens per step, None where that is out of reach."""
    if tokens_per_step > 1 + depth:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(middle**i for i in range(depth + 1)) > tokens_per_step else (middle, high)
    return low


def random_prompt(model: native.Model, tokens: int) -> list[int]:
    """No special tokens, no bytes."""
    return [300 + (index * 7919) % (model.n_vocab - 300) for index in range(tokens)]


def pass_ms(timer: native.VerifyTimer, width: int) -> float:
    timer.time(width, passes=WARM_UP)
    return statistics.median(timer.time(width, passes=PASSES))


def first_child_depth(tree: native.Tree) -> int:
    return max((len(choice) for choice in tree.choices if not any(choice)), default=0)


# --- steps ---------------------------------------------------------------------------------------


def model(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """The made-up model and its heads, on the disk."""
    size = made_up_model.SIZES[order.size]
    Path(order.folder).mkdir(parents=True, exist_ok=True)
    wanted: list[tuple[Path, Callable[[Path], None]]] = [
        (order.base, lambda path: made_up_model.write_base(path, size)),
        *(
            (order.heads_of(kind), functools.partial(_write_heads, base=order.base, kind=kind, size=size))
            for kind in KINDS
        ),
    ]
    for path, write in wanted:
        begin = time.monotonic()
        if not path.exists():
            write(path)
        yield {"file": path.name, "bytes": path.stat().st_size, "seconds": time.monotonic() - begin}


def _write_heads(path: Path, base: Path, kind: schema.Kind, size: made_up_model.Size) -> None:
    made_up_model.write_heads(path, base, kind, size)


def passes(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """T(n), milliseconds of a forward pass over a root and n - 1 leaves with their states, powers of two first."""
    known = {(row["context"], row["nodes"]) for row in done}
    base = order.open_base()
    doubled = [1 << bit for bit in range(order.widest.bit_length()) if 1 << bit <= order.widest]
    others = [width for width in range(1, order.widest + 1) if width not in doubled]
    for wanted in (doubled, others):
        for context in order.contexts:
            last = context == order.contexts[-1] and len(order.contexts) > 1
            widths = sorted({1, order.widest} & set(wanted)) if last else wanted
            widths = [width for width in widths if (context, width) not in known]
            if widths:
                timer = timer_for(order, base, context, order.widest)
                yield from ({"context": context, "nodes": n, "ms": pass_ms(timer, n)} for n in widths)


def timer_for(order: Order, base: native.Model, context: int, widest: int) -> native.VerifyTimer:
    """Of passes in the middle of the answers after `context` tokens."""
    return native.VerifyTimer(
        base, widest, position=context + ANSWER // 2, n_ctx=cells(context), n_threads=order.threads
    )


def cells(context: int) -> int:
    return context + ANSWER + 128


def overhead(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """What a step takes beyond its pass: 16 nodes at the middle context, 64 at the largest, in shares of T(1)."""
    known = {(row["heads"], row["nodes"], row["context"]) for row in done}
    places = [(min(16, order.widest), order.contexts[-2 if len(order.contexts) > 1 else 0])]
    places += [(order.widest, order.contexts[-1])]
    base = order.open_base()
    for nodes, context in places:
        kinds = [kind for kind in KINDS if (kind, nodes, context) not in known]
        if not kinds:
            continue
        timer = timer_for(order, base, context, nodes)
        one, bare = pass_ms(timer, 1), pass_ms(timer, nodes)
        for kind in kinds:
            drafting = session(order, base, kind, nodes, context)
            found = [answer(drafting, base, context, ANSWER, 0.5) for _ in range(2)][1]
            steps = found["steps"]
            parts = {name: ms / steps for name, ms in found["timings_ms"].items()}
            step = sum(parts.values())
            yield {
                "context": context, "nodes": nodes, "heads": kind, "pass_1_ms": one, "pass_ms": bare, "step_ms": step,
                "parts_ms": parts, "beyond": (step - bare) / one, "drafting": parts["draft"] / one,
            }  # fmt: skip


def speed(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """Speed over plain decoding, against what tokens per step and passes promise."""
    known = {(row["context"], row["heads"], row["nodes"], row["wanted_tokens_per_step"]) for row in done}
    base = order.open_base()
    for context in order.contexts[: max(1, len(order.contexts) - 1)]:
        plain = native.Session(base, n_ctx=cells(context), n_threads=order.threads)
        timer = timer_for(order, base, context, order.widest)
        for nodes in [size for size in (4, 8, 16, 64) if size <= order.widest]:
            for kind in KINDS:
                rates = {wanted: rate_for(wanted, first_child_depth(tree_of(nodes))) for wanted in (2.3, 3.2)}
                wanted = [
                    (tokens, rate)
                    for tokens, rate in rates.items()
                    if rate is not None and (context, kind, nodes, tokens) not in known
                ]
                if not wanted:
                    continue
                cost = pass_ms(timer, nodes) / pass_ms(timer, 1)
                drafting = session(order, base, kind, nodes, context)
                for tokens, rate in wanted:
                    row = {"context": context, "heads": kind, "nodes": nodes, "wanted_tokens_per_step": tokens}
                    yield {**row, **_speed(plain, drafting, base, context, rate, cost)}


def _speed(
    plain: native.Session, drafting: native.Session, base: native.Model, context: int, rate: float, cost: float
) -> Row:
    """ "share": of the speedup that tokens per step over the pass's cost would be. The first round warms up."""
    pairs = [
        (answer(plain, base, context, PLAIN_ANSWER, 0.0), answer(drafting, base, context, ANSWER, rate, seed))
        for seed in range(ROUNDS + 1)
    ][1:]
    speedup = statistics.median(ours["tokens_per_second"] / theirs["tokens_per_second"] for theirs, ours in pairs)
    tokens = statistics.mean(ours["tokens_per_step"] for _, ours in pairs)
    return {
        "tokens_per_step": tokens,
        "pass_cost": cost,
        "plain_tokens_per_second": statistics.median(theirs["tokens_per_second"] for theirs, _ in pairs),
        "speedup": speedup,
        "share": speedup / (tokens / cost),
    }


def session(order: Order, base: native.Model, kind: str, nodes: int, context: int) -> native.Session:
    heads = native.Heads(base, str(order.heads_of(kind)))
    return native.Session(base, heads, tree=tree_of(nodes), n_ctx=cells(context), n_threads=order.threads)


def answer(
    decoding: native.Session, base: native.Model, context: int, tokens: int, rate: float, seed: int = 0
) -> dict[str, Any]:
    """Stats of an answer behind `context` tokens, which stay in the session's cache. seed: of what is accepted."""
    return decoding.generate(
        random_prompt(base, context),
        max_tokens=tokens,
        ignore_eos=True,
        sampling=native.Sampling(seed=seed),
        accept=native.Accept("synthetic", synthetic_rate=rate),
    ).stats


def texts(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """Greedy texts of a real model, drafted and plain: identical, explained, or wrong."""
    known = {(row["tree"], row["prompt"]) for row in done}
    reference, loaded = _text_model(order)
    own = reference.heads.path if reference.heads else reference.path
    heads = native.Heads(loaded, str(order.heads or own))
    shapes = {str(n): native.Tree(heads.tree).clipped(heads.head_count, heads.output_rows, n) for n in TEXT_SIZES}
    shapes = {str(tree.size): tree for tree in shapes.values()}  # a file's tree may be smaller than what is asked for
    plain = native.Session(loaded, n_ctx=2048, n_threads=order.threads)
    drafting: dict[str, native.Session] = {}
    for asked in bench_set.read(PROMPTS):
        prompt = prompts.chat_tokens(loaded, [{"role": "user", "content": asked.text}])
        names = [name for name in (*shapes, DYNAMIC) if (name, str(asked.id)) not in known]
        if not names:
            continue
        plain.reset()
        reference_text = plain.generate(prompt, max_tokens=128)
        for name in names:
            if name not in drafting:
                grown = native.DynamicTree() if name == DYNAMIC else None
                drafting[name] = native.Session(
                    loaded, heads, tree=shapes.get(name), dynamic=grown, n_ctx=2048, n_threads=order.threads
                )
            drafting[name].reset()
            drafted = drafting[name].generate(prompt, max_tokens=128)
            found = lossless.compare(loaded, prompt, reference_text, drafted)
            yield {
                "tree": name, "prompt": str(asked.id), "tokens": found.tokens, "gap": found.gap,
                "first_difference": found.first_difference, "explained": found.explained,
                "tokens_per_step": drafted.stats["tokens_per_step"],
                "speedup": drafted.stats["tokens_per_second"] / reference_text.stats["tokens_per_second"],
            }  # fmt: skip


def _text_model(order: Order) -> tuple[references.ModelRef, native.Model]:
    try:
        reference = references.resolve(order.text_model, Console(stderr=True))
    except Exception as error:
        raise Unavailable(f"no model for texts: {error}") from error
    return reference, order.load(str(reference.path))


def methods(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """Plain decoding, medusa and llama.cpp's own drafting side by side, by `medusa bench`."""
    names = METHODS + (",draft-model" if order.draft_model else "")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "bench.json"
        command = [*child("medusa_cli.cli", "bench", order.text_model), "--methods", names]
        command += ["--repeat", "1", "-n", "96", "--json", str(written), "-t", str(order.threads)]
        command += ["--draft-model", order.draft_model] if order.draft_model else []
        command += ["--heads", order.heads] if order.heads else []
        _, ended = run_within(command, order.seconds)
        found = json.loads(written.read_text()) if written.exists() else {"methods": {}}
    for name, method in found["methods"].items():
        yield {"method": name, **{key: method["total"].get(key) for key in BENCH_KEYS}}
    if not ended:
        raise TimeUp


BENCH_KEYS = ("tokens_per_second", "speedup_vs_stock", "speedup_vs_plain", "tokens_per_step", "output_match")


def tests(order: Order, done: Sequence[Row]) -> Iterator[Row]:
    """The tests that run a model, with it on the device."""
    if not (ROOT / "tests").is_dir():
        raise Unavailable("there are no tests beside benchmarks/")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider", *order.tests]
    printed, ended = run_within(command, order.seconds)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error|skipped|deselected)", printed)}
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", printed, re.MULTILINE)
    yield {"counts": counts, "failed": failed, "end": printed.strip().splitlines()[-1:]}
    if not ended:
        raise TimeUp


def run_within(command: Sequence[str], seconds: float) -> tuple[str, bool]:
    """What it prints, and whether it ended by itself.

    After so many seconds it gets a Ctrl-C, and some more to say what it has found by then.
    """
    environment: Mapping[str, str] = {**os.environ, "NO_COLOR": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        return process.communicate(timeout=seconds)[0], True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            printed, _ = process.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
    return printed, False


GRACE = 20
WHOLE = ("methods", "tests")
"""Steps that keep their own time and cannot go on where they were cut short."""
STEPS: dict[str, Step] = {
    "model": model, "passes": passes, "overhead": overhead, "speed": speed, "texts": texts, "methods": methods,
    "tests": tests,
}  # fmt: skip
