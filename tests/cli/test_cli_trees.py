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
    assert trees.resolve(str(one)).choices == [[0]]


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
        ({"a": [[0]], "b": [[0]]}, "say which"),
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


def test_a_tree_is_drawn_with_a_line_for_each_leaf() -> None:
    drawn = trees.draw([[0], [0, 0], [0, 1], [0, 1, 0], [1], [2], [2, 3]])
    assert drawn == [
        "root ┬─ 0 ┬─ 0",
        "     │    └─ 1 ── 0",
        "     ├─ 1",
        "     └─ 2 ── 3",
    ]
    assert trees.draw([]) == ["root"]


def test_known_accuracies_are_drawn_as_the_chance_of_the_whole_path() -> None:
    drawn = trees.draw([[0], [0, 0], [1], [1, 1]], [[0.5, 0.25], [0.5, 0.001]])
    assert drawn == ["root ┬─ 0 50% ── 0 25%", "     └─ 1 25% ── 1 <1%"]
    assert trees.draw([[0], [0, 0]], [[0.5]]) == ["root ── 0 50% ── 0"]
