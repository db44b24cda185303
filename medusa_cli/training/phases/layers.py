"""The base's top layers, which streams run through and joint training changes: opened, compared with the engine's, fed
with its states, and written as a new model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native
from medusa_cli.models.base_file import BaseModel, output_rows, read_base
from medusa_cli.prompts.seeds.data import PASSAGES
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.progress import phase

from ..backbone import checkpoint, merge, parity, quality
from ..backbone.layers import Adapters, TopLayers
from ..backbone.shape import BaseTensors, DecoderShape, read_shape
from ..backbone.states import Embeddings, EnteredTexts, LayerStates, WholeText, whole_texts
from ..heads.rows import FileRows, PickedRows
from ..heads.torch_setup import matmul_dtype
from ..recipes import STREAMS
from ..reporting import GIB, say
from ..resuming import NEW_MODEL, recall, remember
from ..text.corpus import Corpus
from ..text.dataset import Span
from . import Setup
from .prepare import DataSet


@dataclass(frozen=True)
class Backbone:
    """The base's top layers in torch."""

    base: BaseModel
    layers: TopLayers

    @cached_property
    def output(self) -> Tensor:
        """[V, h] its whole output matrix."""
        rows = output_rows(self.base, np.arange(self.base.n_vocab))
        return torch.from_numpy(rows).to(self.layers.output_norm.device)

    @property
    def fast_output(self) -> Tensor:
        """`output` in the dtype that is multiplied fastest here."""
        return self.output.to(matmul_dtype(self.output.device))


@dataclass(frozen=True)
class NewModel:
    """A base that was changed: its file, in the work folder. own, foreign: its distance from the old one. rows [N] of
    the corpus, ascending, of the answers held out, and values [N, h] float16: what it computes there, after the final
    norm."""

    base: BaseModel
    own: quality.Distance
    foreign: quality.Distance
    rows: NDArray[np.int64]
    values: Tensor

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {"distance": {"own": asdict(self.own), "foreign": asdict(self.foreign)}}


def open_backbone(setup: Setup) -> Backbone:
    tensors = BaseTensors(setup.base.path)
    shape = read_shape(tensors.header)
    count = setup.options.top_layers
    first = 0 if count is None else len(shape.layers) - count
    return Backbone(setup.base, TopLayers(tensors, shape, first, setup.device))


# --- before any work -------------------------------------------------------------------------------


def check_model(setup: Setup) -> parity.Parity:
    """Whether the layers can be trained; what was found is kept. MedusaError, in one line, where they cannot."""
    shape = read_shape(BaseTensors(setup.base.path).header)
    if setup.options.kind == STREAMS:
        _check_streams(setup, shape)
    else:
        _check_joint(setup, shape)
    path, key = setup.folder / "parity.json", {"content": setup.base.content, "layers": setup.options.top_layers}
    stored = recall(path)
    if stored.items() >= key.items():
        return parity.Parity(stored["tokens"], stored["agreement"])
    model = native.Model(str(setup.base.path), n_gpu_layers=setup.options.n_gpu_layers)
    backbone = open_backbone(setup)
    top = backbone.layers
    with phase(setup.options.console, "Comparing layers", "tokens"):
        shown, allowed = [model.tokenize(text) for text in PASSAGES], parity.tolerance(top.tensors)
        found = parity.check(model, top, backbone.output, shown, setup.options.threads, allowed)
    same = f"as in the engine on {found.agreement:.1%} of {found.tokens} tokens"
    say(setup.options.console, f"Layers {top.first} to {top.first + len(top.layers) - 1} in torch: {same}")
    setup.folder.mkdir(parents=True, exist_ok=True)
    remember(path, {**key, **asdict(found)})
    return found


def _check_joint(setup: Setup, shape: DecoderShape) -> None:
    options, most = setup.options, len(shape.layers)
    if options.export_hf is not None and options.kind == "medusa":
        checkpoint.check(BaseTensors(setup.base.path).header)
    if options.joint_layers is not None and options.joint_layers > most:
        raise MedusaError(f"joint_layers {options.joint_layers}: {setup.base.path} has {most}")


def _check_streams(setup: Setup, shape: DecoderShape) -> None:
    layers, path = setup.options.streams_layers, setup.base.path
    if layers >= len(shape.layers):
        raise MedusaError(f"streams_layers {layers}: {path} allows 1 to {len(shape.layers) - 1}")
    if any(layer.window is not None for layer in shape.layers):
        raise MedusaError(f"{path}: streams cannot draft for models with sliding windows: train another kind")
    if setup.options.streams_recipe.root and setup.base.embedding is None:
        raise MedusaError(f"{path}: has no token embeddings of its vocabulary's size, streams need them")


# --- what the layers read --------------------------------------------------------------------------


def whole_texts_of(corpus: Corpus, data: DataSet) -> dict[str, list[WholeText]]:
    """Those to train on ("train") and those held out ("held"), with their prompts."""
    prompts = corpus.prompts_by_row()
    held = list({span.start: span for span in (*data.split.build, *data.split.score)}.values())
    texts = {
        name: whole_texts(spans, prompts, data.tokens) for name, spans in (("train", data.split.train), ("held", held))
    }
    if not texts["train"] or not texts["held"]:
        raise MedusaError(f"{corpus.folder}: holds answers without their prompts, use another work_dir")
    return texts


def known_spans(spans: list[Span], texts: Sequence[WholeText]) -> list[Span]:
    """Those of `texts`."""
    known = {text.span.start for text in texts}
    return [span for span in spans if span.start in known]


def only_known(data: DataSet, texts: Sequence[WholeText]) -> DataSet:
    """`data` with the held-out texts alone that are among `texts`."""
    split = data.split
    build, score = known_spans(split.build, texts), known_spans(split.score, texts)
    return replace(data, split=replace(split, build=build, score=score))


def entered_texts(
    setup: Setup, backbone: Backbone, model: native.Model, texts: list[WholeText], name: str = ""
) -> EnteredTexts:
    """What the lowest layer reads. From disk: announced, made when read; MedusaError when it does not fit there. name:
    of the folder, besides the layer."""
    if backbone.layers.embeddings is not None:
        return Embeddings(texts, backbone.layers.embeddings)
    layer, hidden = backbone.layers.first - 1, setup.base.n_embd
    states = LayerStates(setup.folder / f"layer-{layer}{name}", texts, layer, hidden, model, setup.options.threads)
    free, needed = shutil.disk_usage(setup.folder).free, states.missing_rows * hidden * 2
    if needed:
        say(setup.options.console, f"States of layer {layer}: up to {states.nbytes / GIB:.2f} GiB in {states.folder}")
    if needed > free:
        raise MedusaError(f"{states.folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} are free")
    return states


# --- a new model -----------------------------------------------------------------------------------


def write_new(setup: Setup, top: TopLayers, adapters: Adapters, ending: str) -> Path:
    """The base with `adapters` merged, in the work folder, and the LoRA that was asked for. ending: of its name."""
    options, path = setup.options, setup.folder / f"{setup.options.kind}{NEW_MODEL}"
    if options.adapter is not None:
        merge.write_adapter(adapters, top.shape.architecture, setup.base.name, options.adapter)
    with phase(options.console, "Merging", "bytes") as bar:
        merge.merge(top.tensors, adapters, setup.base.name, path, bar.update, ending)
    setup.interrupt.check()
    return path


def compare_models(
    setup: Setup,
    models: tuple[native.Model, native.Model],
    path: Path,
    held: Sequence[WholeText],
    states: FileRows | PickedRows,
    tokens: NDArray[np.int32],
    output: Tensor,
) -> NewModel:
    """(the old one, the new one) by the engine, at the answers of `held`. path: of the new one; states: of the old one,
    by row of the corpus; tokens: of the corpus; output [V, h]."""
    (old, new), options, total = models, setup.options, sum(text.span.length for text in held)
    with phase(options.console, "Comparing models", "tokens") as bar:

        def on_rows(done: int) -> None:
            bar.update(done, total)
            setup.interrupt.check()

        at, values = quality.answer_states(new, held, options.threads, on_rows)
        values = values.to(setup.device)
        said = torch.from_numpy(tokens[at]).long().to(setup.device)
        own = quality.compare(states.gather(torch.from_numpy(at)), values, output, said)
        foreign = quality.foreign_distance(old, new, PASSAGES, output, options.threads)
    return NewModel(read_base(path), quality.Distance.of(own), foreign, at, values)
