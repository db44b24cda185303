"""Tunes the MTP layer that a model brings along, from the check that torch has it to the file that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from medusa_cli.decoding import tree_search
from medusa_cli.models.base_file import EMBEDDING_NAME, OUTPUT_NAMES, embedding_rows, output_rows
from medusa_cli.models.tensors import Tensors
from medusa_cli.prompts.seeds.data import PASSAGES
from medusa_cli.support.files import recall, remember
from medusa_cli.support.progress import phase

from .. import reporting
from ..backbone import rewriting
from ..backbone.parity import tolerance
from ..backbone.shape import BaseTensors
from ..heads.fit import rank_texts
from ..heads.layers import array_of
from ..heads.rows import DraftRows
from ..heads.torch_setup import fastest
from ..mtp import parity
from ..mtp.fit import MtpFit, chain, chain_tokens_per_step, drafted_tokens
from ..mtp.layer import MtpLayer, read_layer
from ..mtp.shape import OUTPUT_NORM
from ..recipes import EVALUATIONS
from ..reporting import TunedResult, say
from ..text.dataset import examples_of
from . import Setup
from .finish import record_of
from .fitting import Fitted, run_watched
from .planning import Schedule, plan_fit, watched_texts
from .prepare import Material


def check_layer(setup: Setup) -> None:
    """Checks that the layer can be tuned; remembers that it can. MedusaError, in one line, if it cannot."""
    options, base = setup.options, setup.base
    layer = read_layer(base.path, options.heads, setup.device)
    path, key = setup.folder / "mtp.parity.json", {"content": base.content, "heads": options.heads}
    if recall(path).items() >= key.items():
        return
    rows = drafted_tokens(base.n_vocab, np.arange(0, dtype=np.int32))
    output = torch.from_numpy(output_rows(base, rows)).to(setup.device)
    with phase(options.console, "Comparing the layer", "tokens"):
        model = setup.open(next_layers=True)
        found = parity.check(
            model,
            layer,
            lambda tokens: torch.from_numpy(embedding_rows(base, np.asarray(tokens))),
            output,
            [model.tokenize(text) for text in PASSAGES],
            options.threads,
            tolerance(BaseTensors(base.path)).tie,
        )
    say(options.console, f"MTP layer in torch: as in the engine in {found.agreement:.1%} of {found.tokens} drafts")
    remember(path, {**key, **asdict(found)})


def tune(
    setup: Setup, material: Material, schedule: Schedule, seconds: float, writing: float
) -> tuple[TunedResult, list[Path]]:
    """Trains the layer and writes it: what was measured, and the files beside the output. seconds: spent before; of
    these, writing: that the text took. Stopped after Ctrl-C, with everything saved."""
    fitted, layer = _fitted(setup, material, schedule, seconds)
    is_new = fitted.best.step > 0
    if is_new:
        _round(layer, Tensors(setup.base.path))
    result = _measured(setup, material, layer, is_new)
    _write(setup, layer, is_new)
    nodes = len(result.tree) + 1
    document = record_of(setup, material, fitted, writing, result, nodes)
    document["before"] = {"acceptance_per_depth": result.acceptance_before, "tokens_per_step": result.before}
    return result, reporting.write_record(document, setup.options.output)


def _fitted(setup: Setup, material: Material, schedule: Schedule, seconds: float) -> tuple[Fitted, MtpLayer]:
    data, vocabulary, count = material.data, material.vocabulary, setup.options.heads
    layer = read_layer(setup.base.path, count, setup.device)
    examples = examples_of(data.tokens, data.split.train, vocabulary.t2d, count).in_pieces()
    plan = plan_fit(setup, examples, schedule, seconds, len(vocabulary.d2t))
    output = fastest(vocabulary.output)
    watched = watched_texts(data.split.build, plan.steps * plan.batch, EVALUATIONS)

    def held_out(layer: MtpLayer) -> float:
        texts = rank_texts(layer, material.source, data.tokens, watched, vocabulary.t2d, output)
        return chain_tokens_per_step(texts, count)

    rows = DraftRows(material.source, examples, output)
    fit, title = MtpFit(plan, layer, setup.device), "Tuning the layer"
    return run_watched(setup, fit, setup.options.name, rows, held_out, title=title, nodes=count + 1), layer


def _round(layer: MtpLayer, tensors: Tensors) -> None:
    """To what the file will hold, so that measurements are those of the file."""
    with torch.no_grad():
        for part in layer.parts:
            parameter, tensor = layer.weight(part), tensors.tensors[layer.shape.tensor(part)]
            parameter.copy_(torch.from_numpy(rewriting.rounded(array_of(parameter), tensor)))


def _measured(setup: Setup, material: Material, layer: MtpLayer, is_new: bool) -> TunedResult:
    """On held-out text that has not decided which weights were kept."""
    count, data = setup.options.heads, material.data
    spans = data.split.score
    found: list[list[NDArray[np.int64]]] = []
    with setup.counting("Measuring", "layers", 2) as on_rows:
        for one in (read_layer(setup.base.path, count, setup.device), layer):
            vocabulary = material.vocabulary
            found.append(rank_texts(one, material.source, data.tokens, spans, vocabulary.t2d, vocabulary.output))
            on_rows(len(found))
    before, after = (_Chains.of(ranks, count) for ranks in found)
    accuracy = tree_search.accuracy_table(found[1])
    return TunedResult(
        output=setup.options.output,
        tokens=sum(span.length for span in data.split.train),
        accuracy=accuracy.tolist(),
        tree=chain(count),
        predicted=tree_search.predicted_tokens_per_step(accuracy, chain(count)),
        measured=after.by_size[count + 1],
        acceptance=after.acceptance,
        by_size=after.by_size,
        before=before.by_size,
        acceptance_before=before.acceptance,
        is_new=is_new,
    )


@dataclass(frozen=True)
class _Chains:
    """What chains of 1, 2, .. drafts bring: tokens per step by nodes, root included; how often at least so many of the
    longest are accepted."""

    by_size: dict[int, float]
    acceptance: list[float]

    @staticmethod
    def of(ranks: Sequence[NDArray[np.int64]], count: int) -> _Chains:
        by_size = {length + 1: chain_tokens_per_step(ranks, length) for length in range(1, count + 1)}
        return _Chains(by_size, tree_search.simulate(ranks, chain(count))[1])


def _write(setup: Setup, layer: MtpLayer, is_new: bool) -> None:
    """The model with this layer, or the layer alone. A matrix that was changed is stored as rewriting.stored_as()."""
    tensors, shape, only = Tensors(setup.base.path), layer.shape, None
    changed = {shape.tensor(part): partial(array_of, layer.weight(part)) for part in layer.parts} if is_new else {}
    if setup.options.sidecar:
        own = (name for name in tensors.tensors if name.startswith(shape.tensor("")))
        only = {*own, EMBEDDING_NAME, *OUTPUT_NAMES, OUTPUT_NORM}
    with phase(setup.options.console, "Writing file", "bytes") as bar:
        moved = rewriting.rewrite(tensors, changed, tensors.header.kv, setup.options.output, bar.update, only)
    if is_new:
        learned, rounded = f"{moved.learned:.2%}", f"{moved.rounded:.2%}"
        say(setup.options.console, f"The layer moved by {learned} of its size; rounding in the file is {rounded}")
