"""`medusa bench ablate` from options to a document."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli import __version__
from medusa_cli.bench import spec_bench
from medusa_cli.bench.ablation import cost_model, setup
from medusa_cli.bench.ablation.measure import Bench, Found, measure, pass_costs
from medusa_cli.bench.ablation.rows import SIZE_STEPS, SIZES, SPARSE, TREES, HeadsFile, Row, plan_rows
from medusa_cli.bench.ablation.samples import Sample, figures, outside_ms
from medusa_cli.bench.document import this_machine
from medusa_cli.decoding.options import AcceptKind, EngineOptions
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support import progress

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

FORMAT = 1
PASSES_SHARE = 0.08
"""Of the minutes: what bare passes may take."""
RESERVE = 0.03
"""Of the minutes, and MIN_RESERVE seconds: kept for loading that ends late and for the tables."""
MIN_RESERVE = 1.0
POSITION = 128
"""Tokens in the cache behind which bare passes are timed: the middle of a short answer."""


@dataclass
class Run:
    """What is asked for, and what is known so far, so that a run that is cut short can be reported.

    data: where the prompts are from. The minutes begin with it.
    """

    model: str
    heads: Sequence[Path]
    minutes: float
    prompts: Sequence[Prompt]
    data: str
    engine: EngineOptions
    began: float = dataclasses.field(default_factory=time.monotonic)
    loaded: setup.Loaded | None = None
    rows: Sequence[Row] = ()
    found: Found = dataclasses.field(default_factory=Found)
    left_out: int = 0


def run(state: Run, console: Console) -> None:
    """Measures until the minutes are over. MedusaError for what cannot be measured."""
    seconds = 60 * state.minutes
    deadline = state.began + seconds - max(MIN_RESERVE, RESERVE * seconds)
    loaded = state.loaded = setup.load(state.model, state.heads, state.engine, console)
    prompts = loaded.tokens(state.prompts)
    state.left_out = len(state.prompts) - len(prompts)
    with progress.phase(console, "Measuring", "seconds") as bar:
        widths = (1, *SIZE_STEPS)
        bar.update(0, seconds, "bare passes")
        timer = loaded.timer(max(widths), POSITION)
        passes = pass_costs(timer, widths, state.began + PASSES_SHARE * seconds)
        del timer  # its cache, before the sessions make theirs
        state.found.passes_ms = passes
        costs = {width: passes[width] / passes[1] for width in widths}
        state.rows = plan_rows(loaded.files, costs, loaded.method_plans(), [kind.value for kind in AcceptKind])

        def on_answer(name: str) -> None:
            bar.update(min(seconds, time.monotonic() - state.began), seconds, name)

        known: list[tuple[Row, native.Session]] = []

        def session_of(row: Row) -> native.Session:
            """One for each plan of each heads file: rows that differ in the rule alone share it."""
            for other, session in known:
                if other.drafts_like(row):
                    return session
            known.append((row, loaded.session(row)))
            return known[-1][1]

        measure(Bench(state.rows, loaded.session(None), session_of, deadline, on_answer), prompts, state.found)
        bar.update(seconds, seconds)
    state.found.complete = True


def document(state: Run) -> dict[str, Any]:
    """The JSON, also of a run that was cut short ("complete": false)."""
    from medusa_cli import native

    loaded, found = state.loaded, state.found
    assert loaded is not None
    samples = [found.samples.get(at, []) for at in range(len(state.rows))]
    rows = [figures(row, of) for row, of in zip(state.rows, samples, strict=True)]
    sparse = [at for at, row in enumerate(state.rows) if row.labels.get(SIZES, "").startswith(SPARSE)]
    sparse.sort(key=lambda at: len(state.rows[at].tree or []))
    main = loaded.files[0]
    shown = {row.name: of for row, of in zip(state.rows, samples, strict=True) if TREES in row.labels}
    return {
        "ablation_format": FORMAT,
        "complete": found.complete,
        "medusa": __version__,
        "llama_cpp_python": native.installed_llama_cpp_python(),
        "model": {"name": loaded.name, "description": loaded.model.description},
        "machine": this_machine(),
        "heads": [_heads(file) for file in loaded.files],
        "settings": {
            "data": state.data,
            "minutes": state.minutes,
            "seconds": round(time.monotonic() - state.began, 1),
            "prompts": found.prompts,
            "prompts_left_out": state.left_out,
            "max_tokens": found.max_tokens,
            "context": loaded.options.ctx_size,
            "threads": state.engine.threads,
        },
        "rows": rows,
        "cost_model": cost_model.model(
            [rows[at] for at in sparse], main.accuracy, found.passes_ms, [outside_ms(samples[at]) for at in sparse]
        ),
        "spec_bench": by_kind(state.prompts, shown),
    }


def by_kind(prompts: Sequence[Prompt], samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """Figures by kind of the rows, by name; empty where the prompts are not Spec-Bench's."""
    if not spec_bench.is_its_file(prompt.category for prompt in prompts):
        return {}
    return {
        name: spec_bench.figures(
            [(one.answer, statistics.mean(answer.whole_speed for answer in one.plain)) for one in of]
        )
        for name, of in samples.items()
    }


def _heads(file: HeadsFile) -> dict[str, Any]:
    return {
        "label": file.label,
        "kind": file.kind,
        "head_count": file.head_count,
        "accuracy_known": bool(file.accuracy),
        "tuned": file.tuned is not None,
    }
