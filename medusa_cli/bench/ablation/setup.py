"""The model, all heads and one session for each way to decode, in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.bench.ablation.rows import HeadsFile, Row
from medusa_cli.bench.methods import ENGINE, LOOKAHEAD, LOOKAHEAD_NUMBERS, METHODS, PLAIN
from medusa_cli.bench.worker import lookahead_session
from medusa_cli.decoding import drafting, pass_cost, profile, prompts, runtime
from medusa_cli.decoding.drafting import DraftPlan, HeadsFacts, ModelFacts
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.models import gguf_files
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

CONTEXT = 1024
"""Of each session where none is asked for: there are many, and each has a cache."""
ROOM = 256
"""Tokens of the context that no prompt may fill: the answer and the largest tree."""


@dataclass(frozen=True)
class Loaded:
    """heads: by label, the first is the one that is ablated."""

    name: str
    model: native.Model
    facts: ModelFacts
    heads: dict[str, native.Heads]
    files: list[HeadsFile]
    options: EngineOptions

    def session(self, row: Row | None) -> native.Session:
        """For the row's plan; plain decoding without one."""
        if row is None:
            return runtime.plan_session(self.model, None, DraftPlan(), self.options)
        if row.name == LOOKAHEAD:
            return lookahead_session(self.model, LOOKAHEAD_NUMBERS, self.options)
        return runtime.plan_session(self.model, self.heads[row.heads_file], row.plan, self.options)

    def timer(self, widest: int, position: int) -> pass_cost.Timer:
        """For bare passes over up to `widest` tokens."""
        options = self.options
        return pass_cost.make_timer(self.model, widest, position, options.threads, options.ctx_size)

    def method_plans(self) -> dict[str, DraftPlan]:
        """What the methods of `medusa bench` make of the first heads.

        Those that draft in our engine with one model: of the others' times no row could stand beside ours.
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
