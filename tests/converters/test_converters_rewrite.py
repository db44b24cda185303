"""Other metadata in a file of heads: tensors, other keys and a base model inside stay as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader
from medusa_cli.converters.gguf import header as gh
from medusa_cli.converters.heads import draft_heads as dh
from medusa_cli.converters.heads import schema, single_file, write
from test_converters_files import left_overs, make_heads, write_base

from medusa_cli import native
from medusa_cli.support.errors import MedusaError

ACCURACY = [[0.75, 0.125, 0.0625], [0.5, 0.25, 0.125]]
TREE = [(0,), (0, 0), (2,)]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    base = write_base(tmp_path / "base.gguf", trim=5)
    dh.write_heads(tmp_path / "heads.gguf", make_heads(base))
    return base, tmp_path / "heads.gguf"


def data_of(path: Path) -> bytes:
    header, _ = gh.read_header(path)
    return path.read_bytes()[header.data_offset :]


def test_a_sidecar_gets_accuracies_and_tree(pair: tuple[Path, Path]) -> None:
    _, path = pair
    before, data = gh.read_header(path)[0].metadata(), data_of(path)
    gh.replace_metadata(path, write.tuned_entries(ACCURACY, TREE))
    after = gh.read_header(path)[0].metadata()
    assert list(after) == list(before)
    assert after["medusa.accuracy"] == [value for row in ACCURACY for value in row]
    assert after["medusa.accuracy_ranks"] == 3
    assert schema.unflatten_tree(after["medusa.tree"]) == [list(choice) for choice in TREE]
    changed = {"medusa.accuracy", "medusa.accuracy_ranks", "medusa.tree"}
    assert {key: after[key] for key in after.keys() - changed} == {key: before[key] for key in before.keys() - changed}
    assert data_of(path) == data
    # Other readers agree.
    assert native.read_gguf(str(path)).metadata["medusa.accuracy_ranks"] == 3
    assert list(GGUFReader(path).fields["medusa.tree"].contents()) == schema.flatten_tree(TREE)
    assert left_overs(path.parent) == []


def test_without_choices_the_tree_stays(pair: tuple[Path, Path]) -> None:
    _, path = pair
    before = gh.read_header(path)[0].get("medusa.tree")
    gh.replace_metadata(path, write.tuned_entries(ACCURACY, []))
    assert gh.read_header(path)[0].get("medusa.tree") == before


def test_keys_that_were_not_there_are_added(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, _ = pair
    path = tmp_path / "bare.gguf"
    dh.write_heads(path, make_heads(base, accuracy=()))
    data = data_of(path)
    gh.replace_metadata(path, write.tuned_entries(ACCURACY, TREE))
    assert gh.read_header(path)[0].get("medusa.accuracy_ranks") == 3
    assert data_of(path) == data


def test_a_single_file_still_holds_its_base(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    joined = tmp_path / "joined.gguf"
    single_file.join(base, heads, joined)
    gh.replace_metadata(joined, write.tuned_entries(ACCURACY, TREE))
    assert gh.read_header(joined)[0].get("medusa.accuracy_ranks") == 3
    base_again, heads_again = tmp_path / "b.gguf", tmp_path / "h.gguf"
    single_file.split(joined, base_again, heads_again)
    assert base_again.read_bytes() == base.read_bytes()
    assert data_of(heads_again) == data_of(heads)
    assert schema.unflatten_tree(gh.read_header(heads_again)[0].get("medusa.tree")) == [list(choice) for choice in TREE]


def test_a_file_that_is_none_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF no")
    with pytest.raises(MedusaError, match="truncated"):
        gh.replace_metadata(path, write.tuned_entries(ACCURACY, TREE))
    assert path.read_bytes() == b"GGUF no"
