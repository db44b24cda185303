"""Streams, from the states below the model's top layers to weights that a file can hold."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native
from medusa_cli.converters.heads.schema import STREAM_MATRICES
from medusa_cli.converters.heads.stream_heads import Adapter, StreamHeads
from medusa_cli.models.base_file import output_rows
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.progress import phase

from ..backbone import parity
from ..backbone.adapters import Adapters
from ..backbone.layers import TopLayers
from ..backbone.shape import DecoderShape, read_shape
from ..backbone.states import LayerStates, WholeText
from ..backbone.weights import BaseTensors
from ..heads.fit import CurvePoint
from ..heads.ranking import tokens_per_step
from ..heads.rows import steps_per_epoch
from ..heads.schedule import Schedule
from ..heads.torch_setup import matmul_dtype
from ..memory import recall, remember
from ..report.curve import Point
from ..report.messages import EVALUATION_NODES, GIB, TrainResult, say
from ..streams.fit import BaseRows, SomeTexts, StreamsData, StreamsFit, StreamsPlan
from ..streams.layers import Streams
from ..streams.ranking import rank_streams
from ..streams.rate import measure_rate
from ..streams.recipe import EVALUATION_SHARE, EVALUATIONS, MOST_EVALUATED, SHARED_RESULT_SHARE
from ..text.corpus import Corpus
from ..text.dataset import Span, examples_of
from .joint import whole_texts_of
from .planning import ASSUMED_VOCABULARY, EVALUATION_COST
from .prepare import DataSet, DraftVocabulary, PreparedRows
from .setup import Setup
from .watched import run_watched


@dataclass(frozen=True)
class FittedStreams:
    """streams: with the weights of the evaluation `best`, rounded to what the file will hold; they run through `top`.

    data: of the held-out texts; plan, steps, best, points: as of fitting.FittedHeads.
    """

    top: TopLayers
    streams: Streams
    data: StreamsData
    plan: StreamsPlan
    steps: int
    best: CurvePoint
    points: list[Point]

    def rank(self, spans: Sequence[Span], on_rows: Callable[[int], None]) -> list[NDArray[np.int64]]:
        """heads.ranking.rank_texts() of these held-out texts, in float32. on_rows may raise."""
        picked = _only(self.data, spans)
        return rank_streams(self.top, self.streams, replace(picked, output=picked.output.float()), on_rows)


def check_model(setup: Setup) -> DecoderShape:
    """Before any work. MedusaError, in one line, for a model that streams cannot be trained for."""
    shape = read_shape(BaseTensors(setup.base.path).header)
    layers, path = setup.options.streams_layers, setup.base.path
    if layers >= len(shape.layers):
        raise MedusaError(f"--streams-layers {layers}: {path} allows 1 to {len(shape.layers) - 1}")
    if any(layer.window is not None for layer in shape.layers):
        raise MedusaError(f"{path}: streams cannot draft for models with sliding windows: train another kind")
    if setup.options.streams_recipe.root and setup.base.embedding is None:
        raise MedusaError(f"{path}: has no token embeddings of its vocabulary's size, streams need them")
    return shape


def plan_time(setup: Setup, vocabulary: int | None = None) -> Schedule:
    """As planning.plan_time()."""
    options = setup.options
    if options.minutes is None:
        return Schedule(options.tokens, None, 1.0)
    if vocabulary is None:
        vocabulary = min(options.draft_vocab or ASSUMED_VOCABULARY, setup.base.n_vocab)
    top = open_layers(setup)
    rate = measure_rate(top, _unplanned(setup, top, ""), vocabulary, setup.base.n_vocab, setup.device)
    seconds = options.minutes * 60 * (1 - SHARED_RESULT_SHARE if options.joint else 1)
    return Schedule(options.tokens, seconds, rate * (1 - EVALUATION_COST * EVALUATION_SHARE))


def train(
    setup: Setup,
    corpus: Corpus,
    data: DataSet,
    vocabulary: DraftVocabulary,
    rows: PreparedRows,
    schedule: Schedule,
    seconds: float,
) -> FittedStreams:
    """All of it. seconds: spent before. Stopped after Ctrl-C, with everything saved."""
    begin = time.monotonic()
    texts = whole_texts_of(corpus, data)
    model = native.Model(str(setup.base.path), n_gpu_layers=setup.options.n_gpu_layers)
    top = open_layers(setup)
    _compare(setup, model, top, texts["train"])
    base = None
    if setup.options.joint:
        base = BaseRows(data.tokens, whole_output(setup).to(matmul_dtype(setup.device)))
    read = {
        name: StreamsData(
            _read_states(setup, model, top.first - 1, name, texts[name]),
            rows.source,
            examples_of(data.tokens, [text.span for text in texts[name]], vocabulary.t2d, setup.options.heads),
            vocabulary.fast_output,
            base,
        )
        for name in ("train", "held")
    }
    plan = _plan(setup, top, read["train"], schedule, seconds + time.monotonic() - begin)
    return _fit(setup, top, read["train"], read["held"], data.split.build, plan)


def measured(held: FittedStreams, data: DataSet) -> DataSet:
    """`data` with the held-out texts alone whose states were read."""
    known = {text.span.start for text in held.data.states.texts}
    split = data.split
    return replace(data, split=replace(split, build=_of(split.build, known), score=_of(split.score, known)))


def content(setup: Setup, vocabulary: DraftVocabulary, fitted: FittedStreams, result: TrainResult) -> StreamHeads:
    """What the file will hold."""
    streams, top = fitted.streams, fitted.top
    adapters, root = streams.adapters, streams.stored_root_scale()

    def matrices(of: Adapters, layer: int, name: str) -> Adapter:
        a, b = (values.detach().cpu().numpy() for values in of.matrices(f"blk.{layer}.{name}"))
        return a, b

    def all_matrices(of: Adapters) -> list[dict[str, Adapter]]:
        return [{name: matrices(of, layer.number, name) for name in STREAM_MATRICES} for layer in top.layers]

    return StreamHeads(
        embedding=streams.stored_embedding().detach().cpu().numpy(),
        first_layer=top.first,
        layers=len(top.layers),
        d2t=vocabulary.d2t,
        base_name=setup.base.name,
        base_fingerprint=setup.base.fingerprint,
        root_scale=root.detach().cpu().numpy() if root is not None else None,
        adapters=all_matrices(adapters) if adapters is not None else [],
        alpha=adapters.alpha if adapters is not None else 0.0,
        mode="lossless" if adapters is not None else "shared",
        accuracy=result.accuracy,
        tree=result.tree,
    )


def open_layers(setup: Setup) -> TopLayers:
    """Of the base in `setup`, those that streams run through."""
    tensors = BaseTensors(setup.base.path)
    shape = read_shape(tensors.header)
    return TopLayers(tensors, shape, len(shape.layers) - setup.options.streams_layers, setup.device)


def whole_output(setup: Setup) -> Tensor:
    """[V, h] on the device."""
    return torch.from_numpy(output_rows(setup.base, np.arange(setup.base.n_vocab))).to(setup.device)


def _compare(setup: Setup, model: native.Model, top: TopLayers, texts: list[WholeText]) -> None:
    """MedusaError where the layers compute something else in torch than in the engine."""
    marker, key = setup.folder / "parity.json", {"content": setup.base.content, "first": top.first}
    if recall(marker) == key:
        return
    output = whole_output(setup)
    with phase(setup.options.console, "Comparing layers", "tokens"):
        shown, allowed = [text.fed.tolist() for text in texts], parity.tolerance(BaseTensors(setup.base.path))
        found = parity.check(model, top, output, shown, setup.options.threads, allowed)
    last = top.first + len(top.layers) - 1
    same = f"as in the engine on {found.agreement:.1%} of {found.tokens} tokens"
    say(setup.options.console, f"Layers {top.first} to {last} in torch: {same}")
    remember(marker, key)


def _read_states(setup: Setup, model: native.Model, layer: int, name: str, texts: list[WholeText]) -> LayerStates:
    """Announced; MedusaError when they do not fit on the disk."""
    folder = setup.folder / (f"layer-{layer}" if name == "train" else f"layer-{layer}-{name}")
    states = LayerStates(folder, texts, layer, setup.base.n_embd)
    total, free = states.missing_rows, shutil.disk_usage(setup.folder).free
    if not total:
        return states
    say(setup.options.console, f"States of layer {layer}: {states.nbytes / GIB:.2f} GiB in {folder}")
    if (needed := total * setup.base.n_embd * 2) > free:
        raise MedusaError(f"{folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} are free")
    with phase(setup.options.console, "Reading states", "tokens") as bar:

        def on_rows(rows: int) -> None:
            bar.update(rows, total)
            setup.interrupt.check()

        states.write(model, setup.options.threads, on_rows)
    return states


def _unplanned(setup: Setup, top: TopLayers, data: str) -> StreamsPlan:
    """Its number of steps is still open: as many as there will ever be."""
    options, recipe = setup.options, setup.options.streams_recipe
    return StreamsPlan(
        data=data,
        objective=options.objective,
        streams=options.heads,
        first_layer=top.first,
        seed=options.seed,
        steps=1 << 30,
        batch=recipe.batch,
        device=setup.device.type,
        recipe=recipe,
    )


def _plan(setup: Setup, top: TopLayers, data: StreamsData, schedule: Schedule, seconds: float) -> StreamsPlan:
    """That of an earlier call on the same data, else a new one, written down. seconds: spent before."""
    examples, options = data.examples, setup.options
    digest = hashlib.sha256(examples.rows.tobytes() + examples.target.tobytes()).hexdigest()
    plan = _unplanned(setup, top, digest)
    path, asked = (
        setup.folder / f"{options.name}.plan.json",
        {**asdict(plan), "tokens": options.tokens, "minutes": options.minutes, "rounds": options.joint_rounds},
    )
    stored = recall(path)
    if isinstance(stored.get("steps"), int) and {**asked, "steps": stored["steps"]} == stored:
        return replace(plan, steps=stored["steps"])
    steps = schedule.steps(len(examples.rows), min(plan.batch, len(examples.rows)), seconds)
    if options.joint_rounds is not None:
        steps = max(1, round(options.joint_rounds * steps_per_epoch(examples, plan.batch, whole_texts=True)))
    plan = replace(plan, steps=steps)
    remember(path, {**asked, "steps": plan.steps})
    return plan


def _fit(
    setup: Setup, top: TopLayers, data: StreamsData, held: StreamsData, build: list[Span], plan: StreamsPlan
) -> FittedStreams:
    """Trains, or continues from the checkpoint of the same plan."""
    fit = StreamsFit(plan, top, setup.device)
    watched = _only(held, _first(build, EVALUATION_SHARE * plan.steps * plan.batch / EVALUATIONS))

    def held_out(streams: Streams) -> float:
        return tokens_per_step(rank_streams(top, streams, watched), EVALUATION_NODES)

    best, points = run_watched(setup, fit, plan, partial(fit.run, data, evaluate=held_out))
    with torch.no_grad():
        for parameter in fit.streams.factors():
            parameter.copy_(parameter.half())
    return FittedStreams(top, fit.streams, held, plan, fit.step, best, points)


def _first(spans: list[Span], positions: float) -> list[Span]:
    """The first of `spans`, about as many positions as are asked for and can be afforded; at least one span."""
    kept: list[Span] = []
    for span in spans:
        if not kept or sum(other.length for other in kept) < min(MOST_EVALUATED, positions):
            kept.append(span)
    return kept


def _only(data: StreamsData, spans: Sequence[Span]) -> StreamsData:
    """The texts of `spans` alone."""
    wanted = {span.start for span in spans}
    numbers = [number for number, text in enumerate(data.states.texts) if text.span.start in wanted]
    starts = [*data.examples.starts, len(data.examples.rows)]
    places = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers])
    examples = replace(
        data.examples,
        rows=data.examples.rows[places],
        target=data.examples.target[places],
        lengths=[data.examples.lengths[number] for number in numbers],
    )
    return replace(data, states=SomeTexts(data.states, numbers), examples=examples)


def _of(spans: list[Span], known: set[int]) -> list[Span]:
    return [span for span in spans if span.start in known]
