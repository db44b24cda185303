"""Batches: every row once an epoch, whole texts where they are needed, the same order whenever it is asked for."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given as for_any
from hypothesis import settings
from hypothesis import strategies as st

from medusa_cli.training.heads.layers import Heads, HeadShape
from medusa_cli.training.heads.rows import Contexts, FileRows, TextRows, TokenEmbeddings, matching_scale
from medusa_cli.training.loop import BatchOrder, steps_per_epoch, text_batches
from medusa_cli.training.text.dataset import Examples, Span, examples_of, token_places


def examples(lengths: list[int]) -> Examples:
    rows = np.arange(sum(lengths), dtype=np.int64)
    return Examples(rows, np.zeros((len(rows), 2), np.int32), lengths)


LENGTHS = [5, 9, 1, 7, 12, 3, 6, 8, 2, 11]


@pytest.mark.parametrize("whole_texts", [False, True])
def test_an_epoch_holds_every_row_once(whole_texts: bool) -> None:
    order = BatchOrder(examples(LENGTHS), 8, 3, whole_texts)
    assert order.per_epoch == 8
    first, second = ([order.pick(step).index for step in range(at, at + 8)] for at in (0, 8))
    for epoch in (first, second):
        rows = torch.cat(epoch).tolist()
        assert len(set(rows)) == len(rows) == 64
    assert [index.tolist() for index in first] != [index.tolist() for index in second]
    again = BatchOrder(examples(LENGTHS), 8, 3, whole_texts)
    assert again.pick(11).index.tolist() == second[3].tolist()
    assert BatchOrder(examples(LENGTHS), 8, 4, whole_texts).pick(11).index.tolist() != second[3].tolist()


def test_batches_of_texts_hold_them_whole_and_in_order() -> None:
    given = examples(LENGTHS)
    order = BatchOrder(given, 20, 0, True)
    for step in range(order.per_epoch):
        picked = order.pick(step)
        assert picked.lengths
        assert sum(picked.lengths) == len(picked.index)
        at = 0
        for length in picked.lengths:
            part = picked.index[at : at + length].tolist()
            text = int(np.searchsorted(given.starts, part[0], side="right")) - 1
            assert part == list(range(int(given.starts[text]), int(given.starts[text]) + LENGTHS[text]))
            at += length


@for_any(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_pieces_are_parts_of_their_texts_in_order(lengths: list[int], rows: int) -> None:
    whole = examples(lengths)
    pieces = whole.in_pieces(rows)
    assert max(pieces.lengths) <= rows
    assert sum(pieces.lengths) == sum(lengths)
    owners = (np.searchsorted(whole.starts, pieces.starts, side="right") - 1).tolist()
    assert [sum(length for length, owner in zip(pieces.lengths, owners, strict=True) if owner == text)
            for text in range(len(lengths))] == lengths  # fmt: skip
    assert list(pieces.sequences) == [lengths[owner] for owner in owners]


@for_any(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 5)), min_size=1, max_size=4), st.integers(1, 7))
@settings(max_examples=20, deadline=None)
def test_heads_say_the_same_about_pieces_and_whole_texts(texts: list[tuple[int, int]], rows: int) -> None:
    """texts: rows, and states before the first of them."""
    torch.manual_seed(0)
    heads, lengths = Heads(HeadShape("hydra++", 2, 32, 1, "context")), [length for length, _ in texts]
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_(0.2, 0.2)
    count, starts = sum(lengths), list(accumulate(lengths, initial=0))[:-1]
    states = FileRows([np.random.default_rng(1).normal(size=(count, 32)).astype(np.float16)], torch.device("cpu"))
    prompts = {start: torch.randn(length, 32).half() for start, (_, length) in zip(starts, texts, strict=True)}
    embeddings = TokenEmbeddings(torch.randn(count, 32).half(), np.arange(count))
    source = TextRows(states, embeddings, contexts=Contexts(starts, prompts.__getitem__, states.gather))
    whole, pieces = (heads(source.inputs(torch.arange(count), 2, one.lengths))
                     for one in (examples(lengths), examples(lengths).in_pieces(rows)))  # fmt: skip
    torch.testing.assert_close(pieces, whole, rtol=1e-4, atol=1e-4)


def test_a_few_long_texts_are_one_step_each() -> None:
    given = examples([300, 200])
    assert steps_per_epoch(given, 8, True) == 2
    assert steps_per_epoch(given, 8, False) == 62
    assert {BatchOrder(given, 8, 0, True).pick(step).lengths for step in range(2)} == {(300,), (200,)}


@pytest.mark.parametrize("rows", [1, 12, 13, 1000])
def test_texts_in_order_are_packed_up_to_a_size(rows: int) -> None:
    batches = list(text_batches(examples(LENGTHS), rows))
    assert torch.cat([picked.index for picked in batches]).tolist() == list(range(64))
    for picked in batches:
        assert picked.lengths
        assert sum(picked.lengths) <= rows or len(picked.lengths) == 1
    assert [length for picked in batches for length in picked.lengths or ()] == LENGTHS


def test_rows_are_gathered_across_files_in_any_shape() -> None:
    whole = np.arange(60, dtype=np.float16).reshape(20, 3)
    rows = FileRows([whole[:7], whole[7:8], whole[8:]], torch.device("cpu"))
    wanted = torch.tensor([[19, 0], [7, 7], [6, 8]])
    np.testing.assert_array_equal(rows.gather(wanted).numpy(), whole[wanted.numpy()])


def test_drafted_tokens_are_the_root_and_what_follows() -> None:
    tokens = np.array([30, 10, 30, 20, 10])
    used, place = token_places(tokens, 40)
    assert used.tolist() == [10, 20, 30]
    matrix = torch.from_numpy(used[:, None].astype(np.float16))
    drafted = TokenEmbeddings(matrix, place).drafted(torch.tensor([1, 4]), 3)
    assert drafted[:, :, 0].tolist() == [[10, 30, 20], [10, 10, 10]]  # beyond the end: any token


def test_embeddings_are_brought_to_the_size_of_hidden_states() -> None:
    rng = np.random.default_rng(0)
    embeddings = (0.1 * rng.normal(size=(50, 8))).astype(np.float32)
    states = torch.from_numpy(3 * rng.normal(size=(40, 8))).half()
    scaled = matching_scale(embeddings, states) * embeddings
    assert np.sqrt((scaled**2).mean()) == pytest.approx(float(states.float().pow(2).mean().sqrt()), rel=1e-5)
    assert matching_scale(0 * embeddings, states) == 1.0


def test_examples_know_the_rows_of_each_text() -> None:
    tokens = np.arange(10, dtype=np.int32)
    found = examples_of(
        tokens, [Span(0, 4, "a", 7), Span(4, 1, "b", 9), Span(5, 5, "c")], np.arange(10, dtype=np.int32), 2
    )
    assert (found.lengths, found.sequences) == ([3, 4], [11, 5])
    assert found.starts.tolist() == [0, 3]
    assert found.rows.tolist() == [0, 1, 2, 5, 6, 7, 8]
