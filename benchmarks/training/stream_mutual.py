"""The paper's whole shared mode, simulated: the base reads its own streams, and trees are pruned by early exit.

    python benchmarks/training/stream_mutual.py MODEL --text FOLDER --data mt_bench_dev.jsonl --work FOLDER
        --results FILE [--tokens 148000] [--seconds 120] [--layers 4] [--heads 4] [--only NAME ...]
    python benchmarks/training/stream_mutual.py MODEL --results FILE --table [--pass-ms 1:2.99 4:4.28 ...]

--text, --data, --work, --seconds: as of streams.py. Trains the rows that FILE lacks, in order, and adds them to it.

Speculative Streaming 3, equation 1: in the top layers the main stream at a position attends to what came before and to
the streams that start there. So streams cannot know the root (it follows from the main stream), and all that is said is
the new model's. Rows are pairs: the same training with and without equation 1. "distill": the base learns to keep its
own distribution; "truth": the text, as in the paper. Held-out text and answers are the unchanged model's.

Pruning: a transform from the state below the top layers to the state after them (of rank 8, beside the state itself)
learns the next token; children of a tree's nodes that it finds less likely than a threshold are cut before the top
layers, with what is below them. Children of wrong nodes count as kept unless their parent is cut, since what the layers
would make of them is not known here: the share that is cut is a lower bound.

--pass-ms: time of a pass over so many tokens, as `passes.py verify` tells. A step's time follows from the share of the
weights that the top layers and the output rows have: with equation 1 every node that is left goes through the top
layers with its streams beside it; without, the streams of one node follow when the others are judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from streams import (
    ANSWER,
    SIZES,
    Material,
    Ranks,
    Trained,
    add_row,
    answer,
    options,
    read_data,
    read_material,
    read_rows,
    train_streams,
    trained_row,
)
from torch import Tensor, nn
from torch.nn import functional

from medusa_cli.decoding.tree_search import RANKS, Choice, accuracy_table, greedy_tree, simulate
from medusa_cli.models import references
from medusa_cli.models.base_file import output_rows
from medusa_cli.training.backbone.layers import Layer, TopLayers, rms_norm
from medusa_cli.training.backbone.quality import Distance
from medusa_cli.training.backbone.shape import MATRICES
from medusa_cli.training.backbone.states import TextData
from medusa_cli.training.heads.loss import compare, heads_loss
from medusa_cli.training.loop import text_batches
from medusa_cli.training.recipes import SHARED_RECIPES, Strategy
from medusa_cli.training.streams.fit import RANKED_ROWS, drafted
from medusa_cli.training.streams.layers import Context, Piece, Streams, attend

EXIT_RANK, EXIT_STEPS, EXIT_TEXTS, EXIT_BATCH, EXIT_RATE = 8, 120, 200, 6, 2e-3
"""How the early exit learns: EXIT_BATCH of the first EXIT_TEXTS texts a step."""
LOSS_ROWS = 256
THRESHOLDS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


@dataclass(frozen=True)
class Row:
    """One training."""

    name: str
    strategy: Strategy
    mutual: bool


ROWS = (
    Row("distill, equation 1", "distill", mutual=True),
    Row("distill, without", "distill", mutual=False),
    Row("truth, equation 1", "truth", mutual=True),
    Row("truth, without", "truth", mutual=False),
)


@dataclass(frozen=True)
class MutualContext(Context):
    """drafted [streams, B, h]: what the streams came to, after the final norm."""

    drafted: Tensor | None = None


class MutualStreams(Streams):
    """Main stream and streams side by side, layer by layer; forward() gives what read() came to."""

    def read(self, top: TopLayers, entered: Tensor, drafting: Sequence[Piece]) -> MutualContext:
        """In use, all rows of an answer have their streams: so has the last one here, which drafts nothing."""
        pieces = [replace(piece, rows=piece.length - piece.first) for piece in drafting]
        lengths = [piece.length for piece in pieces]

        def picked(rows: Tensor) -> Tensor:
            texts = zip(rows.split(lengths), pieces, strict=True)
            return torch.cat([text[piece.first : piece.first + piece.rows] for text, piece in texts])

        started = picked(entered)
        empty = MutualContext(started, [], [], pieces)
        later = (empty.positions[:, None] + torch.arange(1, self.count + 1)).flatten()
        turned, side_turned = top.rotations(lengths, entered.device), top.rotations_at(later)
        main, side = entered, self._entering(started, None)
        rows = [piece.rows * self.count for piece in pieces]
        for layer in top.layers:
            own = layer.attention_parts(main, turned[layer.of.rope], self.project)
            others = layer.attention_parts(side, side_turned[layer.of.rope], self.project)
            of_main = zip(*(part.split(lengths) for part in own), strict=True)
            of_streams = zip(*(part.split(rows) for part in others), strict=True)
            texts = list(zip(of_main, of_streams, pieces, strict=True))
            scale = layer.shape.query_scale
            seen = [attend(theirs, mine[1:], piece, self.count, scale) for mine, theirs, piece in texts]
            both = [attend_to_streams(layer, mine, theirs[1:], piece, self.count) for mine, theirs, piece in texts]
            main = layer.leave(main, torch.cat(both), self.project)
            side = layer.leave(side, torch.cat(seen), self.project)
        said, drafted = (rms_norm(x, top.output_norm, top.shape.eps) for x in (picked(main), side))
        by_text = zip(
            drafted.view(len(started), self.count, -1).split([one.rows for one in pieces]), drafting, strict=True
        )
        kept = torch.cat([text[: piece.rows] for text, piece in by_text])
        return replace(empty, said=said, drafted=kept.transpose(0, 1))

    def forward(self, top: TopLayers, context: Context, roots: Tensor | None) -> Tensor:
        assert isinstance(context, MutualContext)
        assert context.drafted is not None
        return context.drafted


def attend_to_streams(
    layer: Layer, main: tuple[Tensor, ...], streams: tuple[Tensor, ...], piece: Piece, count: int
) -> Tensor:
    """[length, heads * head_size] of one text's main stream: rows of `piece` see their own streams as well as what came
    before, the others only that. main: queries, keys and values; streams: keys and values, as streams.layers.attend."""
    q, k, v = main
    rows, heads_kv, size, end = piece.rows, k.shape[1], k.shape[2], piece.first + piece.rows
    group = q.shape[1] // heads_kv
    asked = q[piece.first : end].view(rows, heads_kv, group, size).transpose(0, 1)  # [heads_kv, rows, group, size]
    keys, values = (part[:end].transpose(0, 1) for part in (k, v))  # [heads_kv, end, size]
    own_k, own_v = (part.view(rows, count, heads_kv, size).permute(2, 0, 1, 3) for part in streams)
    before = (asked.flatten(1, 2) @ keys.transpose(1, 2)).view(heads_kv, rows, group, end).float()
    places = torch.arange(end)
    before = before.masked_fill(places > places[piece.first :, None, None], float("-inf"))
    ahead = (asked @ own_k.transpose(2, 3)).float()
    weights = torch.softmax(torch.cat((before, ahead), dim=-1) * layer.shape.query_scale, dim=-1).to(v.dtype)
    past, own = weights.split((end, count), dim=-1)
    mixed = (past.flatten(1, 2) @ values).view(heads_kv, rows, group, size) + own @ own_v
    plain = layer.attend(q, k, v)
    return torch.cat((plain[: piece.first], mixed.transpose(0, 1).reshape(rows, -1), plain[end:]))


class EarlyExit(nn.Module):
    """From states below the top layers [R, h] to about what the final norm leaves of those after them."""

    def __init__(self, top: TopLayers) -> None:
        super().__init__()
        hidden = top.shape.hidden
        self.down, self.up = nn.Linear(hidden, EXIT_RANK, bias=False), nn.Linear(EXIT_RANK, hidden, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = nn.Parameter(top.output_norm.clone())

    def forward(self, states: Tensor) -> Tensor:
        x = functional.rms_norm(states.float(), (states.shape[-1],))
        y: Tensor = (x + self.up(self.down(x))) * self.scale
        return y


def learn_exit(material: Material, data: TextData, top: TopLayers) -> EarlyExit:
    """On the next tokens of the text that streams learn from."""
    torch.manual_seed(0)
    early, rng = EarlyExit(top), np.random.default_rng(0)
    optimizer = torch.optim.AdamW(early.parameters(), lr=EXIT_RATE, weight_decay=0.0)
    for _ in range(EXIT_STEPS):
        states, wanted = [], []
        for number in rng.integers(0, min(EXIT_TEXTS, len(data.states.texts)), EXIT_BATCH).tolist():
            span = data.states.texts[number].span
            states.append(answer_states(data, number))
            said = material.tokens[span.start : span.start + span.length]
            wanted.append(torch.from_numpy(material.t2d[said]).long())
        loss = heads_loss(early(torch.cat(states))[None], torch.cat(wanted)[:, None], data.output, LOSS_ROWS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return early


def answer_states(data: TextData, number: int) -> Tensor:
    """[length, h] below the top layers; behind row i comes token i of the answer."""
    states = np.array(data.states.read(number)[data.states.texts[number].answer_at :])
    return torch.from_numpy(states).float()


@dataclass(frozen=True)
class Judged:
    """One text: ranks [positions, streams] as in tree_search; chance [positions, streams, RANKS] that the early exit
    gives each stream's candidates behind the tokens that really came before them."""

    ranks: NDArray[np.int64]
    chance: NDArray[np.float32]

    def pruned(self, threshold: float) -> NDArray[np.int64]:
        """The ranks where candidates under the threshold do not count."""
        ranks = np.minimum(self.ranks, RANKS - 1)[:, :, None]
        own = np.take_along_axis(self.chance, ranks, axis=2)[:, :, 0]
        return np.where(own < threshold, RANKS, self.ranks)


@torch.no_grad()
def judge(trained: Trained, data: TextData, ranks: Ranks, early: EarlyExit) -> list[Judged]:
    """ranks: of `data`, as rank_streams() found them."""
    count, texts = trained.streams.count, list[Judged]()
    for number, picked in enumerate(text_batches(data.examples, 1)):  # one text at a time
        z, _ = drafted(data, trained.top, trained.streams, picked)
        positions = len(picked.index) - count + 1
        if positions < 1:
            continue
        candidates = [(z[j, :positions] @ data.output.T).topk(RANKS, dim=1).indices for j in range(count)]
        p = torch.softmax(early(answer_states(data, number)) @ data.output.T, dim=1)
        # stream j drafts behind the token at row i + j, whose state is row i + j + 1
        behind = [p[1 + j :][:positions].gather(1, drafted) for j, drafted in enumerate(candidates)]
        texts.append(Judged(ranks[len(texts)], torch.stack(behind, dim=1).numpy()))
    return texts


def cut_nodes(text: Judged, tree: Sequence[Sequence[int]], threshold: float) -> int:
    """Over all positions: nodes under the threshold whose parent is right, and all that is below them."""
    everywhere = np.ones(len(text.ranks), dtype=bool)
    right: dict[Choice, NDArray[np.bool_]] = {(): everywhere}
    cut: dict[Choice, NDArray[np.bool_]] = {(): ~everywhere}
    for choice in sorted(map(tuple, tree), key=len):
        parent, depth, rank = choice[:-1], len(choice) - 1, choice[-1]
        cut[choice] = cut[parent] | (right[parent] & (text.chance[:, depth, rank] < threshold))
        right[choice] = right[parent] & ~cut[choice] & (text.ranks[:, depth] == rank)
    return sum(int(mask.sum()) for choice, mask in cut.items() if choice)


def prune(texts: Sequence[Judged], tree: Sequence[Sequence[int]], threshold: float) -> dict[str, float]:
    """cut: share of the drafted nodes; parents: nodes that the early exit looks at."""
    nodes = len(tree) * sum(len(text.ranks) for text in texts)
    cut = sum(cut_nodes(text, tree, threshold) for text in texts)
    walked, _ = simulate([text.pruned(threshold) for text in texts], tree)
    parents = len({tuple(choice[:-1]) for choice in tree})
    found = {"nodes": len(tree) + 1, "parents": parents, "threshold": threshold}
    return {**found, "tokens_per_step": walked, "cut": cut / nodes}


@torch.no_grad()
def exit_right(data: TextData, early: EarlyExit) -> float:
    """How often the early exit finds the token likeliest that really came next."""
    right = []
    for number, picked in enumerate(text_batches(data.examples, 1)):
        found = (early(answer_states(data, number)[1:]) @ data.output.T).argmax(dim=1)
        right.append(found[: len(picked.index)] == data.drafts.wanted(picked)[:, 0])
    return float(torch.cat(right).float().mean())


@torch.no_grad()
def distance(material: Material, trained: Trained) -> Distance:
    """Of what the base says with these adapters (and streams), on held-out text."""
    output = torch.from_numpy(output_rows(material.base, np.arange(material.base.n_vocab)))
    parts, held = [], trained.held
    for picked in text_batches(held.examples, RANKED_ROWS):
        _, said = drafted(held, trained.top, trained.streams, picked)
        assert said is not None
        rows = held.answer_rows(picked)
        came = torch.from_numpy(material.tokens[rows.numpy()]).long()
        parts.append(compare(held.source.states.gather(rows), said, output, came))
    return Distance.of(torch.cat(parts))


def shares(material: Material, top: TopLayers) -> dict[str, float]:
    """Of the model's matrices: those of the top layers, its output rows, the rows of the draft vocabulary."""
    each = sum(top.layers[0].weights[f"{part}.weight"].numel() for part in MATRICES)
    output = material.base.n_vocab * top.shape.hidden
    whole = each * len(top.shape.layers) + output
    drafted = len(material.d2t) * top.shape.hidden
    return {"layers": each * len(top.layers) / whole, "output": output / whole, "drafted": drafted / whole}


def parser() -> argparse.ArgumentParser:
    return row_options(options(__doc__, seconds=120, tokens=148000), [row.name for row in ROWS])


def row_options(parser: argparse.ArgumentParser, names: list[str]) -> argparse.ArgumentParser:
    """With what trains and shows rows of these names."""
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--pass-ms", type=pass_time, nargs="+", default=[], metavar="TOKENS:MS")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    done = {row["name"]: row for row in read_rows(arguments.results)}
    if arguments.table:
        show(list(done.values()))
        for found in done.values():
            show_pruning(found, arguments.heads, dict(arguments.pass_ms))
        return
    torch.set_num_threads(1)
    path = references.resolve(arguments.model, Console(stderr=True)).path
    arguments.work.mkdir(parents=True, exist_ok=True)
    material = read_material(path, arguments, answer(path, arguments.data, arguments.work / f"answers-{ANSWER}.json"))
    for row in ROWS:
        if row.name in arguments.only and row.name not in done:
            add_row(arguments.results, train(row, material, arguments))


def pass_time(text: str) -> tuple[int, float]:
    tokens, _, ms = text.partition(":")
    return int(tokens), float(ms)


def train(row: Row, material: Material, arguments: argparse.Namespace) -> dict[str, Any]:
    recipe = replace(SHARED_RECIPES[row.strategy], root_rank=0)
    trained = train_streams(material, arguments, recipe, MutualStreams if row.mutual else Streams)
    held, asked = trained.ranks()
    made = trained_row(row.name, arguments, trained, (held, asked))
    made |= {"mutual": row.mutual, "distance": vars(distance(material, trained))}
    early = learn_exit(material, read_data(material, arguments, trained.top)["train"], trained.top)
    judged, accuracy = judge(trained, trained.asked, asked, early), accuracy_table(held)
    trees = [greedy_tree(accuracy, nodes) for nodes in SIZES]
    made["pruned"] = [prune(judged, tree, threshold) for tree in trees for threshold in THRESHOLDS]
    made["exit_right"] = exit_right(trained.asked, early)
    made["shares"] = shares(material, trained.top)
    print(made["name"], made["mt_bench"], made["distance"], flush=True)
    return made


def show(rows: list[dict[str, Any]]) -> None:
    sizes = [f"{name}, {nodes}" for name in ("held-out", "questions") for nodes in SIZES]
    table = Table("main stream", "positions", *sizes, "KL", "same likeliest", "perplexity", "was")
    for row in rows:
        far = row["distance"]
        walked = [f"{row[text][str(nodes)]:.2f}" for text in ("held_out", "mt_bench") for nodes in SIZES]
        shown = (f"{far['kl']:.4f}", f"{far['top1']:.1%}", f"{far['perplexity']:.3f}", f"{far['base_perplexity']:.3f}")
        table.add_row(row["name"], f"{row['positions']:,}", *walked, *shown)
    Console(width=150).print(table)


def show_pruning(row: dict[str, Any], streams: int, pass_ms: dict[int, float]) -> None:
    """With predicted steps where times are known: beside one of the same tree without pruning, and without equation 1
    either. speed: tokens per time, of plain decoding."""
    names = ("threshold", "cut", "tokens per step", "kept", "step, ms", "of unpruned", "of S2", "speed")
    table = Table(f"{row['name']}: nodes", *names)
    for one in row["pruned"]:
        whole = next(other for other in row["pruned"] if other["nodes"] == one["nodes"])
        figures = [f"{one['cut']:.1%}", f"{one['tokens_per_step']:.3f}"]
        figures.append(f"{one['tokens_per_step'] / whole['tokens_per_step']:.1%}")
        if pass_ms:
            beside = streams if row["mutual"] else 0
            step, full, plain = (
                step_ms(row["shares"], pass_ms, which, with_streams, streams)
                for which, with_streams in ((one, beside), (whole, beside), (whole, 0))
            )
            speed = one["tokens_per_step"] * column_ms(pass_ms, 1) / step
            figures += [f"{step:.2f}", f"{step / full:.2f}", f"{step / plain:.2f}", f"{speed:.2f}"]
        table.add_row(str(one["nodes"]), f"{one['threshold']:g}", *figures)
    Console(width=110).print(table)
    print(f"early exit right: {row['exit_right']:.1%}")


def step_ms(
    shares: dict[str, float], pass_ms: dict[int, float], pruned: dict[str, float], beside: int, streams: int
) -> float:
    """A predicted step. pruned: as of prune(); beside: streams of every node that is left; 0: `streams` of one node
    follow alone."""
    nodes, lower = pruned["nodes"], 1 - shares["layers"] - shares["output"]
    kept = 1 + (nodes - 1) * (1 - pruned["cut"])
    checked = lower * column_ms(pass_ms, nodes) + shares["output"] * column_ms(pass_ms, kept)
    layers = column_ms(pass_ms, kept * (1 + beside)) + (0 if beside else column_ms(pass_ms, streams))
    judged = column_ms(pass_ms, pruned["parents"]) if pruned["threshold"] else 0
    return checked + shares["layers"] * layers + shares["drafted"] * (column_ms(pass_ms, streams) + judged)


def column_ms(pass_ms: dict[int, float], tokens: float) -> float:
    """Of a pass; between the measured ones on a straight line, beyond the longest in proportion."""
    known = sorted(pass_ms)
    if tokens > known[-1]:
        return pass_ms[known[-1]] * tokens / known[-1]
    return float(np.interp(tokens, known, [pass_ms[width] for width in known]))


if __name__ == "__main__":
    main()
