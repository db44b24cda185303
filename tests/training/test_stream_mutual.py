"""benchmarks/stream_mutual.py: who sees whom under equation 1, what pruning cuts, what a step is predicted to take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_bases import HIDDEN, random_base
from stream_mutual import Judged, MutualStreams, column_ms, cut_nodes, prune, step_ms

from medusa_cli.decoding.tree_search import RANKS
from medusa_cli.training.backbone.layers import TopLayers, rms_norm
from medusa_cli.training.backbone.shape import BaseTensors, read_shape
from medusa_cli.training.recipes import SHARED_RECIPES
from medusa_cli.training.streams.layers import Piece, Streams

COUNT, TOP = 3, 2
RECIPE = replace(SHARED_RECIPES["truth"], root_rank=0)
PIECES = [Piece(9, 4, 3), Piece(6, 0, 2)]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def top(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TopLayers:
    tensors = BaseTensors(random_base(tmp_path_factory.mktemp("base") / "base.gguf", request.param))
    shape = read_shape(tensors.header)
    return TopLayers(tensors, shape, len(shape.layers) - TOP, torch.device("cpu"))


@torch.no_grad()
def random_streams(top: TopLayers) -> MutualStreams:
    """Whose adapters and embeddings change something."""
    streams, generator = MutualStreams(top, COUNT, RECIPE), torch.Generator().manual_seed(3)
    for parameter in streams.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return streams


def entering(rows: int) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(0))


def one_mask(
    top: TopLayers, streams: Streams, entered: torch.Tensor, piece: Piece
) -> tuple[torch.Tensor, torch.Tensor]:
    """(said [to the end, h], drafted [rows, streams, h]) of one text: equations 1 and 2 as one mask over all rows."""
    starts = range(piece.first, piece.length)
    rows = [(at, 0) for at in range(piece.length)] + [(at, j) for at in starts for j in range(1, COUNT + 1)]

    def sees(one: tuple[int, int], other: tuple[int, int]) -> bool:
        (at, stream), (there, ahead) = one, other
        if ahead == 0:
            return there <= at
        return there == at and (stream == 0 or ahead <= stream)

    mask = torch.tensor([[sees(one, other) for other in rows] for one in rows])
    x = torch.stack([entered[at] + (streams.stored_embedding()[j - 1] if j else 0) for at, j in rows])
    rotations = top.rotations_at(torch.tensor([at + j for at, j in rows]))
    for layer in top.layers:
        q, k, v = layer.attention_parts(x, rotations[layer.of.rope], streams.project)
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * layer.shape.query_scale
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        x = layer.leave(x, torch.einsum("hqk,khd->qhd", weights, v).flatten(1), streams.project)
    x = rms_norm(x, top.output_norm, top.shape.eps)
    return x[list(starts)], x[piece.length :].view(len(starts), COUNT, -1)[: piece.rows]


@torch.no_grad()
def test_main_stream_and_streams_equal_one_mask(top: TopLayers) -> None:
    streams, entered = random_streams(top), entering(15)
    context = streams.read(top, entered, PIECES)
    drafted = streams(top, context, None)
    found = [one_mask(top, streams, text, piece) for text, piece in zip(entered.split([9, 6]), PIECES, strict=True)]
    assert context.said is not None
    torch.testing.assert_close(context.said, torch.cat([said for said, _ in found]), rtol=1e-4, atol=1e-4)
    wanted = torch.cat([ahead for _, ahead in found]).transpose(0, 1)
    torch.testing.assert_close(drafted, wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_nothing_sees_a_later_position_or_its_streams(top: TopLayers) -> None:
    """The main stream sees its own streams, though."""
    streams, entered, piece = random_streams(top), entering(9), Piece(9, 4, 4)
    changed = entered.clone()
    changed[6:] += 1.0  # the third row of the piece and what follows
    first, second = (streams.read(top, x, [piece]) for x in (entered, changed))
    for mine, other in ((first.said, second.said), (first.drafted, second.drafted)):
        assert mine is not None
        assert other is not None
        before, after = (abs(mine - other)[..., part, :].amax(dim=-1) for part in (slice(2), slice(2, None)))
        assert before.max() < 1e-5
        assert after.min() > 1e-3
    plain = Streams(top, COUNT, RECIPE)
    plain.load_state_dict(streams.state_dict())
    alone = plain.read(top, entered, [piece]).said
    assert alone is not None
    assert first.said is not None
    assert (alone - first.said).abs().amax(dim=1).min() > 1e-3


def test_the_base_teaches_the_streams_it_sees(top: TopLayers) -> None:
    streams = random_streams(top)
    context = streams.read(top, entering(9), [Piece(9, 4, 3)])
    assert context.said is not None
    context.said.square().sum().backward()
    assert streams.embedding.grad is not None
    assert streams.embedding.grad.abs().amax(dim=1).min() > 0


TREE = [(0,), (1,), (0, 0), (0, 1), (1, 0)]


def judged(ranks: list[list[int]], chances: list[dict[tuple[int, int], float]]) -> Judged:
    """chances: of each position, by (stream, rank), others are 1."""
    chance = np.ones((len(ranks), len(ranks[0]), RANKS), np.float32)
    for row, given_ in zip(chance, chances, strict=True):
        for place, value in given_.items():
            row[place] = value
    return Judged(np.array(ranks), chance)


@pytest.mark.parametrize(
    ("ranks", "chances", "cut", "left"),
    [
        ([0, 0], {(0, 1): 0.01}, 2, [0, 0]),  # a wrong child of the root, with its own child
        ([0, 0], {(0, 0): 0.01}, 3, [RANKS, 0]),  # the right one, with both of its children
        ([0, 0], {(1, 0): 0.01}, 1, [0, RANKS]),  # the right grandchild; the one behind a wrong child is not known
        ([1, 0], {(1, 0): 0.01, (1, 1): 0.01}, 1, [1, RANKS]),  # only what is behind the right child
        ([RANKS, 0], {(1, 0): 0.01}, 0, [RANKS, RANKS]),  # nothing is known behind wrong ones
        ([0, 1], {(0, 0): 0.1}, 0, [0, 1]),  # the threshold itself is kept
    ],
)
def test_what_pruning_cuts(ranks: list[int], chances: dict[tuple[int, int], float], cut: int, left: list[int]) -> None:
    text = judged([ranks], [chances])
    assert cut_nodes(text, TREE, float(np.float32(0.1))) == cut
    assert text.pruned(float(np.float32(0.1))).tolist() == [left]


def test_a_pruned_walk_by_hand() -> None:
    """Five positions: whole tree 3 + 2 tokens in 2 steps, pruned 1 + 2 + 2 in 3."""
    ranks = [[0, 0], [1, 3], [3, 3], [0, 5], [3, 3]]
    text = judged(ranks, [{(0, 0): 0.01}, {}, {}, {}, {}])
    whole, less = (prune([text], TREE, threshold) for threshold in (0.0, 0.1))
    assert whole == {"nodes": 6, "parents": 3, "threshold": 0.0, "tokens_per_step": pytest.approx(5 / 2), "cut": 0.0}
    assert less["tokens_per_step"] == pytest.approx(5 / 3)
    assert less["cut"] == pytest.approx(3 / 25)


@given(
    st.integers(1, 6).flatmap(lambda rows: st.lists(st.tuples(*[st.integers(0, 3)] * 2), min_size=rows, max_size=rows)),
    st.integers(0, 1 << 30),
)
def test_higher_thresholds_cut_more_and_keep_less(ranks: list[tuple[int, int]], seed: int) -> None:
    chance = np.random.default_rng(seed).random((len(ranks), 2, RANKS), np.float32)
    text = Judged(np.array(ranks), chance)
    counts = [cut_nodes(text, TREE, threshold) for threshold in (0.0, 0.2, 0.5, 1.0)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, len(TREE) * len(ranks))
    left = [(text.pruned(threshold) < RANKS).sum() for threshold in (0.0, 0.2, 0.5, 1.0)]
    assert left == sorted(left, reverse=True)


def test_a_step_is_the_sum_of_its_shares() -> None:
    shares: dict[str, Any] = {"layers": 0.1, "output": 0.2, "drafted": 0.02}
    passes = {1: 1.0, 8: 8.0}  # a pass takes as long as it has tokens
    assert column_ms(passes, 40) == pytest.approx(40)
    assert column_ms(passes, 4.5) == pytest.approx(4.5)
    whole = {"nodes": 8, "parents": 3, "threshold": 0.0, "cut": 0.0}
    drafts = 0.02 * 4
    assert step_ms(shares, passes, whole, 0, 4) == pytest.approx(8 + 0.1 * 4 + drafts)
    assert step_ms(shares, passes, whole, 4, 4) == pytest.approx(8 + 0.1 * 8 * 4 + drafts)
    pruned = {**whole, "threshold": 0.1, "cut": 3 / 7}  # 5 are left
    assert step_ms(shares, passes, pruned, 4, 4) == pytest.approx(0.7 * 8 + 0.2 * 5 + 0.1 * 5 * 5 + drafts + 0.02 * 3)
