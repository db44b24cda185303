"""Mixtures of experts: their stacked matrices on our kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import _native_testing as testing
import numpy as np
import pytest
from fixtures import tiny_base
from test_placement import loaded
from test_score import costs

from medusa_cli import native
from medusa_cli.conversion.quantize import quantize

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="llama.cpp exports neither kernels' way in nor tensors on Windows"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    quantize(tiny_base(folder / "base.gguf", experts=6), folder / "model.gguf", "Q4_0")
    return folder / "model.gguf"


def test_experts_lie_in_our_buffer(model: Path) -> None:
    tensors = [tensor for tensor in native.read_gguf(str(model)).tensors if tensor.name.endswith("_exps.weight")]
    info, groups = loaded(model, "scalar")
    found = {key: group for key, group in groups.items() if key[0] == "experts"}
    assert len(tensors) == 6
    assert found == {("experts", "q4_0", info["buffer"]): (6, sum(tensor.nbytes for tensor in tensors))}


@pytest.mark.parametrize("isa", testing.kernel_names()[1:])
def test_every_instruction_set_gives_the_bits_of_the_reference(model: Path, isa: str) -> None:
    assert costs(model, isa) == (isa, costs(model, "scalar")[1])


@pytest.mark.parametrize("isa", testing.kernel_names())
def test_the_width_of_a_pass_changes_no_bit(model: Path, isa: str) -> None:
    _, (wide, narrow) = costs(model, isa)
    assert wide[: len(narrow)] == narrow


def test_tokens_cost_what_they_cost_with_stock_kernels(model: Path) -> None:
    """Up to the rounding of activations; an expert taken for another would change them by much more."""
    _, ours = costs(model, "scalar")
    _, stock = costs(model, "off")
    assert ours != stock, "the same kernels ran twice"
    for mine, theirs in zip(ours, stock, strict=True):
        changes = np.abs(np.subtract(mine, theirs))
        assert np.median(changes) < 0.02
        assert np.std(theirs) > 10 * np.median(changes)
