"""Kernels of every instruction set against the scalar reference (bit for bit), and the reference against NumPy."""

from __future__ import annotations

import _native_testing as testing
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from medusa_cli import native

TYPES = testing.kernel_types()
NAMES = testing.kernel_names()
ROUNDING = 1.0 / 127
"""Activations keep 8 bits of the largest value among 32."""


def whole_blocks(type_: str, columns: int) -> int:
    """So many columns, rounded down to whole blocks of the type."""
    block = 256 if "_K" in type_ or type_ in ("iq4_xs", "tq1_0", "tq2_0") else 32
    return columns // block * block


def quantized(type_: str, rows: int, columns: int, seed: int, scale: float = 1.0) -> tuple[bytes, NDArray[np.float32]]:
    """A random matrix of the type: its bytes and its values."""
    values = (np.random.default_rng(seed).standard_normal((rows, columns)) * scale).astype(np.float32)
    data = native.quantize_rows(type_, values)
    return data, testing.dequantize_rows(type_, data, columns)


@pytest.mark.parametrize("type_", TYPES)
def test_the_reference_is_the_product(type_: str) -> None:
    data, values = quantized(type_, 48, 1024, seed=1)
    x = np.random.default_rng(2).standard_normal((5, 1024)).astype(np.float32)
    actual = testing.kernel_product("scalar", type_, data, 1024, x)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    # Each activation is off by at most half a step of its cell of 32: errors add up like the norms.
    steps = np.abs(x).reshape(5, -1, 32).max(axis=2) * ROUNDING / 2
    bound = np.linalg.norm(np.repeat(steps, 32, axis=1), axis=1)[:, None] * np.linalg.norm(values, axis=1)[None]
    assert np.all(np.abs(actual - exact) <= bound)
    assert np.linalg.norm(actual - exact) <= 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("isa", NAMES[1:])
@pytest.mark.parametrize("type_", TYPES)
def test_every_width_gives_the_bits_of_the_reference(isa: str, type_: str) -> None:
    data, _ = quantized(type_, 32, 768, seed=3)
    x = np.random.default_rng(4).standard_normal((64, 768)).astype(np.float32)
    expected = testing.kernel_product("scalar", type_, data, 768, x)
    for n in range(1, 65):
        actual = testing.kernel_product(isa, type_, data, 768, x[:n])
        np.testing.assert_array_equal(actual, expected[:n])


@pytest.mark.parametrize("isa", NAMES[1:])
@pytest.mark.parametrize("type_", TYPES)
def test_rows_longer_than_a_block_give_the_bits_of_the_reference(isa: str, type_: str) -> None:
    """Wide products may go through the columns of a long row in blocks."""
    columns = whole_blocks(type_, 2336)
    data, _ = quantized(type_, 32, columns, seed=8)
    x = np.random.default_rng(9).standard_normal((37, columns)).astype(np.float32)
    expected = testing.kernel_product("scalar", type_, data, columns, x)
    for n in (1, 8, 16, 17, 37):
        np.testing.assert_array_equal(testing.kernel_product(isa, type_, data, columns, x[:n]), expected[:n])


@pytest.mark.parametrize("isa", NAMES[1:])
@pytest.mark.parametrize("type_", TYPES)
def test_prompts_give_the_bits_of_the_reference(isa: str, type_: str) -> None:
    """So many columns that not all of them are multiplied in one go."""
    data, _ = quantized(type_, 16, 1280, seed=10)
    x = np.random.default_rng(11).standard_normal((515, 1280)).astype(np.float32)
    expected = testing.kernel_product("scalar", type_, data, 1280, x)
    for n in (65, 255, 256, 257, 511, 515):
        np.testing.assert_array_equal(testing.kernel_product(isa, type_, data, 1280, x[:n]), expected[:n])


ADVERSARIAL = [0.0, -0.0, 1e-45, -1e-40, 1e-20, 1.0, -1.0, 127.0, 1e4, -3e4, 1e30, -1e37]


@pytest.mark.parametrize("isa", NAMES)
@given(
    type_=st.sampled_from(TYPES),
    columns=st.integers(1, 6),
    groups=st.integers(1, 4),
    n=st.integers(1, 20),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=60)
def test_odd_values_and_shapes(
    isa: str, type_: str, columns: int, groups: int, n: int, seed: int, data: st.DataObject
) -> None:
    columns = whole_blocks(type_, 256 * columns) if whole_blocks(type_, 32) == 0 else 32 * columns
    weights, _ = quantized(type_, 16 * groups, columns, seed, scale=10.0 ** (seed % 5 - 2))
    x = np.random.default_rng(seed).standard_normal((n, columns)).astype(np.float32)
    for _ in range(4):
        row, at = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, columns - 1))
        x[row, at] = data.draw(st.sampled_from(ADVERSARIAL))
    actual = testing.kernel_product(isa, type_, weights, columns, x)
    assert actual.shape == (n, 16 * groups)
    np.testing.assert_array_equal(actual, testing.kernel_product("scalar", type_, weights, columns, x))
    for row in range(n):
        np.testing.assert_array_equal(
            actual[row], testing.kernel_product(isa, type_, weights, columns, x[row : row + 1])[0]
        )


@pytest.mark.parametrize("isa", NAMES)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_no_number(isa: str, type_: str, bad: float) -> None:
    data, _ = quantized(type_, 16, 256, seed=5)
    x = np.ones((3, 256), np.float32)
    x[1, 77] = bad
    actual = testing.kernel_product(isa, type_, data, 256, x)
    assert np.isfinite(actual[[0, 2]]).all()
    assert not np.isfinite(actual[1]).any()


@pytest.mark.parametrize("isa", NAMES)
def test_zeros_give_zeros(isa: str) -> None:
    for type_ in TYPES:
        data, _ = quantized(type_, 16, 256, seed=6)
        assert not testing.kernel_product(isa, type_, data, 256, np.zeros((2, 256), np.float32)).any()


@pytest.mark.parametrize("isa", NAMES)
@pytest.mark.parametrize("type_", TYPES)
def test_rows_need_not_fill_groups(isa: str, type_: str) -> None:
    """Those of the last group are what they are among more rows."""
    data, _ = quantized(type_, 48, 256, seed=7)
    x = np.random.default_rng(8).standard_normal((35, 256)).astype(np.float32)
    whole = testing.kernel_product("scalar", type_, data, 256, x)
    for rows in (1, 15, 17, 40):
        part = testing.kernel_product(isa, type_, data[: len(data) // 48 * rows], 256, x)
        np.testing.assert_array_equal(part, whole[:, :rows])


def test_columns_fill_blocks() -> None:
    data = native.quantize_rows("f16", np.ones((16, 48), np.float32))
    with pytest.raises(native.NativeError, match="blocks"):
        testing.kernel_product("scalar", "f16", data, 48, np.ones((1, 48), np.float32))


@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
def test_floats_are_not_rounded(type_: str) -> None:
    data, values = quantized(type_, 16, 512, seed=10)
    x = np.random.default_rng(11).standard_normal((3, 512)).astype(np.float32)
    exact = x.astype(np.float64) @ values.T.astype(np.float64)
    sizes = np.abs(x).astype(np.float64) @ np.abs(values).T.astype(np.float64)
    actual = testing.kernel_product("scalar", type_, data, 512, x)
    # Two sums of 256 products, each rounded at most by half a unit in the last place of the sum of sizes.
    assert np.all(np.abs(actual - exact) <= 257 * 2.0**-24 * sizes)


def test_types_are_known_in_either_case() -> None:
    values = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    assert bytes(native.quantize_rows("q4_k", values)) == bytes(native.quantize_rows("q4_K", values))
    with pytest.raises(native.NativeError, match="q4_x"):
        native.quantize_rows("q4_x", values)
