"""benchmarks/training/one_pass.py: it says and drafts what two passes do, whatever the tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_pass import NOTHING, Answer, OnePass, Passed, ancestors, parents_of
from random_bases import random_base
from stream_mutual import MutualStreams

from medusa_cli.decoding.tree_search import Choice
from medusa_cli.training.backbone.layers import TopLayers
from medusa_cli.training.backbone.shape import BaseTensors, read_shape
from medusa_cli.training.recipes import SHARED_RECIPES
from medusa_cli.training.streams.layers import Piece, Streams

COUNT, TOP, PROMPT = 3, 2, [5, 9, 31, 7, 2, 40]
RECIPE = replace(SHARED_RECIPES["truth"], root_rank=0)
TREES: list[list[Choice]] = [
    [(rank,) for rank in range(6)],
    [(0,), (0, 0), (0, 0, 0)],
    [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0, 0), (0, 1, 0)],
]


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TopLayers:
    tensors = BaseTensors(random_base(tmp_path_factory.mktemp("base") / "base.gguf", request.param))
    return TopLayers(tensors, read_shape(tensors.header), 0, torch.device("cpu"))


def first_of(model: TopLayers) -> int:
    return len(model.layers) - TOP


@torch.no_grad()
def one_pass(model: TopLayers, mutual: bool) -> tuple[OnePass, TopLayers]:
    """With streams that change what the base says, and the layers that they run through."""
    top = TopLayers(model.tensors, model.shape, first_of(model), torch.device("cpu"))
    streams = (MutualStreams if mutual else Streams)(top, COUNT, RECIPE)
    generator = torch.Generator().manual_seed(3)
    for parameter in streams.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    vocabulary = torch.arange(0, len(model.output), 2)
    return OnePass(model, first_of(model), streams, vocabulary, mutual), top


def answered(model: TopLayers, mutual: bool, tree: list[Choice]) -> Answer:
    return one_pass(model, mutual)[0].answer(PROMPT, tree, 24, lambda token: False)


@pytest.mark.parametrize("mutual", [False, True])
def test_text_does_not_depend_on_the_tree(model: TopLayers, mutual: bool) -> None:
    plain = answered(model, mutual, [])
    assert plain.steps == len(plain.tokens) - 1
    drafted = [answered(model, mutual, tree) for tree in TREES]
    assert [answer.tokens for answer in drafted] == [plain.tokens] * len(TREES)
    assert min(answer.steps for answer in drafted) < plain.steps, "no draft was ever right"


@torch.no_grad()
@pytest.mark.parametrize("mutual", [False, True])
def test_a_pass_says_and_drafts_what_the_trained_streams_do(model: TopLayers, mutual: bool) -> None:
    """At each row that was kept of an answer, some by whole branches."""
    one, top = one_pass(model, mutual)
    kept: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    run, keep, last = one.run, one.keep, list[Passed]()

    def watched(*arguments: Sequence[int]) -> Passed:
        last[:] = [run(*arguments)]
        return last[0]

    def noted(rows: Sequence[int]) -> None:
        at, chosen = one.length, list(rows)
        keep(chosen)
        said, drafted = last[0].said, last[0].drafted
        if at == 0:  # of the prompt, the last row alone drafts
            at, chosen, said = chosen[-1], [0], said[-1:]
        kept.extend((at + i, said[row], drafted[row]) for i, row in enumerate(chosen))

    one.run, one.keep = watched, noted  # type: ignore[method-assign, assignment]
    tokens = [*PROMPT, *one.answer(PROMPT, TREES[2], 24, lambda token: False).tokens]
    fed = tokens[: one.length]
    entered = model.embedded(fed)
    for layer in model.layers[: first_of(model)]:
        entered = layer(entered, [len(fed)], model.rotations([len(fed)], entered.device)[layer.of.rope])
    context = one.streams.read(top, entered, [Piece(len(fed), len(PROMPT) - 1, len(fed) - len(PROMPT) + 1)])
    drafted = one.streams(top, context, None)
    assert context.said is not None
    assert len(kept) == len(fed) - len(PROMPT) + 1
    for at, said, ahead in kept:
        torch.testing.assert_close(said, context.said[at - len(PROMPT) + 1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ahead, drafted[:, at - len(PROMPT) + 1], rtol=1e-4, atol=1e-4)


def test_equation_1_changes_what_the_base_says(model: TopLayers) -> None:
    assert answered(model, True, []).tokens != answered(model, False, []).tokens


def test_an_answer_ends_where_it_should(model: TopLayers) -> None:
    whole = answered(model, True, TREES[2]).tokens
    wanted = whole[: whole.index(whole[10]) + 1]
    one = one_pass(model, True)[0]
    assert one.answer(PROMPT, TREES[2], 24, lambda token: token == whole[10]).tokens == wanted


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9))
def test_rows_see_their_branch(numbers: list[int]) -> None:
    parents = [number - 1 if number <= row else NOTHING for row, number in enumerate(numbers)]
    sees = ancestors(parents)
    for row, parent in enumerate(parents):
        wanted = {row}
        while parent != NOTHING:
            wanted.add(parent)
            parent = parents[parent]
        assert set(sees[row].nonzero().flatten().tolist()) == wanted


def test_parents_by_hand() -> None:
    assert parents_of([(0,), (1,), (0, 0), (1, 3), (1, 3, 0)]) == [NOTHING, 0, 0, 1, 2, 4]
