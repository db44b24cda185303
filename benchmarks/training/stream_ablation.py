"""What each part of the streams is worth: one part changed at a time, all else equal (Speculative Streaming 4, fig. 7).

    python benchmarks/training/stream_ablation.py MODEL --text FOLDER --data mt_bench_dev.jsonl --work FOLDER
        --results FILE [--tokens 60000] [--seconds 50] [--one] [--only NAME ...] [--medusa FILE]
    python benchmarks/training/stream_ablation.py MODEL --results FILE --table

--text, --data, --work, --seconds: as of streams.py. Trains the rows that FILE lacks, in order, and adds them to it;
--one: one of them, for a machine that others use. Exits with 3 when none is left. Each row is trained for the same CPU
time. "stay alike": cosine of a stream's state with the model's own state at the position that the stream stands for,
after each layer and behind the token that really came, means over held-out text. "normed": after the final norm, where
--medusa FILE puts Medusa heads beside: their states before the output matrix.
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from streams import (
    ANSWER,
    SIZES,
    Material,
    Trained,
    add_row,
    answer,
    options,
    read_material,
    read_rows,
    train_streams,
    trained_row,
)
from torch import Tensor, nn
from torch.nn import functional

from medusa_cli.decoding.tree_search import RANKS, accuracy_table, greedy_tree, simulate
from medusa_cli.models import references
from medusa_cli.training.backbone.layers import Layer, TopLayers, rms_norm
from medusa_cli.training.heads.layers import HeadInputs, Heads, HeadShape
from medusa_cli.training.heads.start import weights_of
from medusa_cli.training.recipes import STREAMS_RECIPE as RECIPE
from medusa_cli.training.recipes import StreamsRecipe
from medusa_cli.training.streams.layers import Context, Piece, Streams, read_context

TOP_K = (1, 2, 3, 5, RANKS)
ALIKE_TEXTS = 12
NONE_LEFT = 3


class TurnedStreams(Streams):
    """Told apart by their values in place of embeddings, the paper's other way: those of stream j are turned, pair by
    pair, by j / count of a right angle."""

    def __init__(self, top: TopLayers, count: int, recipe: StreamsRecipe) -> None:
        super().__init__(top, count, recipe)
        self.embedding.requires_grad_(False)

    def _attend(self, layer: Layer, parts: tuple[Tensor, Tensor, Tensor], context: Context, number: int) -> Tensor:
        q, k, v = parts
        angle = torch.arange(1, self.count + 1) * (math.pi / 2 / self.count)
        cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
        first, second = v.view(-1, self.count, *v.shape[1:]).chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).view_as(v)
        return super()._attend(layer, (q, k, turned.to(v.dtype)), context, number)


class ScaledRootStreams(Streams):
    """One factor for each element of the root's embedding instead of a matrix."""

    def __init__(self, top: TopLayers, count: int, recipe: StreamsRecipe) -> None:
        super().__init__(top, count, replace(recipe, root_rank=0))
        self.sees_root = True
        self.factor = nn.Parameter(torch.zeros(top.shape.hidden))

    def vectors(self) -> list[nn.Parameter]:
        return [self.embedding, self.factor]

    def factors(self) -> list[nn.Parameter]:
        assert self.adapters is not None
        return list(self.adapters.parameters())

    def _entering(self, states: Tensor, roots: Tensor | None) -> Tensor:
        assert roots is not None
        states = states + self.factor * self.root_scale * roots.float()
        return (states[:, None, :] + self.stored_embedding()).flatten(0, 1)


@dataclass(frozen=True)
class Row:
    """One training. recipe: what it changes of the recipe."""

    name: str
    layers: int = 4
    heads: int = 4
    recipe: dict[str, Any] = field(default_factory=dict)
    make: type[Streams] = Streams


ROWS = (
    Row("all as shipped"),
    Row("2 layers", layers=2),
    Row("without the root", recipe={"root_rank": 0}),
    Row("factors on the root", make=ScaledRootStreams),
    Row("values turned", make=TurnedStreams),
    Row("embeddings alone", recipe={"rank": 0}),
    Row("rank 8", recipe={"rank": 8, "alpha": 8.0}),
    Row("2 streams", heads=2),
    Row("8 layers", layers=8),
    Row("6 streams", heads=6),
    Row("rank 128", recipe={"rank": 128, "alpha": 128.0}),
)
"""In the order of their interest. Without an adapter's scale changing: alpha is the rank, as in the recipe."""


def parser() -> ArgumentParser:
    parser = options(__doc__, seconds=50, tokens=60000)
    parser.add_argument("--one", action="store_true")
    parser.add_argument("--only", nargs="*", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument("--medusa", type=Path, metavar="FILE", help="Medusa heads of one block")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    done = {row["name"]: row for row in read_rows(arguments.results)}
    if arguments.table:
        show(done)
        return
    torch.set_num_threads(1)
    left = [row for row in ROWS if row.name in arguments.only and row.name not in done]
    if not left:
        sys.exit(NONE_LEFT)
    path = references.resolve(arguments.model, Console(stderr=True)).path
    arguments.work.mkdir(parents=True, exist_ok=True)
    answered = answer(path, arguments.data, arguments.work / f"answers-{ANSWER}.json")
    for row in left[: 1 if arguments.one else None]:
        arguments.heads, arguments.layers = row.heads, row.layers
        made = train(row, read_material(path, arguments, answered), arguments)
        add_row(arguments.results, made)
        print(made["name"], made["mt_bench"], flush=True)


def train(row: Row, material: Material, arguments: Namespace) -> dict[str, Any]:
    recipe = replace(RECIPE, **row.recipe)
    trained = train_streams(material, arguments, recipe, row.make)
    held, asked = trained.ranks()
    made = trained_row(row.name, arguments, trained, (held, asked))
    accuracy = accuracy_table(held)
    made["top_k"] = {k: simulate(asked, greedy_tree(accuracy[:, :k], max(SIZES)))[0] for k in TOP_K}
    made["alike"] = alike(trained)
    if arguments.medusa:
        made["alike_heads"] = alike_heads(trained, arguments.medusa)
    return made


@contextmanager
def recorded(top: TopLayers) -> Iterator[list[Tensor]]:
    """What the layers leave, one after the other, while it lasts."""
    left: list[Tensor] = []

    def watch(layer: Layer) -> Any:
        def leave(*given: Any) -> Tensor:
            left.append(Layer.leave(layer, *given))
            return left[-1]

        return leave

    for layer in top.layers:
        layer.__dict__["leave"] = watch(layer)
    try:
        yield left
    finally:
        for layer in top.layers:
            del layer.__dict__["leave"]


@dataclass(frozen=True)
class Read:
    """A held-out text. rows: from which all that is drafted lies inside; own: the base's states, of each layer from
    what enters the lowest on, and after the final norm, all of the text."""

    number: int
    piece: Piece
    context: Context
    own: list[Tensor]

    def likeness(self, drafted: Tensor, own: Tensor, count: int) -> Tensor:
        """[rows, count] cosines of drafted [rows, count, h] with the base's states so many tokens later."""
        first, rows = self.piece.first, self.piece.rows
        ahead = torch.arange(first, first + rows)[:, None] + torch.arange(1, count + 1)
        return functional.cosine_similarity(drafted, own[ahead], dim=-1)


def texts_read(trained: Trained, count: int) -> Iterator[Read]:
    """By the base; count: of drafts behind each row."""
    top, data = trained.top, trained.held
    for number, text in enumerate(data.states.texts[:ALIKE_TEXTS]):
        rows = len(text.fed) - text.answer_at - count
        if rows < 1:
            continue
        entered = torch.from_numpy(np.array(data.states.read(number))).float()
        with recorded(top) as left:
            context = read_context(top, entered, [Piece(len(text.fed), text.answer_at, rows)], to_the_end=True)
        normed = rms_norm(left[-1], top.output_norm, top.shape.eps)
        yield Read(number, context.pieces[0], context, [entered, *left[:-1], normed])


@torch.no_grad()
def alike(trained: Trained) -> list[list[float]]:
    """[stream][layer, from what enters the lowest on to what leaves the last but one, then after the final norm]: means
    over held-out text."""
    top, streams, data = trained.top, trained.streams, trained.held
    found: list[Tensor] = []
    for read in texts_read(trained, streams.count):
        assert data.source.embeddings is not None
        at = torch.from_numpy(data.examples.rows[data.examples.starts[read.number] :][: read.piece.rows])
        roots = data.source.embeddings.drafted(at, 1)[:, 0] if streams.sees_root else None
        with recorded(top) as side:
            normed = streams(top, read.context, roots).transpose(0, 1)
        drafted = [streams._entering(read.context.states, roots), *side[:-1], normed]
        cosines = [
            read.likeness(x.reshape(read.piece.rows, streams.count, -1), own, streams.count)
            for x, own in zip(drafted, read.own, strict=True)
        ]
        found.append(torch.stack(cosines, dim=-1))  # [rows, streams, layers]
    means: list[list[float]] = torch.cat(found).mean(dim=0).tolist()
    return means


@torch.no_grad()
def alike_heads(trained: Trained, path: Path) -> list[float]:
    """[head]: of Medusa heads, whose head k stands for the k-th token from the root on."""
    heads = Heads(HeadShape("medusa", trained.streams.count, trained.top.shape.hidden, blocks=1))
    heads.load_state_dict(weights_of(path, heads))
    found = []
    for read in texts_read(trained, heads.count):
        states = read.own[-1][read.piece.first :][: read.piece.rows]
        drafted = heads(HeadInputs(states)).transpose(0, 1)
        found.append(read.likeness(drafted, read.own[-1], heads.count))
    means: list[float] = torch.cat(found).mean(dim=0).tolist()
    return means


def show(rows: dict[str, dict[str, Any]]) -> None:
    table = Table("streams", "parameters", "positions", "CPU s", "4 nodes", "8", "16", "held-out text, 8")
    for name, row in rows.items():
        figures = [f"{row['mt_bench'][str(nodes)]:.2f}" for nodes in SIZES]
        counts = (f"{row['parameters']:,.0f}", f"{row['positions']:,}", f"{row['train_seconds']:.0f}")
        table.add_row(name, *counts, *figures, f"{row['held_out']['8']:.2f}")
    console = Console(width=110)
    console.print(table)
    table = Table("at most so many candidates a level", *(str(k) for k in TOP_K))
    for name, row in rows.items():
        table.add_row(name, *(f"{row['top_k'][str(k)]:.2f}" for k in TOP_K))
    console.print(table)
    for name, row in rows.items():
        layers = [f"layer {at}" for at in range(1, len(row["alike"][0]) - 1)]
        table = Table(f"stay alike: {name}", "below", *layers, "normed")
        for stream, cosines in enumerate(row["alike"], start=1):
            table.add_row(f"stream {stream}", *(f"{value:.2f}" for value in cosines))
        for head, cosine in enumerate(row.get("alike_heads", ()), start=1):
            table.add_row(f"Medusa head {head}", "", *("" for _ in layers), f"{cosine:.2f}")
        console.print(table)


if __name__ == "__main__":
    main()
