"""The base's top layers, which streams run through and joint training changes: opens them, compares them with the
engine's, feeds them its states, and writes them as a new model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native
from medusa_cli.models.base_file import BaseModel, read_base
from medusa_cli.prompts.seeds.data import PASSAGES
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import recall, remember
from medusa_cli.support.progress import phase

from ..backbone import checkpoint, merge, parity, quality, rewriting
from ..backbone.layers import Adapters, TopLayers
from ..backbone.shape import BaseTensors, DecoderShape, read_shape
from ..backbone.states import Embeddings, LayerStates, WholeText, whole_texts
from ..recipes import STREAMS
from ..reporting import GIB, say
from ..resuming import NEW_MODEL
from ..text.corpus import Corpus
from ..text.dataset import Span
from . import Setup
from .prepare import DataSet, Material


@dataclass(frozen=True)
class NewModel:
    """A base that was changed. base: its file, in the work folder; old, adapters: what it was, and what was added. own,
    foreign: its distance from the old one; moved: that of its matrices. rows [N]: the held-out answers' rows of the
    corpus, ascending; values [N, h] float16: what it computes there, after the final norm."""

    base: BaseModel
    old: BaseModel
    adapters: Adapters
    own: quality.Distance
    foreign: quality.Distance
    moved: rewriting.Moved
    rows: NDArray[np.int64]
    values: Tensor

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {"distance": {"own": asdict(self.own), "foreign": asdict(self.foreign)}, "moved": asdict(self.moved)}


def open_layers(setup: Setup) -> TopLayers:
    """The base's top layers in torch."""
    tensors = BaseTensors(setup.base.path)
    shape = read_shape(tensors.header)
    count = setup.options.top_layers
    first = 0 if count is None else len(shape.layers) - count
    return TopLayers(tensors, shape, first, setup.device)


# --- before any work -------------------------------------------------------------------------------


def check_model(setup: Setup) -> parity.Parity:
    """Checks that the layers can be trained; keeps the result. MedusaError, in one line, if they cannot."""
    header = BaseTensors(setup.base.path).header
    shape, options = read_shape(header), setup.options
    if options.kind == STREAMS:
        _check_streams(setup, shape)
    elif options.export_hf is not None and options.kind == "medusa":
        checkpoint.check(header)
    if options.kind != STREAMS and (options.joint_layers or 0) > len(shape.layers):
        raise MedusaError(f"joint_layers {options.joint_layers}: {setup.base.path} has {len(shape.layers)}")
    path, key = setup.folder / "parity.json", {"content": setup.base.content, "layers": options.top_layers}
    stored = recall(path)
    if stored.items() >= key.items():
        return parity.Parity(stored["tokens"], stored["agreement"])
    model, top = setup.open(), open_layers(setup)
    with phase(options.console, "Comparing layers", "tokens"):
        shown, allowed = [model.tokenize(text) for text in PASSAGES], parity.tolerance(top.tensors)
        found = parity.check(model, top, top.output, shown, options.threads, allowed)
    same = f"as in the engine on {found.agreement:.1%} of {found.tokens} tokens"
    say(options.console, f"Layers {top.first} to {top.first + len(top.layers) - 1} in torch: {same}")
    remember(path, {**key, **asdict(found)})
    return found


def _check_streams(setup: Setup, shape: DecoderShape) -> None:
    layers, path = setup.options.streams_layers, setup.base.path
    if layers >= len(shape.layers):
        raise MedusaError(f"streams_layers {layers}: {path} allows 1 to {len(shape.layers) - 1}")
    if any(layer.window is not None for layer in shape.layers):
        raise MedusaError(f"{path}: streams cannot draft for models with sliding windows: train another kind")
    if setup.options.streams_recipe.root_rank and setup.base.embedding is None:
        raise MedusaError(f"{path}: has no token embeddings of its vocabulary's size, streams need them")


# --- what the layers read --------------------------------------------------------------------------


def whole_texts_of(corpus: Corpus, data: DataSet) -> dict[str, list[WholeText]]:
    """The texts to train on ("train") and those held out ("held"), with their prompts."""
    prompts = corpus.prompts_by_row()
    held = list({span.start: span for span in (*data.split.build, *data.split.score)}.values())
    texts = {
        name: whole_texts(spans, prompts, data.tokens) for name, spans in (("train", data.split.train), ("held", held))
    }
    if not texts["train"] or not texts["held"]:
        raise MedusaError(f"{corpus.folder}: holds answers without their prompts, use another work_dir")
    return texts


def known_spans(spans: list[Span], texts: Sequence[WholeText]) -> list[Span]:
    """The spans that are in `texts`."""
    known = {text.span.start for text in texts}
    return [span for span in spans if span.start in known]


def only_known(data: DataSet, texts: Sequence[WholeText]) -> DataSet:
    """`data` with only those held-out texts that are among `texts`."""
    split = data.split
    build, score = known_spans(split.build, texts), known_spans(split.score, texts)
    return replace(data, split=replace(split, build=build, score=score))


def entered_texts(
    setup: Setup, top: TopLayers, model: native.Model, texts: list[WholeText], name: str = ""
) -> Embeddings | LayerStates:
    """What the lowest layer reads. If on disk: announced, made when read; MedusaError if it does not fit there. name:
    part of the folder's name, besides the layer."""
    if top.embeddings is not None:
        return Embeddings(texts, top.embeddings)
    layer, hidden = top.first - 1, setup.base.n_embd
    states = LayerStates(setup.folder / f"layer-{layer}{name}", texts, [layer], hidden, model, setup.options.threads)
    free, needed = shutil.disk_usage(setup.folder).free, states.missing_rows * hidden * 2
    if needed:
        say(setup.options.console, f"States of layer {layer}: up to {states.nbytes / GIB:.2f} GiB in {states.folder}")
    if needed > free:
        raise MedusaError(f"{states.folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} are free")
    return states


# --- a new model -----------------------------------------------------------------------------------


def make_new(
    setup: Setup,
    material: Material,
    old: native.Model,
    top: TopLayers,
    adapters: Adapters,
    held: Sequence[WholeText],
    ending: str,
) -> tuple[NewModel, native.Model]:
    """The base with `adapters` merged, in the work folder, and how far it is from `old`, the base: by the engine, at
    the answers of `held`. ending: its name's."""
    options, path = setup.options, setup.folder / f"{setup.options.kind}{NEW_MODEL}"
    with phase(options.console, "Merging", "bytes") as bar:
        moved = merge.merge(top.tensors, adapters, setup.base.name, path, bar.update, ending)
    say(
        options.console,
        f"The trained matrices moved by {moved.learned:.2%} of their size; rounding in the file is {moved.rounded:.2%}",
    )
    setup.interrupt.check()
    new, total = setup.open(path), sum(text.span.length for text in held)
    with setup.counting("Comparing models", "tokens", total) as on_rows:
        at, values = quality.answer_states(new, held, options.threads, on_rows)
        values = values.to(setup.device)
        said = torch.from_numpy(material.data.tokens[at]).long().to(setup.device)
        states = material.source.states.gather(torch.from_numpy(at))
        own = quality.Distance.of(quality.compare(states, values, top.output, said))
        foreign = quality.foreign_distance(old, new, PASSAGES, top.output, options.threads)
    return NewModel(read_base(path), setup.base, adapters, own, foreign, moved, at, values), new
