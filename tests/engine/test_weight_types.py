"""Weights of every type, on our kernels or not: the width of a pass changes no bit, and the tokens are llama.cpp's."""

from __future__ import annotations

import sys
from pathlib import Path

import _native_testing as testing
import fixtures
import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from test_placement import loaded
from test_score import costs

from medusa_cli import native
from medusa_cli.conversion.quantize import quantize

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="llama.cpp exports no way in for kernels on Windows")

# Of a block of 256 weights: its bytes, and where the halves are that scale it.
BLOCKS = {
    "IQ1_S": (50, [0]),
    "IQ2_XXS": (66, [0]),
    "IQ2_XS": (74, [0]),
    "IQ2_S": (82, [0]),
    "IQ3_XXS": (98, [0]),
    "IQ3_S": (110, [0]),
    "Q2_K": (84, [80, 82]),
}
WIDTHS = [2, 3, 7, 8, 9, 16, 33, 64]


def random_blocks(type_: str, rows: int, columns: int, seed: int) -> NDArray[np.uint8]:
    """Any codes, with small scales: [rows, bytes of a row]."""
    size, offsets = BLOCKS[type_]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, columns // 256, size), np.uint8)
    for offset in offsets:
        scales = random.uniform(0.5, 1, blocks.shape[:2]).astype(np.float16) / np.float16(64 * columns**0.5)
        blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def write_model(path: Path, type_: str, monkeypatch: pytest.MonkeyPatch, experts: int = 0) -> Path:
    """The tiny llama with random blocks of the type for the matrices of its layers."""
    monkeypatch.setattr(fixtures, "BASE_HIDDEN", 256)
    monkeypatch.setattr(fixtures, "BASE_FF", 512)
    full = fixtures.tiny_base(path.with_suffix(".f32.gguf"), experts=experts)
    reader = gguf.GGUFReader(full)
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for seed, tensor in enumerate(reader.tensors):
        *stack, rows, columns = (1, *map(int, tensor.shape[::-1]))
        if tensor.name.startswith("blk.") and rows > 16:
            data = random_blocks(type_, int(np.prod(stack)) * rows, columns, seed)
            data = data.reshape([*map(int, tensor.shape[:0:-1]), -1])
            writer.add_tensor(tensor.name, data, raw_dtype=gguf.GGMLQuantizationType[type_])
        else:
            writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("type_", BLOCKS)
def test_the_width_of_a_pass_changes_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str, experts: int
) -> None:
    if native.kernel_info()["selected"] is None:
        pytest.skip("this processor runs the stock kernels")
    model = native.Model(str(write_model(tmp_path / "model.gguf", type_, monkeypatch, experts)), n_gpu_layers=0)
    text = np.random.default_rng(1).integers(1, fixtures.BASE_VOCAB, 66).tolist()
    _, expected = testing.score(model, text, width=1)
    assert np.isfinite(expected).all()
    assert np.std(expected) > 0.01
    for width in WIDTHS:
        assert testing.score(model, text, width=width)[1] == expected, width


@pytest.mark.parametrize("type_", ["IQ2_XXS", "Q2_K"])
def test_tokens_cost_what_they_cost_with_stock_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    model = write_model(tmp_path / "model.gguf", type_, monkeypatch)
    (_, ours), (_, stock) = costs(model, None), costs(model, "off")
    assert ours != stock, "the same kernels ran twice"
    for mine, theirs in zip(ours, stock, strict=True):
        assert np.median(np.abs(np.subtract(mine, theirs))) < 0.02 * np.std(theirs)


@pytest.fixture(scope="module", params=["F32", "F16", "BF16"])
def floats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts whose matrices are floats."""
    folder = tmp_path_factory.mktemp(request.param)
    base = fixtures.tiny_base(folder / "base.gguf", experts=6)
    if request.param == "F32":
        return base
    quantize(base, folder / "model.gguf", request.param)
    return folder / "model.gguf"


def test_all_matrices_of_floats_lie_in_our_buffer(floats: Path) -> None:
    info, groups = loaded(floats, "scalar")
    assert {buffer for role, _, buffer in groups if role in ("matrix", "experts")} == {info["buffer"]}


def test_models_of_floats_have_the_same_bits_everywhere(floats: Path) -> None:
    _, expected = costs(floats, "scalar")
    wide, narrow = expected
    assert wide[: len(narrow)] == narrow
    for isa in testing.kernel_names()[1:]:
        assert costs(floats, isa) == (isa, expected)


def test_models_of_floats_are_those_of_stock_kernels(floats: Path) -> None:
    (_, ours), (_, stock) = costs(floats, "scalar"), costs(floats, "off")
    assert ours != stock, "the same kernels ran twice"
    for mine, theirs in zip(ours, stock, strict=True):
        assert np.median(np.abs(np.subtract(mine, theirs))) < 0.005
        assert np.std(theirs) > 0.05
