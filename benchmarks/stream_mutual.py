"""The paper's whole shared mode, simulated: the base reads its own streams, trees are pruned by early exit.

    python benchmarks/stream_mutual.py MODEL --text FOLDER --data mt_bench_dev.jsonl --work FOLDER --results FILE
                                       [--tokens 60000] [--seconds 100] [--layers 4] [--mutual] [--prune]
    python benchmarks/stream_mutual.py MODEL --results FILE --table

Speculative Streaming 3, equation 1: at each position the main stream of the top layers attends to what came before and
to the streams that start there. So streams cannot know the root (it follows from the main stream), and all that is said
is the new model's. Without --mutual the same training (adapters shared by base and streams, the text's tokens as the
aim, no root) with a main stream that reads no streams. --prune: a transform of rank 8 from the state below the top
layers to the draft vocabulary learns the next token; children of a tree's nodes that it finds less likely than a
threshold are cut before the top layers, with what is below them. Nodes below wrong ones count as kept, since what the
model would make of them is not known here: the share that is cut is a lower bound.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from streams import ANSWER, SIZES, Material, Trained, answer, as_row, read_data, read_material, train_streams
from torch import Tensor, nn
from torch.nn import functional

from medusa_cli.decoding.tree_search import RANKS, accuracy_table, greedy_tree, simulate
from medusa_cli.models import references
from medusa_cli.models.base_file import output_rows
from medusa_cli.training.backbone.layers import Layer, TopLayers, rms_norm
from medusa_cli.training.backbone.loss import compare
from medusa_cli.training.backbone.quality import Distance
from medusa_cli.training.heads.loss import heads_loss
from medusa_cli.training.heads.rows import text_batches
from medusa_cli.training.streams.layers import Context, Piece, Streams, attend
from medusa_cli.training.streams.ranking import RANKED_ROWS, rank_streams
from medusa_cli.training.streams.recipe import SHARED_RECIPES

NODES = 16
PRUNE_RANK, PRUNE_SECONDS, PRUNE_ROWS = 8, 20.0, 1024
THRESHOLDS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


class MutualStreams(Streams):
    """Main stream and streams side by side, layer by layer; forward() gives what read() came to."""

    def read(self, top: TopLayers, entered: Tensor, pieces: Sequence[Piece]) -> Context:
        lengths = [piece.length for piece in pieces]
        places = torch.cat([torch.arange(piece.first, piece.first + piece.rows) for piece in pieces])
        turned = top.rotations(lengths, entered.device)
        later = (places[:, None] + torch.arange(1, self.count + 1)).flatten()
        side_turned = top.rotations_at(later)
        split = entered.split(lengths)
        started = torch.cat([text[p.first : p.first + p.rows] for text, p in zip(split, pieces, strict=True)])
        main, side = entered, self._entering(started, None)
        rows = [piece.rows * self.count for piece in pieces]
        for layer in top.layers:
            own = layer.attention_parts(main, turned[layer.of.rope], self.project)
            others = layer.attention_parts(side, side_turned[layer.of.rope], self.project)
            mine_of = zip(*(part.split(lengths) for part in own), strict=True)
            theirs_of = zip(*(part.split(rows) for part in others), strict=True)
            texts = list(zip(mine_of, theirs_of, pieces, strict=True))
            scale = layer.shape.query_scale
            seen = [attend(theirs, mine[1:], piece, self.count, scale) for mine, theirs, piece in texts]
            both = [attend_to_streams(layer, mine, theirs, piece, self.count) for mine, theirs, piece in texts]
            main = layer.leave(main, torch.cat(both), self.project)
            side = layer.leave(side, torch.cat(seen), self.project)
        normed = rms_norm(side, top.output_norm, top.shape.eps)
        self.drafted = normed.view(-1, self.count, normed.shape[-1]).transpose(0, 1)
        last = main.split(lengths)
        said = torch.cat([text[p.first : p.first + p.rows] for text, p in zip(last, pieces, strict=True)])
        return Context(started, [], [], pieces, rms_norm(said, top.output_norm, top.shape.eps))

    def forward(self, top: TopLayers, context: Context, roots: Tensor | None) -> Tensor:
        return self.drafted


def attend_to_streams(
    layer: Layer, mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...], piece: Piece, count: int
) -> Tensor:
    """[length, heads * head_size] of one text's main stream: its rows before `piece` see what came before, those of
    `piece` their own streams as well."""
    q, k, v = mine
    before = layer.attend(q[: piece.first], k[: piece.first], v[: piece.first]) if piece.first else None
    heads_kv, size, rows = k.shape[1], k.shape[2], piece.rows
    end, group = piece.first + rows, q.shape[1] // heads_kv
    asked = q[piece.first : end].view(rows, heads_kv, group, size).transpose(0, 1)  # [heads_kv, rows, group, size]
    keys, values = (part[:end].transpose(0, 1) for part in (k, v))
    side_k, side_v = (part.view(rows, count, heads_kv, size).permute(2, 0, 1, 3) for part in theirs[1:])
    past = (asked.flatten(1, 2) @ keys.transpose(1, 2)).view(heads_kv, rows, group, end).float()
    places = torch.arange(end)
    past = past.masked_fill(places > places[piece.first :, None, None], float("-inf"))
    ahead = (asked @ side_k.transpose(2, 3)).float()
    weights = torch.softmax(torch.cat((past, ahead), dim=-1) * layer.shape.query_scale, dim=-1).to(v.dtype)
    w_past, w_ahead = weights.split((end, count), dim=-1)
    mixed = (w_past.flatten(1, 2) @ values).view(heads_kv, rows, group, size) + w_ahead @ side_v
    mixed = mixed.transpose(0, 1).reshape(rows, -1)
    after = layer.attend(q, k, v)[end:] if end < piece.length else None
    return torch.cat([part for part in (before, mixed, after) if part is not None])


class EarlyExit(nn.Module):
    """From a state below the top layers to what the final norm would leave: x + up(down(x)), rank 8."""

    def __init__(self, top: TopLayers) -> None:
        super().__init__()
        self.top_norm, self.eps = top.output_norm, top.shape.eps
        self.down = nn.Linear(top.shape.hidden, PRUNE_RANK, bias=False)
        self.up = nn.Linear(PRUNE_RANK, top.shape.hidden, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = nn.Parameter(self.top_norm.clone())

    def forward(self, x: Tensor) -> Tensor:
        x = functional.rms_norm(x.float(), (x.shape[-1],), None, self.eps)
        return (x + self.up(self.down(x))) * self.scale


def learn_exit(material: Material, arguments: argparse.Namespace, top: TopLayers) -> EarlyExit:
    """For PRUNE_SECONDS of CPU, on the next token of the text."""
    data = read_data(material, arguments, top)["train"]
    torch.manual_seed(0)
    early, rng = EarlyExit(top), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(early.parameters(), lr=2e-3, weight_decay=0.0)
    begin = time.process_time()
    while time.process_time() - begin < PRUNE_SECONDS:
        states, wanted = [], []
        for number in rng.integers(0, len(data.states.texts), 8).tolist():
            text = data.states.texts[number]
            states.append(torch.from_numpy(np.array(data.states.read(number)[text.answer_at :])).float())
            said = material.tokens[text.span.start : text.span.start + text.span.length]
            wanted.append(torch.from_numpy(material.t2d[said]).long())
        loss = heads_loss(early(torch.cat(states))[None], torch.cat(wanted)[:, None], data.output, PRUNE_ROWS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return early


@torch.no_grad()
def pruned(trained: Trained, early: EarlyExit, tree: Sequence[Sequence[int]]) -> list[dict[str, float]]:
    """For each threshold: tokens per step on held-out text, and the share of the tree's nodes that are cut."""
    data, streams, count = trained.held, trained.streams, trained.streams.count
    tables: list[NDArray[np.int64]] = []
    chances: list[NDArray[np.float32]] = []
    for picked in text_batches(data.examples, 1):  # one text at a time
        z, _ = data.streams(trained.top, streams, picked)
        number = int(np.searchsorted(data.examples.starts, int(picked.index[0]), side="right")) - 1
        text, rows = data.states.texts[number], len(picked.index)
        kept = rows - count + 1
        if kept < 1:
            continue
        drafted = torch.stack([(z[j].float() @ data.output.T).topk(RANKS, dim=1).indices for j in range(count)], dim=1)
        states = torch.from_numpy(np.array(data.states.read(number)[text.answer_at :])).float()
        p = torch.softmax(early(states) @ data.output.T, dim=1)
        at = (torch.arange(kept)[:, None] + torch.arange(1, count + 1)).clamp(max=len(p) - 1)
        chances.append(p[at[:, :, None], drafted[:kept]].numpy())
        came = torch.from_numpy(data.examples.target)[picked.index].long()[:kept]
        hit = drafted[:kept] == came[:, :, None]
        tables.append(torch.where(hit.any(dim=2), hit.float().argmax(dim=2), RANKS).numpy())
    found = []
    for threshold in THRESHOLDS:
        ranks = [table.copy() for table in tables]
        cut = total = 0
        for table, chance in zip(ranks, chances, strict=True):
            cut, total = cut + cut_nodes(table, chance, tree, threshold), total + len(table) * len(tree)
            own = np.take_along_axis(chance, np.minimum(table, RANKS - 1)[:, :, None], axis=2)[:, :, 0]
            table[(table < RANKS) & (own < threshold)] = RANKS
        found.append({"threshold": threshold, "tokens_per_step": simulate(ranks, tree)[0], "cut": cut / total})
    return found


def cut_nodes(
    table: NDArray[np.int64], chance: NDArray[np.float32], tree: Sequence[Sequence[int]], threshold: float
) -> int:
    """Over all positions; a node is judged where its parent is right."""
    state: dict[tuple[int, ...], tuple[Any, Any]] = {(): (np.ones(len(table), bool), np.zeros(len(table), bool))}
    cut = 0
    for choice in sorted(map(tuple, tree), key=len):
        right, gone = state[choice[:-1]]
        depth, rank = len(choice) - 1, choice[-1]
        mine = gone | (right & (chance[:, depth, rank] < threshold))
        state[choice] = (right & ~mine & (table[:, depth] == rank), mine)
        cut += int(mine.sum())
    return cut


@torch.no_grad()
def distance(material: Material, trained: Trained) -> Distance:
    """Of what the base says with these adapters (and streams), on held-out text."""
    output = torch.from_numpy(output_rows(material.base, np.arange(material.base.n_vocab)))
    parts = []
    for picked in text_batches(trained.held.examples, RANKED_ROWS):
        _, said = trained.held.streams(trained.top, trained.streams, picked)
        assert said is not None
        rows = torch.from_numpy(trained.held.examples.rows)[picked.index]
        old = trained.held.source.states.gather(rows)
        parts.append(compare(old, said, output, torch.from_numpy(material.tokens[rows.numpy()]).long()))
    return Distance.of(torch.cat(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=60000)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--mutual", action="store_true")
    parser.add_argument("--prune", action="store_true")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        show(arguments.results)
        return
    torch.set_num_threads(1)
    path = references.resolve(arguments.model, Console(stderr=True)).path
    answered = answer(path, arguments.data, arguments.work / f"answers-{ANSWER}.json")
    material = read_material(path, arguments, answered)
    recipe = replace(SHARED_RECIPES["truth"], root=False)
    trained = train_streams(material, arguments, recipe, MutualStreams if arguments.mutual else Streams)
    held, asked = (rank_streams(trained.top, trained.streams, part) for part in (trained.held, trained.asked))
    name = "the base reads its streams" if arguments.mutual else "it does not"
    parameters = sum(parameter.numel() for parameter in trained.streams.parameters())
    row = as_row(name, arguments, held, asked, trained.positions, trained.seconds, trained.reading, parameters)
    row["distance"] = vars(distance(material, trained))
    if arguments.prune:
        tree = greedy_tree(accuracy_table(held), NODES)
        row["pruned"] = pruned(trained, learn_exit(material, arguments, trained.top), tree)
    with arguments.results.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row))


def show(results: Path) -> None:
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    table = Table(
        "main stream", "positions", *(f"{n} nodes" for n in SIZES), "KL", "same likeliest", "perplexity", "was"
    )
    for row in rows:
        far = row["distance"]
        shown = (f"{far['kl']:.4f}", f"{far['top1']:.1%}", f"{far['perplexity']:.3f}", f"{far['base_perplexity']:.3f}")
        table.add_row(row["name"], f"{row['positions']:,}", *(f"{row['held_out'][str(n)]:.2f}" for n in SIZES), *shown)
    Console(width=120).print(table)
    for row in rows:
        table = Table(f"{row['name']}: cut below", "tokens per step", "nodes cut")
        for one in row.get("pruned", []):
            table.add_row(f"{one['threshold']:g}", f"{one['tokens_per_step']:.3f}", f"{one['cut']:.1%}")
        if row.get("pruned"):
            Console(width=120).print(table)


if __name__ == "__main__":
    main()
