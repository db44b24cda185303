"""Properties of draft trees, against naive definitions."""

from __future__ import annotations

import _native_testing as testing
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine_fake import tree_choices

from medusa_cli import native


def paths(tree: native.Tree) -> list[tuple[int, ...]]:
    return [(), *(tuple(choice) for choice in tree.choices)]


@given(choices=tree_choices(), data=st.data())
def test_parents_come_first_whatever_the_order_of_the_choices(choices: list[list[int]], data: st.DataObject) -> None:
    tree = native.Tree(data.draw(st.permutations(choices)))
    assert tree.parents[0] == -1
    assert all(parent < node for node, parent in enumerate(tree.parents))
    assert sorted(tree.choices) == sorted(choices)
    every = paths(tree)
    for node, parent in enumerate(tree.parents[1:], 1):
        assert every[parent] == every[node][:-1]


@given(choices=tree_choices())
def test_the_mask_is_the_ancestor_closure(choices: list[list[int]]) -> None:
    # A cell is visible to a row when they share a sequence and the cell's position is not after the row's.
    tree = native.Tree(choices)
    every, sequences = paths(tree), testing.tree_sequences(tree)
    for row, path in enumerate(every):
        seen = {
            every[cell]
            for cell in range(tree.size)
            if set(sequences[cell]) & set(sequences[row]) and len(every[cell]) <= len(path)
        }
        # libllama attends to a cell that has the row's first sequence; every sequence of a row gives the same set.
        for sequence in sequences[row]:
            of_one = {
                every[cell]
                for cell in range(tree.size)
                if sequence in sequences[cell] and len(every[cell]) <= len(path)
            }
            assert of_one == seen
        assert seen == {path[:length] for length in range(len(path) + 1)}


@given(choices=tree_choices())
def test_leaves_count_the_sequences(choices: list[list[int]]) -> None:
    tree = native.Tree(choices)
    leaves, sequences = tree.size - len(set(tree.parents[1:])), testing.tree_sequences(tree)
    assert tree.leaf_count == leaves == len({sequence for node in sequences for sequence in node})
    assert sequences[0] == list(range(tree.leaf_count))


@given(choices=tree_choices(), heads=st.integers(0, 5), ranks=st.integers(1, 5), nodes=st.integers(1, 30))
def test_a_clipped_tree_fits_and_keeps_what_fits(choices: list[list[int]], heads: int, ranks: int, nodes: int) -> None:
    tree = native.Tree(choices).clipped(heads, ranks, nodes)
    assert tree.depth <= heads
    assert tree.max_rank < ranks
    assert tree.size <= nodes
    fitting = [choice for choice in choices if len(choice) <= heads and max(choice) < ranks]
    assert set(map(tuple, tree.choices)) <= set(map(tuple, fitting))
    assert tree.size == min(nodes, len(fitting) + 1)


@given(choices=tree_choices().filter(bool), data=st.data())
def test_broken_trees_are_refused(choices: list[list[int]], data: st.DataObject) -> None:
    picked = data.draw(st.sampled_from(choices))
    for broken, message in (
        ([*choices, picked], "twice|duplicate"),
        ([*choices, []], "empty"),
        ([*choices, [*picked, -1]], "negative"),
        ([*choices, [*picked, 9, 9]], "orphan|parent"),
    ):
        with pytest.raises(native.NativeError, match=message):
            native.Tree(broken)
    with pytest.raises(native.NativeError, match=r"256|255"):
        native.Tree([[rank] for rank in range(256)])
