"""Trees by name and file, and how they are drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from medusa_cli import native
from medusa_cli.decoding import trees
from medusa_cli.support.errors import MedusaError


def test_the_built_in_trees_are_trees() -> None:
    sizes = {name: native.Tree(choices).size for name, choices in trees.built_in().items()}
    assert sizes[trees.DEFAULT_GPU] == 64
    assert sizes["cpu_16"] == 16
    assert sizes[trees.DEFAULT_CPU] == 4
    assert sizes["chain_4"] == 5
    assert max(sizes.values()) <= 64


def write(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_names_and_files(tmp_path: Path) -> None:
    assert trees.resolve("chain_4") == trees.NamedTree("chain_4", [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]])
    bare = write(tmp_path / "bare.json", [[0], [1]])
    assert trees.resolve(str(bare)) == trees.NamedTree(str(bare), [[0], [1]], strict=True)
    both = write(tmp_path / "both.json", {"a": [[0]], "b": [[0], [0, 2]]})
    assert trees.resolve(f"{both}:b") == trees.NamedTree(f"{both}:b", [[0], [0, 2]], strict=True)
    one = write(tmp_path / "one.json", {"only": [[0]]})
    assert trees.resolve(f"{one}") == trees.NamedTree(f"{one}:only", [[0]], strict=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("3", "a tree is a list of choices"),
        ([0, 1], "0 is not a choice"),
        ([[]], "is not a choice"),
        ([["a"]], "is not a choice"),
        ([[True]], "is not a choice"),
        ([[0.5]], "is not a choice"),
        ([[-1]], "is not a choice"),
        ([[0, 0]], "orphan"),
        ([[0], [0]], "twice"),
        ([[rank] for rank in range(300)], "255"),
        ({}, "0 trees"),
        ({"a": [[0]], "b": [[0]]}, "choose one with"),
    ],
)
def test_bad_trees_say_what_is_wrong(tmp_path: Path, content: object, message: str) -> None:
    path = write(tmp_path / "tree.json", content)
    with pytest.raises(MedusaError, match=message) as caught:
        trees.resolve(str(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_references_say_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match=r"no tree named 'nosuch': there are .*cpu_16"):
        trees.resolve("nosuch")
    with pytest.raises(MedusaError, match="no such tree file"):
        trees.resolve("nosuch.json")
    with pytest.raises(MedusaError, match="is a directory"):
        trees.resolve(str(tmp_path))
    bare = write(tmp_path / "bare.json", [[0]])
    with pytest.raises(MedusaError, match="one unnamed tree"):
        trees.resolve(f"{bare}:x")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("cartesian:", "cartesian:: give the number of tokens of each head, from 1, such as cartesian:3,2,2"),
        ("cartesian:3,,2", "cartesian:3,,2: give the number of tokens of each head, from 1, such as cartesian:3,2,2"),
        ("cartesian:3,0", "cartesian:3,0: give the number of tokens of each head, from 1, such as cartesian:3,2,2"),
        ("cartesian:-1", "cartesian:-1: give the number of tokens of each head, from 1, such as cartesian:3,2,2"),
        ("cartesian:6,6,6", "cartesian:6,6,6 has 259 nodes, at most 256 are possible: give smaller numbers"),
        ("cartesian:256", "cartesian:256 has 257 nodes, at most 256 are possible: give smaller numbers"),
        ("random:1", "random:1: give the number of nodes, from 2 to 256, and optionally a seed, such as random:64:1"),
        (
            "random:257",
            "random:257: give the number of nodes, from 2 to 256, and optionally a seed, such as random:64:1",
        ),
        ("random:x", "random:x: give the number of nodes, from 2 to 256, and optionally a seed, such as random:64:1"),
        (
            "random:8:-1",
            "random:8:-1: give the number of nodes, from 2 to 256, and optionally a seed, such as random:64:1",
        ),
    ],
)
def test_bad_rules_are_one_line(argument: str, message: str) -> None:
    with pytest.raises(MedusaError) as caught:
        trees.resolve(argument)
    assert str(caught.value) == message


def test_rules_make_trees() -> None:
    assert trees.resolve("cartesian:2,1") == trees.NamedTree("cartesian:2,1", [[0], [1], [0, 0], [1, 0]], strict=True)
    assert trees.resolve("random:64") == trees.RandomTree("random:64", 64, 0)
    assert trees.resolve("random:64:7") == trees.RandomTree("random:64:7", 64, 7)


@pytest.mark.parametrize("argument", ["dynamic", "static"])
def test_where_one_tree_is_wanted_a_way_to_choose_one_is_not_taken(argument: str) -> None:
    with pytest.raises(MedusaError, match=f"^{argument} is not a tree but a way to choose one"):
        trees.fixed(argument)
    assert trees.fixed("cpu_4") == trees.named("cpu_4")
