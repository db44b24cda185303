"""Models in several files: read, run and drafted for as the same model in one file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixtures import tiny_base, write_heads

from medusa_cli import native
from medusa_cli.models.base_file import output_rows, read_base
from medusa_cli.support.errors import MedusaError

PROMPT = "a bed fed a dada"
TREE = [[0], [1], [0, 0]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model whole, and the first of its parts."""
    folder = tmp_path_factory.mktemp("split")
    whole = tiny_base(folder / "whole.gguf")
    tiny_base(folder / "model.gguf", tensors_per_part=8)
    parts = sorted(folder.glob("model-*.gguf"))
    assert len(parts) == 3
    return whole, parts[0]


def text_of(path: Path, heads: Path | None = None) -> str:
    model = native.Model(str(path))
    session = native.Session(
        model, native.Heads(model, str(heads)) if heads else None, tree=native.Tree(TREE) if heads else None, n_ctx=256
    )
    return session.generate(model.tokenize(PROMPT), max_tokens=40, ignore_eos=True).text


def test_the_header_is_that_of_all_parts(models: tuple[Path, Path]) -> None:
    whole, first = (native.read_gguf(str(path)) for path in models)
    assert (whole.part_count, first.part_count) == (1, 3)
    assert [tensor.name for tensor in first.tensors] == [tensor.name for tensor in whole.tensors]
    assert first.file_size == sum(path.stat().st_size for path in models[1].parent.glob("model-*.gguf"))
    ours = {key: value for key, value in first.metadata.items() if not key.startswith("split.")}
    assert ours == whole.metadata


@pytest.mark.parametrize("lm_head", ["base", "draft_vocab"])
def test_text_and_heads_are_those_of_the_whole_model(models: tuple[Path, Path], tmp_path: Path, lm_head: str) -> None:
    whole, first = models
    heads = tmp_path / "heads.gguf"
    write_heads(heads, heads=2, blocks=1, lm_head=lm_head)
    assert text_of(first) == text_of(whole)
    assert text_of(first, heads) == text_of(whole)


def test_training_reads_the_rows_of_the_right_part(models: tuple[Path, Path]) -> None:
    whole, first = (read_base(path) for path in models)
    assert (first.parts, first.fingerprint) == (3, whole.fingerprint)
    rows = np.array([0, 7, 300])
    assert np.array_equal(output_rows(first, rows), output_rows(whole, rows))


def test_what_is_missing_is_named(models: tuple[Path, Path], tmp_path: Path) -> None:
    parts = sorted(models[1].parent.glob("model-*.gguf"))
    with pytest.raises(native.NativeError, match="is part 2 of a split model: give the first, whose name ends in"):
        native.read_gguf(str(parts[1]))
    for part in parts[:2]:
        (tmp_path / part.name).write_bytes(part.read_bytes())
    with pytest.raises(native.NativeError, match=r"model-00003-of-00003\.gguf is missing: a split model needs all"):
        native.read_gguf(str(tmp_path / parts[0].name))
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(parts[0].read_bytes())
    with pytest.raises(
        native.NativeError, match=r"is the first of 3 parts: its name must end in -00001-of-00003\.gguf"
    ):
        native.read_gguf(str(renamed))


def test_heads_go_beside_a_split_model(models: tuple[Path, Path], tmp_path: Path) -> None:
    from medusa_cli.converters.heads.single_file import join

    from medusa_cli.training.options import TrainOptions
    from medusa_cli.training.train import run

    heads = tmp_path / "heads.gguf"
    write_heads(heads, heads=1, blocks=1, lm_head="base")
    with pytest.raises(MedusaError, match="one part of a split model, merge it with llama-gguf-split first"):
        join(models[1], heads, tmp_path / "out.gguf")
    pytest.importorskip("torch")
    with pytest.raises(MedusaError, match="a model of 3 files cannot hold its heads: leave out -o, or add --sidecar"):
        run(TrainOptions(model=models[1], output=tmp_path / "out.gguf", sidecar=False))
