"""Measures what was trained on held-out text, writes it with a tree, and reports."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medusa_cli.converters.heads import draft_heads, single_file
from medusa_cli.decoding import tree_search
from medusa_cli.support.atomic import scratch_folder
from medusa_cli.support.progress import phase
from medusa_cli.support.tables import print_table

from .. import reporting
from ..backbone import checkpoint, export, merge, parity
from ..heads.fit import rank_texts
from ..heads.layers import WEIGHT_TYPE, Heads, file_of
from ..options import TREE_NODES
from ..reporting import EVALUATION_NODES, TrainResult, say
from ..resuming import SCRATCH
from ..text import sources
from ..text.dataset import Span
from . import Setup, streams
from .fitting import Fitted, train_heads
from .joint import train_jointly
from .layers import NewModel, only_known
from .planning import Schedule
from .prepare import DataSet, Material

SIZES = (4, 8, 16)
"""Tree sizes (root included) that are reported."""


Ranking = Callable[[Sequence[Span], Callable[[int], None]], list[NDArray[np.int64]]]
"""Gives each of the texts its [positions, heads] ranks; reports how many of their rows are done, which may raise."""


@dataclass(frozen=True)
class Drafts:
    """What was trained. setup: with the base that it is for; material: with the held-out texts that can be ranked;
    content: of the file; new: given if the base was changed; alone: tokens per step by nodes, of the heads before joint
    training, if they were trained before it."""

    setup: Setup
    material: Material
    rank: Ranking
    content: Callable[[TrainResult], draft_heads.Writable]
    fitted: Fitted
    new: NewModel | None = None
    alone: dict[int, float] | None = None


def trained_heads(
    setup: Setup, material: Material, schedule: Schedule, seconds: float, found: parity.Parity | None
) -> Drafts:
    """Heads, by themselves or with their base. seconds: spent before; found: given if the base is trained. Stopped
    after Ctrl-C, with everything saved."""
    fitted = train_heads(setup, material, schedule, seconds)
    heads, new, alone = fitted.heads, None, None
    if found is not None:
        if setup.options.heads_first:
            alone = measure(setup, material.data, ranking(material, heads)).by_size
        new = train_jointly(setup, material, fitted, found, seconds + fitted.seconds)
        setup, material, heads = replace(setup, base=new.base), new.material, new.heads
    written = partial(content, setup, material, heads)
    return Drafts(setup, material, ranking(material, heads), written, fitted, new, alone)


def trained_streams(setup: Setup, material: Material, schedule: Schedule, seconds: float) -> Drafts:
    """Streams, by themselves or with their base. seconds: spent before. Stopped after Ctrl-C, with everything saved."""
    fitted, new = streams.train_streams(setup, material, schedule, seconds), None
    if setup.options.joint:
        new, fitted = streams.merge_shared(setup, material, fitted)
        setup = replace(setup, base=new.base)
    material = replace(material, data=only_known(material.data, fitted.held.states.texts))
    return Drafts(setup, material, fitted.rank, partial(streams.content, setup, material, fitted), fitted, new)


def finish(drafts: Drafts, writing: float) -> tuple[TrainResult, list[Path]]:
    """What was measured, and the files written beside the output. writing: seconds that the text took."""
    setup, new = drafts.setup, drafts.new
    result = measure(setup, drafts.material.data, drafts.rank)
    # The adapter appears with the output: a stopped run leaves nothing that the next one would overwrite.
    with contextlib.ExitStack() as outputs:
        if new is not None and setup.options.adapter is not None:
            outputs.enter_context(merge.adapter_file(new.adapters, new.old.name, setup.options.adapter))
        if setup.options.sidecar:
            draft_heads.write_heads(setup.options.output, drafts.content(result))
        else:
            part = outputs.enter_context(scratch_folder(setup.folder, SCRATCH)) / "heads.gguf"
            draft_heads.write_heads(part, drafts.content(result))
            bar = outputs.enter_context(phase(setup.options.console, "Writing file", "bytes"))
            single_file.join(setup.base.path, part, setup.options.output, bar.update)
    written = write_record(drafts, writing, result)
    if new is not None:
        print_table(reporting.distances({"own text": new.own, "other text": new.foreign}), setup.options.console)
        say(setup.options.console, "The model was changed: its text is not that of the one it was trained from.")
        new.base.path.unlink()
    if drafts.alone is not None:
        before, after = drafts.alone[EVALUATION_NODES], result.by_size[EVALUATION_NODES]
        advice = "" if after > before else ": joint training did not pay off, keep those"
        say(
            setup.options.console,
            f"Tokens per step on held-out text with {EVALUATION_NODES} nodes: {after:.2f}, and {before:.2f} for the "
            f"heads alone on the unchanged model{advice}",
        )
    return result, written


def ranking(material: Material, heads: Heads) -> Ranking:
    """The ranking of heads."""
    source, tokens, vocabulary = material.source, material.data.tokens, material.vocabulary

    def rank(spans: Sequence[Span], on_rows: Callable[[int], None]) -> list[NDArray[np.int64]]:
        return rank_texts(heads, source, tokens, spans, vocabulary.t2d, vocabulary.output)

    return rank


def measure(setup: Setup, data: DataSet, rank: Ranking) -> TrainResult:
    """Accuracies and tree on one half of the held-out prompts, tokens per step on the other."""
    halves, done = [], 0
    total = sum(span.length for span in (*data.split.build, *data.split.score))
    with setup.counting("Measuring", "positions", total) as on_rows:

        def on_more(rows: int) -> None:
            on_rows(done + rows)

        for spans in (data.split.build, data.split.score):
            halves.append(rank(spans, on_more))
            done += sum(span.length for span in spans)
            on_rows(done)
    build, score = halves
    accuracy = tree_search.accuracy_table(build)
    tree = tree_search.greedy_tree(accuracy, TREE_NODES)
    measured, acceptance = tree_search.simulate(score, tree)
    trees = {nodes: tree_search.greedy_tree(accuracy, nodes) for nodes in SIZES}
    return TrainResult(
        output=setup.options.output,
        tokens=sum(span.length for span in data.split.train),
        accuracy=accuracy.tolist(),
        tree=tree,
        predicted=tree_search.predicted_tokens_per_step(accuracy, tree),
        measured=measured,
        acceptance=acceptance,
        by_size={nodes: tree_search.simulate(score, sized)[0] for nodes, sized in trees.items()},
    )


def content(setup: Setup, material: Material, heads: Heads, result: TrainResult) -> draft_heads.Writable:
    """The content of the heads' file."""
    whole, own = setup.options.whole_vocabulary, heads.outputs is not None
    return file_of(
        heads,
        embedding_scale=material.source.embedding_scale,
        weight_type=WEIGHT_TYPE,
        lm_head="own" if whole and own else "base" if whole else "draft_vocab",
        d2t=None if whole else material.vocabulary.d2t,
        accuracy=result.accuracy,
        tree=result.tree,
        base_name=setup.base.name,
        base_fingerprint=setup.base.fingerprint,
    )


def write_record(drafts: Drafts, writing: float, result: TrainResult) -> list[Path]:
    """Writes, beside the output, how the run went, and the heads as a checkpoint if asked for: Medusa-2 as its authors
    publish it, model and heads; else the heads alone. writing: seconds that the text took."""
    setup, new = drafts.setup, drafts.new
    options, base = setup.options, setup.base
    document = record_of(setup, drafts.material, drafts.fitted, writing, result)
    document["joint"] = {**new.as_json(), "heads_alone": drafts.alone} if new is not None else None
    written = reporting.write_record(document, options.output)
    if options.export_hf is None:
        return written
    if options.joint and options.kind == "medusa":
        return written + checkpoint.write(base.path, options.output, options.export_hf)
    return written + export.export_heads(options.output, base, options.export_hf)


def record_of(
    setup: Setup,
    material: Material,
    fitted: Fitted,
    writing: float,
    result: TrainResult,
    nodes: int = EVALUATION_NODES,
) -> dict[str, Any]:
    """How a run went. writing: seconds that the text took; nodes: of the tree that training measured."""
    options, base, plan = setup.options, setup.base, fitted.plan
    tokens, positions = material.corpus.tokens, fitted.steps * plan.batch
    return {
        "model": {"name": base.name, "fingerprint": base.fingerprint},
        "options": options.as_json(),
        "seed": options.seed,
        "recipe": asdict(plan.recipe),
        "device": plan.device,
        "text": {
            "tokens": tokens,
            "trained_on": result.tokens,
            "seconds": writing,
            "tokens_per_second": tokens / writing if writing else None,
            "sources": sources.as_json(material.data.shares),
        },
        "draft_vocabulary": asdict(material.vocabulary.choice),
        "training": {
            "planned_steps": plan.steps,
            "steps": fitted.steps,
            "batch": plan.batch,
            "positions": positions,
            "seconds": fitted.seconds,
            "positions_per_second": positions / fitted.seconds if fitted.seconds else None,
            "evaluation_nodes": nodes,
            "best": {"step": fitted.best.step, "tokens_per_step": fitted.best.tokens_per_step},
            "curve": [asdict(point) for point in fitted.points],
        },
        "joint": None,
        "accuracy": result.accuracy,
        "acceptance_per_depth": result.acceptance,
        "tree": result.tree,
        "tokens_per_step": result.by_size,
    }
