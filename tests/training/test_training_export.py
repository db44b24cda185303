"""Trained heads as Hugging Face checkpoints: read back by `medusa convert`, they draft what the GGUF drafts."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import fixtures
import gguf
import numpy as np
import pytest
from fixtures import BASE_HIDDEN, BASE_VOCAB
from head_numpy import NumpyHeads
from killed_training import options, tiny_model
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.checkpoints.safetensors_file import TensorToWrite, write_safetensors
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.formats import read_heads
from medusa_cli.converters.heads.formats.hydra import PREFIX_NAMES
from rich.console import Console
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.models.base_file import output_rows, read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import train
from medusa_cli.training.backbone.export import NEVER, check_folder, export_heads

SCALE = 8.0


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return fixtures.tiny_base(tmp_path / "base.gguf")


@pytest.mark.parametrize("heads", [1, 3])
def test_medusa_heads_draft_the_same_after_convert(base: Path, tmp_path: Path, heads: int) -> None:
    fixtures.write_heads(tmp_path / "heads.gguf", heads=heads, blocks=2, lm_head="draft_vocab")
    written = export_heads(tmp_path / "heads.gguf", read_base(base), tmp_path / "hf")
    assert [path.name for path in written] == ["model.safetensors", "config.json"]
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert (config["num_heads"], config["num_hidden_layers"], config["truncated_vocab_size"]) == (heads, 2, 40)
    arguments = ["convert", tmp_path / "hf", "--base", base, "-o", tmp_path / "again.gguf"]
    arguments += ["--sidecar", "--heads-quant", "F16"]
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    model = native.Model(str(base))
    before, after = (native.Heads(model, str(tmp_path / name)) for name in ("heads.gguf", "again.gguf"))
    assert after.lm_head == "draft_vocab"
    for hidden in np.random.default_rng(0).standard_normal((20, BASE_HIDDEN)).astype(np.float32):
        np.testing.assert_allclose(after.probabilities(hidden), before.probabilities(hidden), atol=2e-3)
        assert [row[:1] for row in after.draft_tokens(hidden, 1)] == [row[:1] for row in before.draft_tokens(hidden, 1)]


def write_hydra(path: Path, heads: int, blocks: int, prefix: bool) -> dict[str, np.ndarray]:
    """A sidecar as `medusa train` writes it."""
    rng = np.random.default_rng(5)
    tensors: dict[str, np.ndarray] = {}

    def add(name: str, *shape: int) -> None:
        tensors[name] = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    for k in range(heads):
        for j in range(blocks):
            add(f"medusa.{k}.block.{j}.weight", BASE_HIDDEN, BASE_HIDDEN * (k + 2 if j == 0 else 1))
            add(f"medusa.{k}.block.{j}.bias", BASE_HIDDEN)
        add(f"medusa.{k}.block.0.residual.weight", BASE_HIDDEN, BASE_HIDDEN * (k + 2))
        add(f"medusa.{k}.block.0.residual.bias", BASE_HIDDEN)
    if prefix:
        for name in map(schema.prefix, PREFIX_NAMES.values()):
            rows, columns = {
                "ffn_down": (BASE_HIDDEN, 96),
                "ffn_gate": (96, BASE_HIDDEN),
                "ffn_up": (96, BASE_HIDDEN),
            }.get(name.removeprefix("medusa.prefix.").removesuffix(".weight"), (BASE_HIDDEN, BASE_HIDDEN))
            add(name, *((BASE_HIDDEN,) if "norm" in name else (rows, columns)))
    tensors["medusa.d2t"] = rng.permutation(BASE_VOCAB)[:50].astype(np.int32)
    writer = gguf.GGUFWriter(path, "medusa")
    writer.add_uint32("medusa.version", 1)
    writer.add_string("medusa.kind", "hydra++" if prefix else "hydra")
    writer.add_uint32("medusa.head_count", heads)
    writer.add_uint32("medusa.block_count", blocks)
    writer.add_string("medusa.lm_head", "draft_vocab")
    writer.add_float32("medusa.embedding_scale", SCALE)
    if prefix:
        writer.add_uint32("medusa.prefix.head_count", 2)
        writer.add_uint32("medusa.prefix.head_count_kv", 2)
        writer.add_float32("medusa.prefix.rope_freq_base", 5000.0)
        writer.add_float32("medusa.prefix.norm_eps", 1e-6)
        writer.add_bool("medusa.prefix.from_answer", True)
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float16) if values.ndim > 1 else values)
    fixtures.finish(writer)
    return tensors


@pytest.mark.parametrize(("blocks", "prefix"), [(1, False), (3, False), (4, True)])
def test_hydra_heads_compute_the_same_when_read_back(base: Path, tmp_path: Path, blocks: int, prefix: bool) -> None:
    heads, model = 2, read_base(base)
    tensors = write_hydra(tmp_path / "heads.gguf", heads, blocks, prefix)
    export_heads(tmp_path / "heads.gguf", model, tmp_path / "hf")
    source = read_heads(open_checkpoint(tmp_path / "hf"))
    assert (source.kind, source.head_count, source.block_count) == ("hydra++" if prefix else "hydra", heads, blocks)
    again, d2t = NumpyHeads(source), tensors["medusa.d2t"]
    rows = output_rows(model, d2t).astype(np.float64)
    rng = np.random.default_rng(1)
    for k in range(heads):
        state, embedded = rng.standard_normal((5, BASE_HIDDEN)), rng.standard_normal((5, BASE_HIDDEN * (k + 1)))
        first, x = f"medusa.{k}.block.0", np.concatenate([state, SCALE * embedded], axis=1)
        y = x @ tensors[f"{first}.weight"].T + tensors[f"{first}.bias"]
        x = x @ tensors[f"{first}.residual.weight"].T + tensors[f"{first}.residual.bias"] + y / (1 + np.exp(-y))
        for j in range(1, blocks):
            y = x @ tensors[f"medusa.{k}.block.{j}.weight"].T + tensors[f"medusa.{k}.block.{j}.bias"]
            x = x + y / (1 + np.exp(-y))
        expected = x @ rows.T
        found = again.logits(k, np.concatenate([state, embedded], axis=1), BASE_VOCAB)
        # What is left of rounding to F16: the best token is the best, or as good.
        np.testing.assert_allclose(found[:, d2t], expected, atol=0.005 * np.abs(expected).max())
        best = np.array([d2t.tolist().index(token) for token in found.argmax(axis=1)])
        assert (expected[range(5), best] > 0.99 * expected.max(axis=1)).all()
        outside = np.setdiff1d(np.arange(BASE_VOCAB), d2t)
        assert found[:, outside].max() < NEVER / 2
    if prefix:
        assert source.metadata["medusa.prefix.head_count"] == 2
        assert source.metadata["medusa.prefix.rope_freq_base"] == 5000.0
        for name in map(schema.prefix, PREFIX_NAMES.values()):
            np.testing.assert_allclose(again.get(name), tensors[name], atol=1e-3)


@pytest.mark.parametrize("prefix", [False, True])
def test_convert_reads_exported_hydra_heads(base: Path, tmp_path: Path, prefix: bool) -> None:
    write_hydra(tmp_path / "heads.gguf", 2, 2, prefix)
    export_heads(tmp_path / "heads.gguf", read_base(base), tmp_path / "hf")
    arguments = ["convert", tmp_path / "hf", "--base", base, "-o", tmp_path / "again.gguf", "--sidecar"]
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    reader = gguf.GGUFReader(tmp_path / "again.gguf")
    bias = next(tensor for tensor in reader.tensors if tensor.name == "medusa.0.output.bias")
    assert sorted(set(np.asarray(bias.data).tolist())) == [NEVER, 0.0]
    if prefix:
        assert reader.fields["medusa.prefix.head_count"].contents() == 2
        assert reader.fields["medusa.prefix.from_answer"].contents() is True


@pytest.mark.parametrize("kind", ["medusa", "hydra++"])
def test_what_train_exports_convert_reads(tmp_path: Path, kind: str) -> None:
    base = tiny_model(tmp_path / "base.gguf")
    given = options(base, tmp_path, kind=kind, export_hf=tmp_path / "hf", console=Console(file=io.StringIO()))
    train.run(given)
    arguments = ["convert", tmp_path / "hf", "--base", base, "-o", tmp_path / "again.gguf", "--sidecar"]
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    before, after = (gguf.GGUFReader(path) for path in (given.output, tmp_path / "again.gguf"))
    for key in ("medusa.kind", "medusa.head_count", "medusa.block_count", "medusa.base.fingerprint"):
        assert after.fields[key].contents() == before.fields[key].contents()
    for key in (key for key in before.fields if key.startswith("medusa.prefix.")):
        assert after.fields[key].contents() == pytest.approx(before.fields[key].contents())
    names = {tensor.name for tensor in before.tensors}
    assert names - {"medusa.d2t"} <= {tensor.name for tensor in after.tensors}


def test_what_cannot_be_exported_is_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match="is a file"):
        check_folder(base)
    with pytest.raises(MedusaError, match="does not exist"):
        check_folder(tmp_path / "none" / "hf")
    assert not (tmp_path / "hf").exists()


def test_safetensors_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    values: dict[str, Any] = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3)}
    tensors = [
        TensorToWrite("a", (2, 3), "F16", lambda: values["a"]),
        TensorToWrite("b", (3,), "I64", lambda: values["b"]),
    ]
    write_safetensors(tmp_path / "x.safetensors", tensors)
    again = load_file(tmp_path / "x.safetensors")
    assert all(np.array_equal(again[name], values[name]) for name in values)
    for broken, message in ((np.zeros(2), "announced"), (np.full((2, 3), 1e6), "cannot represent")):
        values["a"] = broken
        with pytest.raises(MedusaError, match=message):
            write_safetensors(tmp_path / "y.safetensors", tensors)
    assert os.listdir(tmp_path) == ["x.safetensors"]
