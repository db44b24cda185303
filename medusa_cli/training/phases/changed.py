"""The new model of a training that changes its base: its file, and how far it is from the old one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native
from medusa_cli.prompts.seeds.passages import PASSAGES
from medusa_cli.support.progress import phase

from ..backbone import adapter_file, merge, quality
from ..backbone.adapters import Adapters
from ..backbone.states import WholeText
from ..backbone.weights import BaseTensors
from ..heads.rows import FileRows, PickedRows
from ..leftovers import NEW_MODEL
from ..report.distance import distances
from ..report.messages import say
from .setup import Setup


@dataclass(frozen=True)
class ChangedModel:
    """own, foreign: its distance from the old one. rows [N] of the corpus, ascending, of the answers held out, and
    values [N, h] float16: what it computes there, after the final norm."""

    own: quality.Distance
    foreign: quality.Distance
    rows: NDArray[np.int64]
    values: Tensor


def write_new(setup: Setup, tensors: BaseTensors, adapters: Adapters, architecture: str, ending: str) -> Path:
    """The base with `adapters` merged, in the work folder, and the LoRA that was asked for. ending: of its name."""
    options, path = setup.options, setup.folder / f"{setup.options.kind}{NEW_MODEL}"
    if options.adapter is not None:
        adapter_file.write(adapters, architecture, setup.base.name, options.adapter)
    with phase(options.console, "Merging", "bytes") as bar:
        merge.merge(tensors, adapters, setup.base.name, path, bar.update, ending)
    setup.interrupt.check()
    return path


def compare_models(
    setup: Setup,
    old: native.Model,
    new: native.Model,
    held: Sequence[WholeText],
    states: FileRows | PickedRows,
    tokens: NDArray[np.int32],
    output: Tensor,
) -> ChangedModel:
    """By the engine, at the answers of `held`. states: of the old one, by row of the corpus; tokens: of the corpus;
    output [V, h]."""
    options, total = setup.options, sum(text.span.length for text in held)
    with phase(options.console, "Comparing models", "tokens") as bar:

        def on_rows(done: int) -> None:
            bar.update(done, total)
            setup.interrupt.check()

        at, values = quality.answer_states(new, held, options.threads, on_rows)
        values = values.to(setup.device)
        said = torch.from_numpy(tokens[at]).long().to(setup.device)
        own = quality.compare(states.gather(torch.from_numpy(at)), values, output, said)
        foreign = quality.foreign_distance(old, new, PASSAGES, output, options.threads)
    return ChangedModel(quality.Distance.of(own), foreign, at, values)


def tell(setup: Setup, own: quality.Distance, foreign: quality.Distance, path: Path) -> None:
    """After the output was written: what changed. Removes the new model's file `path` from the work folder."""
    setup.options.console.print(distances({"own text": own, "other text": foreign}))
    say(setup.options.console, "The model was changed: its text is not that of the one it was trained from.")
    path.unlink()
