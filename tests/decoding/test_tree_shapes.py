"""Cartesian and random trees, and drawings of any tree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native
from medusa_cli.decoding import trees
from medusa_cli.decoding.trees import WIDTH, draw
from medusa_cli.support.errors import MedusaError

WIDTHS = st.lists(st.integers(1, 6), min_size=1, max_size=5).filter(
    lambda widths: trees.cartesian_size(widths) <= trees.MAX_NODES
)


@st.composite
def some_tree(draw_from: st.DrawFn) -> list[list[int]]:
    """Any tree: each choice hangs below the root or one that came before."""
    paths: list[tuple[int, ...]] = [()]
    for _ in range(draw_from(st.integers(0, 40))):
        path = (*draw_from(st.sampled_from(paths)), draw_from(st.integers(0, 12)))
        if path not in paths:
            paths.append(path)
    return [list(path) for path in paths[1:]]


# --- Cartesian and random trees ---------------------------------------------------------------------


@given(widths=WIDTHS)
def test_a_cartesian_tree_is_a_tree_of_every_combination(widths: list[int]) -> None:
    choices = trees.cartesian(widths)
    tree = native.Tree(choices)
    assert tree.size == trees.cartesian_size(widths) == len(choices) + 1
    assert tree.depth == len(widths)
    every = {tuple(choice) for choice in choices}
    assert len(every) == len(choices)
    for choice in every:
        assert all(rank < width for rank, width in zip(choice, widths, strict=False))
        assert all((*choice[:-1], rank) in every for rank in range(widths[len(choice) - 1]))


@given(widths=WIDTHS)
def test_the_name_of_a_cartesian_tree_gives_it(widths: list[int]) -> None:
    assert trees.parse_cartesian(trees.cartesian_name(widths)) == trees.cartesian(widths)


@given(nodes=st.integers(2, 64), heads=st.integers(1, 5), ranks=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_random_tree_fits_and_repeats(nodes: int, heads: int, ranks: int, seed: int) -> None:
    tree = trees.RandomTree("random", nodes, seed)
    # Every width at its most: nothing larger can be filled.
    most = min(ranks, trees.MAX_RANDOM_RANK)
    if trees.cartesian_size([most] * heads) <= trees.MIN_SHARE * nodes:
        with pytest.raises(MedusaError, match="give a smaller number"):
            tree.widths(heads, ranks)
        return
    widths = tree.widths(heads, ranks)
    assert widths == tree.widths(heads, ranks)
    assert len(widths) <= heads
    assert max(widths) <= most
    assert nodes * trees.MIN_SHARE < trees.cartesian_size(widths) <= nodes


def test_all_dense_shapes_are_drawn() -> None:
    assert sorted(trees.dense_shapes(4, 3, 9)) == [(1, 1), (1, 1, 1), (1, 2), (2,), (3,)]
    drawn = {tuple(trees.RandomTree("random", 4, seed).widths(3, 9)) for seed in range(60)}
    assert drawn == set(trees.dense_shapes(4, 3, 9))
    assert {tuple(trees.RandomTree("random", 200, seed).widths(4, 99)) for seed in range(9)} != {(199,)}


def test_heads_that_are_too_few_are_told() -> None:
    with pytest.raises(MedusaError) as caught:
        trees.parse_random("random:64").widths(1, 8192)
    assert str(caught.value) == (
        "random:64: 1 heads with 10 tokens each cannot fill such a tree: give a smaller number"
    )


# --- drawings --------------------------------------------------------------------------------------


def test_a_tree_is_drawn_with_a_line_for_each_end() -> None:
    drawn = draw([[0], [0, 0], [0, 1], [0, 1, 0], [1], [2], [2, 3]])
    assert drawn == [
        "root ┬─ 0 ┬─ 0",
        "     │    └─ 1 ── 0",
        "     ├─ 1",
        "     └─ 2 ── 3",
    ]
    assert draw([]) == ["root"]


def test_leaves_side_by_side_share_a_line() -> None:
    assert draw([[0], [0, 0], [0, 1], [0, 3], [1], [2]], [[0.5, 0.2, 0.1], [0.4, 0.2]]) == [
        "root ┬─ 0 50%    ┬─ 0..1 30%",
        "     │           └─ 3",
        "     └─ 1..2 30%",
    ]


def test_known_accuracies_are_drawn_as_the_chance_of_the_whole_path() -> None:
    drawn = draw([[0], [0, 0], [1], [1, 1]], [[0.5, 0.25], [0.5, 0.001]])
    assert drawn == ["root ┬─ 0 50% ── 0 25%", "     └─ 1 25% ── 1 <1%"]
    assert draw([[0], [0, 0]], [[0.5]]) == ["root ── 0 50% ── 0"]


@given(choices=some_tree())
def test_a_drawing_is_narrow_and_has_every_node(choices: list[list[int]]) -> None:
    deep = max((len(choice) for choice in choices), default=0)
    accuracy = [[0.07] * 13] * deep
    drawn = draw(choices, accuracy)
    assert all(len(line) <= WIDTH for line in drawn)
    # A label is a rank, or a run of them; chances and depths are no ranks.
    labels = [
        word
        for line in drawn
        for word in line.replace("root", "").split("depth ")[-1].split(": ")[-1].split()
        if word[0].isdigit() and not word.endswith("%")
    ]
    counted = [list(map(int, label.split(".."))) for label in labels]
    assert sum(ends[-1] - ends[0] + 1 for ends in counted) == len(choices)


@pytest.mark.parametrize("name", sorted(trees.built_in()))
def test_published_trees_are_drawn_with_their_chances(name: str) -> None:
    choices = trees.named(name).choices
    drawn = draw(choices, [[0.5 / (rank + 1) for rank in range(10)]] * 4)
    assert max(map(len, drawn)) <= WIDTH
    assert "%" in drawn[0]
    assert len(drawn) <= len(choices)
