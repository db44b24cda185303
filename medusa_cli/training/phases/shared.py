"""Shared mode (Speculative Streaming 3): streams and base learned together, and the base's change becomes a new model.

Its main attention stays the ordinary one; the paper's eq. 1, where the base attends to its own streams, is not built.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from medusa_cli import native
from medusa_cli.models.base_file import BaseModel, read_base

from ..backbone import quality
from ..streams.layers import Streams
from .changed import compare_models, write_new
from .prepare import DataSet, PreparedRows
from .setup import Setup
from .streams import FittedStreams, open_layers, whole_output

NAME_ENDING = " (Speculative Streaming)"


@dataclass(frozen=True)
class SharedResult:
    """base: the new model's file, in the work folder; fitted: streams through its layers, which have no adapters. own,
    foreign: its distance from the old one."""

    base: BaseModel
    fitted: FittedStreams
    own: quality.Distance
    foreign: quality.Distance

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {"distance": {"own": asdict(self.own), "foreign": asdict(self.foreign)}}


def merge_shared(setup: Setup, data: DataSet, rows: PreparedRows, fitted: FittedStreams) -> SharedResult:
    """Writes the new model, measures it by the engine, and runs the same streams through its layers as they are
    stored."""
    tensors, adapters = fitted.top.tensors, fitted.streams.adapters
    assert adapters is not None
    path = write_new(setup, tensors, adapters, fitted.top.shape.architecture, NAME_ENDING)
    old, new = (native.Model(str(file), n_gpu_layers=setup.options.n_gpu_layers) for file in (setup.base.path, path))
    held = list(fitted.data.states.texts)
    changed = compare_models(setup, old, new, held, rows.source.states, data.tokens, whole_output(setup))
    base = read_base(path)
    top = open_layers(replace(setup, base=base))
    streams = Streams(top, fitted.plan.streams, fitted.plan.recipe.bare).to(setup.device)
    with torch.no_grad():
        known = {name: value for name, value in fitted.streams.state_dict().items() if not name.startswith("adapters.")}
        streams.load_state_dict(known)
    return SharedResult(base, replace(fitted, top=top, streams=streams), changed.own, changed.foreign)
