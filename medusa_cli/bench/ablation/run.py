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
from medusa_cli.bench.ablation.measure import Bench, Found, measure, pass_costs
from medusa_cli.bench.ablation.rows import SIZE_STEPS, SIZES, SPARSE, TREES, HeadsFile, Row, plan_rows
from medusa_cli.bench.ablation.samples import Sample, cost_model, figures, outside_ms
from medusa_cli.bench.document import this_machine
from medusa_cli.bench.methods import ENGINE, LOOKAHEAD, LOOKAHEAD_NUMBERS, METHODS, PLAIN
from medusa_cli.bench.worker import lookahead_session
from medusa_cli.decoding import drafting, pass_cost, profile, prompts, runtime
from medusa_cli.decoding.drafting import DraftPlan, HeadsFacts, ModelFacts
from medusa_cli.decoding.options import AcceptKind, DraftOptions, EngineOptions
from medusa_cli.models import gguf_files
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support import progress
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

FORMAT = 1
PASSES_SHARE = 0.08
"""Share of the minutes that bare passes may take."""
RESERVE = 0.03
"""Share of the minutes, at least MIN_RESERVE seconds, kept for loading that ends late and for the tables."""
MIN_RESERVE = 1.0
POSITION = 128
"""Tokens in the cache when bare passes are timed: the middle of a short answer."""
CONTEXT = 1024
"""Context of each session by default: there are many, and each has a cache."""
ROOM = 256
"""Tokens of the context that no prompt may fill: the answer and the largest tree."""


@dataclass(frozen=True)
class Loaded:
    """heads: by label; the first is the one that is ablated."""

    name: str
    model: native.Model
    facts: ModelFacts
    heads: dict[str, native.Heads]
    files: list[HeadsFile]
    options: EngineOptions

    def session(self, row: Row | None) -> native.Session:
        """A session for the row's plan; without a row, for plain decoding."""
        if row is None:
            return runtime.plan_session(self.model, None, DraftPlan(), self.options)
        if row.name == LOOKAHEAD:
            return lookahead_session(self.model, LOOKAHEAD_NUMBERS, self.options)
        return runtime.plan_session(self.model, self.heads[row.heads_file], row.plan, self.options)

    def method_plans(self) -> dict[str, DraftPlan]:
        """The plans of the methods of `medusa bench` for the first heads.

        Only methods that draft in our engine with one model: the times of the others could not stand beside ours.
        """
        main = self.files[0]
        facts = HeadsFacts(main.head_count, main.output_rows, [])
        found = {}
        for method in METHODS.values():
            if method.driver != ENGINE or method.stock_kernels or method.name == PLAIN or method.needs_draft_model:
                continue
            draft = method.draft(DraftOptions(heads=str(main.path)))
            found[method.name] = drafting.plan(draft, self.facts, facts, main.tuned)
        return found

    def tokens(self, asked: Sequence[Prompt]) -> list[tuple[Prompt, list[int]]]:
        """The prompts that leave ROOM in the context, as token ids. MedusaError when there are none."""
        room = self.options.ctx_size - ROOM
        messages = ([{"role": "user", "content": prompt.text}] for prompt in asked)
        found = [prompts.chat_tokens(self.model, one, bare_if_no_template=True) for one in messages]
        fitting = [(prompt, tokens) for prompt, tokens in zip(asked, found, strict=True) if len(tokens) <= room]
        if not fitting:
            raise MedusaError(f"no prompt has at most {room} tokens: give shorter ones, or a larger -c")
        return fitting


def load(reference: str, paths: Sequence[Path], options: EngineOptions, console: Console) -> Loaded:
    """MedusaError when there are no heads, or the model cannot check a tree."""
    for path in paths:
        gguf_files.check_is_file(path)
    draft = DraftOptions(heads=str(paths[0]) if paths else None)
    ref = runtime.resolve(reference, draft, console)

    def open_model(layers: int) -> native.Model:
        return runtime.load_model(ref.path, layers, console, options.device)

    model = runtime.within_memory(ref, options, draft, console, open_model)
    facts = runtime.model_facts(ref, model)
    own = drafting.heads_to_load(draft, facts)
    if own is None:
        raise MedusaError(f"{ref.name} has no draft heads, so there is nothing to ablate: give --heads FILE")
    found = list(paths) or [own]
    trained = model.n_ctx_train or CONTEXT
    options = dataclasses.replace(options, ctx_size=options.ctx_size or min(CONTEXT, trained))
    if options.ctx_size <= ROOM:
        raise MedusaError(f"a context of {options.ctx_size} tokens has no room for answers and trees: give -c 512")
    heads, files = {}, []
    for label, path in zip(labels(found), found, strict=True):
        one = heads[label] = runtime.load_heads(model, path, ref, console)
        tuned = profile.tuned(model, path, options, console)
        files.append(HeadsFile(label, path, one.kind, one.head_count, one.output_rows, one.accuracy, tuned))
    return Loaded(ref.name, model, facts, heads, files, options)


def labels(paths: Sequence[Path]) -> list[str]:
    """Names of the files without their endings; numbered where two are the same."""
    stems = [path.stem for path in paths]
    return [stem if stems.count(stem) == 1 else f"{stem}#{at + 1}" for at, stem in enumerate(stems)]


@dataclass
class Run:
    """What is asked for, and what is known so far, so that a run that is cut short can be reported.

    data: where the prompts are from. The minutes begin when it is made.
    """

    model: str
    heads: Sequence[Path]
    minutes: float
    prompts: Sequence[Prompt]
    data: str
    engine: EngineOptions
    began: float = dataclasses.field(default_factory=time.monotonic)
    loaded: Loaded | None = None
    rows: Sequence[Row] = ()
    found: Found = dataclasses.field(default_factory=Found)
    left_out: int = 0


def run(state: Run, console: Console) -> None:
    """Measures until the minutes are over. MedusaError for what cannot be measured."""
    seconds = 60 * state.minutes
    deadline = state.began + seconds - max(MIN_RESERVE, RESERVE * seconds)
    loaded = state.loaded = load(state.model, state.heads, state.engine, console)
    prompts = loaded.tokens(state.prompts)
    state.left_out = len(state.prompts) - len(prompts)
    with progress.phase(console, "Measuring", "seconds") as bar:
        widths = (1, *SIZE_STEPS)
        bar.update(0, seconds, "bare passes")
        options = loaded.options
        timer = pass_cost.make_timer(loaded.model, max(widths), POSITION, options.threads, options.ctx_size)
        passes = pass_costs(timer, widths, state.began + PASSES_SHARE * seconds)
        del timer  # frees its cache before the sessions make theirs
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
    """The JSON, even of a run that was cut short ("complete": false)."""
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
        "heads": [
            {
                "label": file.label,
                "kind": file.kind,
                "head_count": file.head_count,
                "accuracy_known": bool(file.accuracy),
                "tuned": file.tuned is not None,
            }
            for file in loaded.files
        ],
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
        "cost_model": cost_model(
            [rows[at] for at in sparse], main.accuracy, found.passes_ms, [outside_ms(samples[at]) for at in sparse]
        ),
        "spec_bench": by_kind(state.prompts, shown),
    }


def by_kind(prompts: Sequence[Prompt], samples: dict[str, list[Sample]]) -> dict[str, Any]:
    """The rows' figures by kind, by name; empty if the prompts are not Spec-Bench's."""
    if not spec_bench.is_its_file(prompt.category for prompt in prompts):
        return {}
    return {
        name: spec_bench.figures(
            [(one.answer, statistics.mean(answer.whole_speed for answer in one.plain)) for one in of]
        )
        for name, of in samples.items()
    }
