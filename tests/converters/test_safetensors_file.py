"""The safetensors reader: everything the library writes is read back, nothing hostile gets further than one line."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_files import one_line, read_or_refuse, write
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.checkpoints.safetensors_file import MAX_HEADER_BYTES, SafetensorsFile, widened
from safetensors.numpy import save

from medusa_cli.support.errors import MedusaError


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file from a header that may say anything (bytes: taken as they are)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.int16, np.int8, np.uint8, np.uint16, np.uint32]


@given(
    tensors=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
            lambda n: n != "__metadata__"
        ),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=4), st.integers(0, 2**32 - 1)),
        max_size=8,
    ),
    metadata=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=3),
)
@settings(max_examples=60)
def test_what_the_library_writes_is_read_back(
    tmp_path: Path, tensors: dict[str, Any], metadata: dict[str, str] | None
) -> None:
    arrays = {}
    for name, (dtype, shape, seed) in tensors.items():
        bits = np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        arrays[name] = np.frombuffer(bits, dtype).reshape(shape)
    file = SafetensorsFile(write(tmp_path / "x.safetensors", save(arrays, metadata)))
    assert set(file.tensors) == set(arrays)
    for name, array in arrays.items():
        loaded = file.load(name)
        assert file.tensors[name].shape == loaded.shape == array.shape
        assert loaded.dtype == array.dtype
        assert loaded.tobytes() == array.tobytes()


VALID = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}, {"k": "v"})


@given(
    cut=st.integers(0, len(VALID)),
    flips=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(1, 255)), max_size=6),
)
@settings(max_examples=300)
def test_damage_is_refused_or_harmless(tmp_path: Path, cut: int, flips: list[tuple[int, int]]) -> None:
    """Whatever happens to the bytes: a MedusaError, or tensors of the size that they claim."""
    data = bytearray(VALID)
    for at, value in flips:
        data[at] ^= value
    path = write(tmp_path / "x.safetensors", bytes(data[:cut] if not flips else data))
    read_or_refuse(path)


HOSTILE = {
    "empty": (b"", "header longer than the file"),
    "half a length": (b"\x01\x00", "header longer than the file"),
    "long header": (raw({}, length=10**6), "header longer than the file"),
    "length overflow": (raw({}, length=2**64 - 1), "header longer than the file"),
    "not JSON": (raw(b"{nonsense"), "not valid JSON"),
    "not UTF-8": (raw(b'{"\xff": 1}'), "not valid JSON"),
    "a list": (raw([1]), "not a JSON object"),
    "deep": (raw(b"[" * 200_000), "nested too deeply"),
    "deep object": (raw(b'{"a":' * 100_000), "nested too deeply"),
    "long number": (raw(b'{"a": ' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "twice": (raw(b'{"a": {}, "a": {}}'), "appears twice"),
    "lone surrogate": (raw(b'{"\\ud800": {}}'), "not valid JSON"),
    "metadata": (raw({"__metadata__": [1]}), "__metadata__"),
    "no entry": (raw({"a": 5}), "header entry"),
    "half an entry": (raw({"a": {"dtype": "F32"}}), "header entry"),
    "more than an entry": (raw({"a": {**entry(), "extra": 1}}, bytes(8)), "header entry"),
    "dtype": (raw({"a": entry(dtype="F2")}, bytes(8)), "dtype"),
    "dtype of no kind": (raw({"a": entry(dtype=[1])}, bytes(8)), "dtype"),
    "negative shape": (raw({"a": entry([-2])}, bytes(8)), "sizes"),
    "negative shapes": (raw({"a": entry([-1, -2])}, bytes(8)), "sizes"),
    "float shape": (raw({"a": entry([2.0])}, bytes(8)), "sizes"),
    "bool shape": (raw({"a": entry([True, 2])}, bytes(8)), "sizes"),
    "text shape": (raw({"a": entry("22")}, bytes(8)), "sizes"),
    "huge shape": (raw({"a": entry([2**63])}, bytes(8)), "sizes"),
    "overflowing shape": (raw({"a": entry([2**62, 4])}, bytes(8)), "do not fit"),
    "overflow to the size": (raw({"a": entry([2**61, 2**61, 2])}, bytes(8)), "do not fit"),
    "nothing of a huge width": (raw({"a": entry([0, 2**62], [0, 0])}), "larger than any"),
    "many dimensions": (raw({"a": entry([1] * 9)}, bytes(8)), "sizes"),
    "offsets reversed": (raw({"a": entry([0], [8, 0])}, bytes(8)), "inside the file"),
    "one offset": (raw({"a": entry([2], [0])}, bytes(8)), "inside the file"),
    "negative offset": (raw({"a": entry([2], [-8, 0])}, bytes(8)), "inside the file"),
    "behind the end": (raw({"a": entry([2], [8, 16])}, bytes(8)), "inside the file"),
    "short": (raw({"a": entry([3], [0, 8])}, bytes(8)), "do not fit"),
    "overlap": (raw({"a": entry(), "b": entry([2], [4, 12])}, bytes(12)), "overlap"),
    "same place": (raw({"a": entry(), "b": entry()}, bytes(8)), "overlap"),
    "inner": (raw({"a": entry([4], [0, 16]), "z": entry([0], [4, 4]), "b": entry([1], [8, 12])}, bytes(16)), "overlap"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_safetensors_are_refused(tmp_path: Path, case: str) -> None:
    data, message = HOSTILE[case]
    path = write(tmp_path / "x.safetensors", data)
    with pytest.raises(MedusaError) as error:
        open_checkpoint(path)
    one_line(error, str(path), message)


def test_a_header_beyond_reason_is_not_even_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 1))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(MedusaError, match="more than any model needs"):
        open_checkpoint(path)


def test_gaps_and_any_order_are_fine(tmp_path: Path) -> None:
    header = {"late": entry([1], [12, 16]), "none": entry([0, 7], [4, 4]), "early": entry([1], [0, 4])}
    data = struct.pack("<4f", 1.0, 0.0, 0.0, 2.0)
    checkpoint = open_checkpoint(write(tmp_path / "x.safetensors", raw(header, data)))
    assert list(checkpoint.tensors) == ["early", "none", "late"]
    assert checkpoint.load("early").tolist() == [1.0]
    assert checkpoint.load("late").tolist() == [2.0]
    assert checkpoint.load("none").shape == (0, 7)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", VALID)
    checkpoint = open_checkpoint(path)
    path.write_bytes(VALID[:-4])
    last = list(checkpoint.tensors)[-1]
    with pytest.raises(MedusaError, match="became shorter"):
        checkpoint.load(last)


@pytest.mark.parametrize(("name", "dtype"), [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)])
def test_every_8_bit_float(name: str, dtype: torch.dtype) -> None:
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(widened(codes, name), torch.from_numpy(codes).view(dtype).float().numpy())


def test_every_bf16() -> None:
    codes = np.arange(2**16, dtype=np.uint16)
    expected = torch.from_numpy(codes.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widened(codes, "BF16"), expected)
