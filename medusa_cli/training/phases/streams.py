"""Streams, from the states below the model's top layers to weights that a file can hold.

Shared mode (Speculative Streaming 3): streams and base learn together, and the base's change becomes a new model. Its
main attention stays the ordinary one; the paper's eq. 1, where the base attends to its own streams, is not implemented.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.converters.heads.schema import STREAM_MATRICES
from medusa_cli.converters.heads.stream_heads import Adapter, StreamHeads

from ..backbone.layers import TopLayers
from ..backbone.states import BaseRows, LayerStates, TextData, WholeText
from ..heads.fit import tokens_per_step
from ..heads.layers import array_of
from ..heads.torch_setup import fastest
from ..recipes import MOST_STREAMS_EVALUATED, STREAMS_EVALUATIONS
from ..reporting import EVALUATION_NODES, TrainResult
from ..streams.fit import StreamsFit, learned_together, rank_streams
from ..streams.layers import Streams
from ..text.dataset import Span, examples_of
from . import Setup
from .fitting import Fitted, run_watched
from .layers import NewModel, entered_texts, make_new, open_layers, whole_texts_of
from .planning import Schedule, plan_streams, watched_texts
from .prepare import Material

NAME_ENDING = " (Speculative Streaming)"


@dataclass(frozen=True)
class FittedStreams(Fitted):
    """streams: rounded to what the file will hold; they run through the layers `top`. held: the held-out texts."""

    top: TopLayers
    streams: Streams
    held: TextData

    def rank(self, spans: Sequence[Span], on_rows: Callable[[int], None]) -> list[NDArray[np.int64]]:
        """heads.fit.rank_texts() of these held-out texts, in float32. on_rows may raise."""
        exact = replace(self.held, output=self.held.output.float())
        return rank_streams(self.top, self.streams, exact, spans, on_rows)


def train_streams(setup: Setup, material: Material, schedule: Schedule, seconds: float) -> FittedStreams:
    """Reads states, plans and trains. seconds: spent before. Stopped after Ctrl-C, with everything saved."""
    begin, data, vocabulary = time.monotonic(), material.data, material.vocabulary
    texts = whole_texts_of(material.corpus, data)
    model, top = setup.open(), open_layers(setup)
    base = BaseRows(data.tokens, fastest(top.output)) if setup.options.joint else None
    read = {
        name: TextData(
            _read_states(setup, top, model, texts[name], "" if name == "train" else f"-{name}"),
            material.source,
            examples_of(data.tokens, [text.span for text in texts[name]], vocabulary.t2d, setup.options.heads),
            fastest(vocabulary.output),
            base,
        )
        for name in ("train", "held")
    }
    recipe = setup.options.streams_recipe
    read["train"] = replace(read["train"], examples=learned_together(read["train"].examples, recipe))
    spent = seconds + time.monotonic() - begin
    plan = plan_streams(setup, top.first, read["train"].examples, schedule, spent)
    fit = StreamsFit(plan, top, setup.device)
    positions = plan.steps * plan.batch
    watched = watched_texts(data.split.build, positions, STREAMS_EVALUATIONS, MOST_STREAMS_EVALUATED)

    def held_out(streams: Streams) -> float:
        return tokens_per_step(rank_streams(top, streams, read["held"], watched), EVALUATION_NODES)

    fitted = run_watched(setup, fit, setup.options.name, read["train"], held_out, title="Training streams")
    with torch.no_grad():
        for parameter in fit.streams.factors():
            parameter.copy_(parameter.half())
    return FittedStreams(**vars(fitted), top=top, streams=fit.streams, held=read["held"])


def _read_states(setup: Setup, top: TopLayers, model: native.Model, texts: list[WholeText], name: str) -> LayerStates:
    """Reads all states at once."""
    states = entered_texts(setup, top, model, texts, name)
    assert isinstance(states, LayerStates)
    if total := states.missing_rows:
        with setup.counting("Reading states", "tokens", total) as on_rows:
            states.write(model, setup.options.threads, on_rows)
    return states


def merge_shared(setup: Setup, material: Material, fitted: FittedStreams) -> tuple[NewModel, FittedStreams]:
    """Writes the new model and measures it in the engine; returns it with the same streams, now without adapters,
    through its layers as they are stored."""
    adapters, held = fitted.streams.adapters, fitted.held.states.texts
    assert adapters is not None
    changed, _ = make_new(setup, material, setup.open(), fitted.top, adapters, held, NAME_ENDING)
    merged = open_layers(replace(setup, base=changed.base))
    streams = Streams(merged, fitted.streams.count, setup.options.streams_recipe.bare).to(setup.device)
    with torch.no_grad():
        known = {name: value for name, value in fitted.streams.state_dict().items() if not name.startswith("adapters.")}
        streams.load_state_dict(known)
    return changed, replace(fitted, top=merged, streams=streams)


def content(setup: Setup, material: Material, fitted: FittedStreams, result: TrainResult) -> StreamHeads:
    """The content of the file."""
    streams, top = fitted.streams, fitted.top
    adapters, root = streams.adapters, streams.stored_root()

    learned: list[dict[str, Adapter]] = []
    for layer in top.layers if adapters is not None else ():
        assert adapters is not None
        named = {name: adapters.matrices(f"blk.{layer.number}.{name}") for name in STREAM_MATRICES}
        learned.append({name: (array_of(a), array_of(b)) for name, (a, b) in named.items()})
    return StreamHeads(
        embedding=array_of(streams.stored_embedding()),
        first_layer=top.first,
        layers=len(top.layers),
        d2t=material.vocabulary.d2t,
        base_name=setup.base.name,
        base_fingerprint=setup.base.fingerprint,
        root=(array_of(root[0]), array_of(root[1])) if root is not None else None,
        adapters=learned,
        alpha=adapters.alpha if adapters is not None else 0.0,
        mode="lossless" if adapters is not None else "shared",
        accuracy=result.accuracy,
        tree=result.tree,
    )
