"""Attention kernels: the reference against NumPy, the others against the reference bit for bit."""

from __future__ import annotations

import _native_testing as testing
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from medusa_cli import native

NAMES = testing.attention_names()
Halves = NDArray[np.float16]
Bytes = NDArray[np.uint8]
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18}
NO_SINKS = np.zeros(0, np.float32)


def attend(
    isa: str,
    q: NDArray[np.float32],
    k: Halves | Bytes,
    v: Halves | Bytes,
    mask: Halves,
    threads: int = 1,
    *,
    types: tuple[str, str] = ("f16", "f16"),
    sinks: NDArray[np.float32] = NO_SINKS,
    cap: float = 0,
    shares_cells: bool = True,
    batch: int = 1000,
) -> NDArray[np.float32]:
    """[tokens, heads, value size]."""
    flat = testing.kernel_attention(
        isa, q, k.view(np.uint8), v.view(np.uint8), *types, mask.view(np.uint16), sinks, float(q.shape[2] ** -0.5),
        cap, threads, shares_cells, batch,
    )  # fmt: skip
    return flat.reshape(q.shape[0], q.shape[1], -1)


def exact(
    q: NDArray[np.float32],
    k: NDArray[np.floating],
    v: NDArray[np.floating],
    mask: Halves,
    sinks: NDArray[np.float32] = NO_SINKS,
    cap: float = 0,
) -> NDArray[np.float64]:
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(array.astype(np.float64), group, axis=1) for array in (k, v))
    scores = np.einsum("thd,chd->thc", q.astype(np.float64), keys) * q.shape[2] ** -0.5
    if cap:
        scores = cap * np.tanh(scores / cap)
    scores = scores + mask[:, None].astype(float)
    largest = scores.max(axis=2, keepdims=True)
    if len(sinks):
        largest = np.maximum(largest, sinks[None, :, None])
    weights = np.exp(scores - largest)
    total = weights.sum(axis=2, keepdims=True)
    if len(sinks):
        total = total + np.exp(sinks[None, :, None] - largest)
    result: NDArray[np.float64] = np.einsum("thc,chd->thd", weights / total, values)
    return result


def quantized(seed: int, type_name: str, cells: int, heads: int, size: int) -> tuple[Bytes, NDArray[np.float64]]:
    """Random blocks of ggml's layout, and the numbers they stand for."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (cells, heads, size // 32, BLOCK_BYTES[type_name]), np.uint8)
    scales = random.uniform(1, 2, blocks.shape[:3]).astype(np.float16) / np.float16(100 if type_name == "q8_0" else 8)
    blocks[..., :2] = scales[..., None].view(np.uint8)
    stored = blocks[..., 2:]
    steps = (
        stored.view(np.int8).astype(float)
        if type_name == "q8_0"
        else np.concatenate([stored & 15, stored >> 4], axis=3).astype(float) - 8
    )
    numbers = steps * scales[..., None].astype(float)
    return blocks.reshape(cells, heads, -1), numbers.reshape(cells, heads, size)


def example(
    seed: int, tokens: int, heads: int, key_heads: int, cells: int, size: int = 64, value_size: int = 64
) -> tuple[NDArray[np.float32], Halves, Halves, Halves]:
    """Random operands; every token sees its own random half of the cells, and at least one."""
    random = np.random.default_rng(seed)
    q = random.standard_normal((tokens, heads, size)).astype(np.float32) * 2
    k = random.standard_normal((cells, key_heads, size)).astype(np.float16)
    v = random.standard_normal((cells, key_heads, value_size)).astype(np.float16)
    mask = np.where(random.random((tokens, cells)) < 0.5, 0, -np.inf).astype(np.float16)
    mask[np.arange(tokens), random.integers(0, cells, tokens)] = 0
    return q, k, v, mask


def assert_close(actual: NDArray[np.float32], operands: tuple[NDArray[np.float32], Halves, Halves, Halves]) -> None:
    """Sums round to multiples of B / 2^22, where B is at most twice the weights' sum times the largest value: by half
    of that for each cell, and like random numbers on average. Beside it, scores are products of floats."""
    wanted = exact(*operands)
    cells, largest = len(operands[2]), float(np.abs(operands[2]).max())
    rounding = largest * 2.0**-22
    error = np.abs(actual - wanted)
    assert (error <= 2e-6 + 2e-5 * np.abs(wanted) + cells * rounding).all()
    assert np.sqrt(np.mean(error**2)) <= 1e-6 + 1e-5 * np.sqrt(np.mean(wanted**2)) + cells**0.5 * rounding / 2


@pytest.mark.parametrize("isa", NAMES)
@pytest.mark.parametrize("size", [(16, 16), (64, 64), (80, 96), (128, 128), (256, 256)])
def test_attention_is_what_it_says(isa: str, size: tuple[int, int]) -> None:
    operands = example(1, 5, 6, 2, 96, *size)
    assert_close(attend(isa, *operands), operands)


@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "f16"), ("f16", "q4_0")])
@pytest.mark.parametrize("isa", NAMES)
def test_quantized_caches(isa: str, types: tuple[str, str]) -> None:
    q, k, v, mask = example(12, 5, 6, 2, 96, 64, 96)
    keys, key_numbers = (k, k.astype(float)) if types[0] == "f16" else quantized(0, types[0], 96, 2, 64)
    values, value_numbers = (v, v.astype(float)) if types[1] == "f16" else quantized(1, types[1], 96, 2, 96)
    actual = attend(isa, q, keys, values, mask, types=types)
    # The bound of a sum is that of the values' scales, up to 8 times what the values themselves give.
    np.testing.assert_allclose(actual, exact(q, key_numbers, value_numbers, mask), rtol=1e-4, atol=2e-5)
    order = np.random.default_rng(0).permutation(96)
    moved_mask = np.ascontiguousarray(mask[:, order])
    moved = attend(isa, q, keys[order], values[order], moved_mask, 3, types=types)
    np.testing.assert_array_equal(moved, actual)
    np.testing.assert_array_equal(actual, attend("scalar", q, keys, values, mask, types=types))


@pytest.mark.parametrize("isa", NAMES)
def test_sinks_and_soft_caps(isa: str) -> None:
    q, k, v, mask = example(13, 5, 6, 2, 96)
    mask[2] = -np.inf
    for sinks, cap in (([9, -2, 0, 1, -np.inf, 40], 0), ([], 3.0), ([], 50.0), ([1, 2, 3, -1, -2, -3], 3.0)):
        taken = np.array(sinks, np.float32)
        seen = [0, 1, 3, 4] if -np.inf in sinks or not sinks else range(5)
        actual = attend(isa, q, k, v, mask, 2, sinks=taken, cap=cap)
        wanted = exact(q[seen], k, v, mask[seen], taken, cap)
        np.testing.assert_allclose(actual[seen], wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(actual, attend("scalar", q, k, v, mask, sinks=taken, cap=cap))
        assert not actual[2].any()


@pytest.mark.parametrize("isa", NAMES)
@given(
    seed=st.integers(0, 10_000),
    tokens=st.integers(1, 20),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 7),
    blocks=st.integers(1, 20),
    threads=st.integers(1, 5),
    shares_cells=st.booleans(),
    batch=st.integers(1, 40),
    cap=st.sampled_from([0.0, 4.0]),
    sink=st.sampled_from([None, 0.5]),
)
@settings(max_examples=40, deadline=None)
def test_bits_do_not_depend_on_instruction_set_rows_or_threads(
    isa: str, seed: int, tokens: int, key_heads: int, group: int, blocks: int, threads: int, shares_cells: bool,
    batch: int, cap: float, sink: float | None,
) -> None:  # fmt: skip
    q, k, v, mask = example(seed, tokens, key_heads * group, key_heads, 16 * blocks)
    mask[:, : 16 * (seed % blocks)] = 0  # blocks that all tokens see whole
    sinks = NO_SINKS if sink is None else np.full(key_heads * group, sink, np.float32)
    expected = attend("scalar", q, k, v, mask, sinks=sinks, cap=cap)
    shared = attend(isa, q, k, v, mask, threads, sinks=sinks, cap=cap, shares_cells=shares_cells, batch=batch)
    np.testing.assert_array_equal(shared, expected)
    for token in range(tokens):
        one = slice(token, token + 1)
        np.testing.assert_array_equal(attend(isa, q[one], k, v, mask[one], sinks=sinks, cap=cap), expected[one])


@pytest.mark.parametrize("isa", NAMES)
@given(
    seed=st.integers(0, 10_000),
    tokens=st.integers(1, 70),
    key_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    before=st.integers(0, 50),
    threads=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_a_text_is_read_as_by_the_reference(
    isa: str, seed: int, tokens: int, key_heads: int, group: int, before: int, threads: int
) -> None:
    """With batches of rows as in a model's pass: each token sees itself and all before it."""
    cells = -(-(before + tokens) // 16) * 16
    q, k, v, mask = example(seed, tokens, key_heads * group, key_heads, cells)
    mask[:] = np.where(np.arange(cells) <= before + np.arange(tokens)[:, None], 0, -np.inf)
    read = attend(isa, q, k, v, mask, threads, shares_cells=False, batch=0)
    np.testing.assert_array_equal(read, attend("scalar", q, k, v, mask))


@pytest.mark.parametrize("isa", NAMES)
def test_the_place_of_a_cell_does_not_matter(isa: str) -> None:
    """Which is why text drafted in a tree, whose cells lie in another order, is that of plain decoding."""
    for seed in range(5):
        q, k, v, mask = example(seed, 4, 6, 2, 512)
        order = np.random.default_rng(seed).permutation(512)
        moved = attend(isa, q, k[order], v[order], np.ascontiguousarray(mask[:, order]))
        np.testing.assert_array_equal(moved, attend(isa, q, k, v, mask))


@pytest.mark.parametrize("isa", NAMES)
def test_cells_that_nobody_sees_do_not_matter(isa: str) -> None:
    q, k, v, mask = example(3, 3, 4, 2, 64)
    more = np.full((3, 128), -np.inf, np.float16)
    more[:, :64] = mask
    junk = np.full((64, 2, 64), 3e4, np.float16)
    grown = attend(isa, q, np.concatenate([k, junk]), np.concatenate([v, junk]), more)
    np.testing.assert_array_equal(grown, attend(isa, q, k, v, mask))


@pytest.mark.parametrize("isa", NAMES)
def test_a_row_that_sees_nothing_gives_zeros(isa: str) -> None:
    q, k, v, mask = example(4, 2, 2, 1, 32)
    mask[1] = -np.inf
    assert not attend(isa, q, k, v, mask)[1].any()


@pytest.mark.parametrize("isa", NAMES)
def test_far_scores_and_large_values(isa: str) -> None:
    q, k, v, mask = example(5, 3, 2, 1, 48)
    operands = (q * 40, k, v * np.float16(1000), mask)
    np.testing.assert_allclose(attend(isa, *operands), exact(*operands), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("isa", NAMES)
def test_the_order_of_many_cells_does_not_matter_either(isa: str) -> None:
    """Values of few bits and of all sizes, where sums in float would round differently, or to either side of a tie."""
    random = np.random.default_rng(11)
    q, k, v, mask = example(7, 2, 2, 1, 4096)
    v = (random.integers(-8, 9, v.shape) * 2.0 ** random.integers(-14, 8, v.shape)).astype(np.float16)
    k[::3] = k[0]
    wanted = attend("scalar", q, k, v, mask)
    assert_close(wanted, (q, k, v, mask))
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(k))
        moved = attend(isa, q, k[order], v[order], np.ascontiguousarray(mask[:, order]), threads=1 + seed)
        np.testing.assert_array_equal(moved, wanted)


def test_sizes_that_do_not_fill_registers_are_refused() -> None:
    with pytest.raises(native.NativeError, match="sizes"):
        attend("scalar", *example(6, 1, 1, 1, 24))
