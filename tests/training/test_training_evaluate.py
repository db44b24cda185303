"""Accuracies, greedy trees and simulation against naive references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from medusa_cli.decoding import tree_search

RANKS = 3


@st.composite
def rank_texts(draw: st.DrawFn, heads: int = 3) -> list[NDArray[np.int64]]:
    lengths = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    values = st.integers(0, RANKS)
    return [
        np.array([[draw(values) for _ in range(heads)] for _ in range(length)], dtype=np.int64).reshape(length, heads)
        for length in lengths
    ]


def naive_accuracy(texts: list[NDArray[np.int64]], head: int, rank: int) -> float:
    parents = hits = 0
    for text in texts:
        for row in text:
            if all(value < RANKS for value in row[:head]):
                parents += 1
                hits += row[head] == rank
    return hits / parents if parents else 0.0


@given(rank_texts())
def test_accuracy_table_counts_what_its_definition_says(texts: list[NDArray[np.int64]]) -> None:
    table = tree_search.accuracy_table(texts, RANKS)
    assert table.shape == (3, RANKS)
    for head, rank in itertools.product(range(3), range(RANKS)):
        assert table[head, rank] == pytest.approx(naive_accuracy(texts, head, rank))


def all_trees(heads: int, ranks: int, nodes: int) -> list[frozenset[tuple[int, ...]]]:
    """Every tree with `nodes` nodes (root included): sets of paths closed under taking the parent."""
    trees: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(nodes - 1):
        larger = set()
        for tree in trees:
            for parent in ((), *tree):
                if len(parent) < heads:
                    larger |= {tree | {(*parent, rank)} for rank in range(ranks) if (*parent, rank) not in tree}
        trees = larger
    return list(trees)


@given(
    st.lists(st.lists(st.floats(0.01, 0.5), min_size=2, max_size=2), min_size=1, max_size=3),
    st.integers(1, 5),
)
@settings(max_examples=60)
def test_the_greedy_tree_is_the_best_tree(accuracy: list[list[float]], nodes: int) -> None:
    candidates = all_trees(len(accuracy), 2, nodes)
    tree = tree_search.greedy_tree(accuracy, nodes)
    if not candidates:  # fewer paths exist than nodes were asked for
        assert len(tree) < nodes - 1
        return
    best = max(tree_search.predicted_tokens_per_step(accuracy, sorted(candidate)) for candidate in candidates)
    assert tree_search.predicted_tokens_per_step(accuracy, tree) == pytest.approx(best)
    assert frozenset(tree) in candidates


def test_the_greedy_tree_puts_parents_first_and_skips_the_impossible() -> None:
    tree = tree_search.greedy_tree([[0.6, 0.2, 0.0], [0.9, 0.05, 0.0]], 100)
    assert tree == [(0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    assert tree_search.greedy_tree([[0.5]], 1) == []
    assert tree_search.predicted_tokens_per_step([[0.6], [0.5]], [(0,), (0, 0)]) == pytest.approx(1.9)


def naive_walk(text: NDArray[np.int64], choices: list[tuple[int, ...]]) -> list[int]:
    """Accepted tokens of each step."""
    at, accepted = 0, []
    while at < len(text):
        path: tuple[int, ...] = ()
        while len(path) < text.shape[1] and (*path, int(text[at, len(path)])) in choices:
            path = (*path, int(text[at, len(path)]))
        accepted.append(len(path))
        at += 1 + len(path)
    return accepted


@given(rank_texts(), st.integers(1, 12))
def test_simulation_walks_like_the_engine(texts: list[NDArray[np.int64]], nodes: int) -> None:
    choices = tree_search.greedy_tree([[0.5, 0.3, 0.2]] * 3, nodes)
    steps = [count for text in texts for count in naive_walk(text, choices)]
    tokens_per_step, acceptance = tree_search.simulate(texts, choices)
    assert tokens_per_step == pytest.approx(1 + (sum(steps) / len(steps) if steps else 0))
    for depth, share in enumerate(acceptance, 1):
        assert share == pytest.approx(sum(count >= depth for count in steps) / max(1, len(steps)))


def test_perfect_and_useless_heads() -> None:
    perfect, useless = np.zeros((20, 4), np.int64), np.full((20, 4), tree_search.RANKS)
    chain = [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    assert tree_search.simulate([perfect], chain) == (5.0, [1.0] * 4)
    assert tree_search.simulate([useless], chain) == (1.0, [0.0] * 4)
    assert tree_search.accuracy_table([perfect])[:, 0].tolist() == [1.0] * 4
    assert tree_search.accuracy_table([useless]).sum() == 0
