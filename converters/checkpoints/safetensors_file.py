"""A small safetensors reader that trusts nothing: the header is checked against the file before anything is used.

Tensors are read one at a time into fresh memory. Nothing stays mapped, so the resident size never follows the file's.
Not the safetensors library: without torch it cannot read BF16 and F8, its mapping ends the process when a file is cut,
and it wants all tensors at once for writing, which is done one tensor at a time here.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from ..files import atomic_file, opened
from .strict_json import parse_json

MAX_HEADER_BYTES = 32 << 20
ALIGNMENT = 8
"""Alignment of the header that is written."""
MAX_DIMS = 8
MAX_VALUES = 1 << 56
"""Limit for the product of a tensor's nonzero dimensions: NumPy refuses more, even if another dimension is 0."""

STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""dtype name of the format -> what is in the file (BF16 and F8 as their bits)."""
FLOATS, FLOATS8 = ("F64", "F32", "F16", "BF16"), ("F8_E4M3", "F8_E5M2")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a checkpoint stores it: shape in torch order, dtype by its safetensors name ("F32", "BF16", ...)."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values."""
        return math.prod(self.shape) * STORED[self.dtype].itemsize


class SafetensorsFile:
    """One .safetensors file. Opening it checks everything its header says against the file.

    MedusaError if that does not fit: wrong length, bad JSON, duplicate names, invalid shapes, offsets that are outside
    the file, overlap or do not match shape x dtype, dtypes that this program does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        entries = _read_entries(path)
        self.tensors = {tensor.name: tensor for tensor, _ in entries}
        self._starts = {tensor.name: start for tensor, start in entries}

    def load(self, name: str) -> NDArray[Any]:
        """The tensor's values in torch order, in fresh memory; BF16 and F8 become float32, the rest stays as stored."""
        tensor = self.tensors[name]
        stored = STORED[tensor.dtype]
        with opened(self.path) as file:
            file.seek(self._starts[name])
            values = np.fromfile(file, stored, math.prod(tensor.shape))
        if values.nbytes != tensor.nbytes:
            raise MedusaError(f"{self.path}: became shorter while tensor {name!r} was read, download it again")
        return widened(values, tensor.dtype).reshape(tensor.shape)


def widened(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """float32 for the bits of BF16 and F8 tensors; other dtypes pass through."""
    if dtype == "BF16":
        bits = values.astype("<u4")
        bits <<= 16
        return bits.view("<f4")
    return _float8_table(dtype)[values] if dtype in FLOATS8 else values


def _float8_table(dtype: str) -> NDArray[np.float32]:
    """The 256 values of an 8-bit float: E5M2 is the upper half of an F16; E4M3 has NaN at all ones and no infinity."""
    codes = np.arange(256, dtype=np.uint16)
    if dtype == "F8_E5M2":
        return (codes << 8).view(np.float16).astype(np.float32)
    # The exponent's bias is 7, while that of F16 is 15.
    table = ((codes & 0x80) << 8 | (codes & 0x7F) << 7).view(np.float16).astype(np.float32) * 2**8
    table[[0x7F, 0xFF]] = np.nan
    return table


def _read_entries(path: Path) -> list[tuple[StoredTensor, int]]:
    """The tensors of the file in the order of their data, with where it begins in the file, everything checked."""
    with opened(path) as file:
        size = file.seek(0, 2)
        file.seek(0)
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise MedusaError(f"{path}: safetensors header longer than the file, download it again")
        if length > MAX_HEADER_BYTES:
            raise MedusaError(f"{path}: safetensors header of {length} bytes, more than any model needs")
        text = file.read(length)
    header = parse_json(text, f"{path} (safetensors header)")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise MedusaError(f"{path}: safetensors __metadata__ is not an object, the file is damaged")
    entries = [_entry(path, name, value, 8 + length, size) for name, value in header.items()]
    entries.sort(key=lambda entry: (entry[1], entry[0].nbytes))
    end, before = 0, ""
    for tensor, start in entries:
        if tensor.nbytes and start < end:
            raise MedusaError(f"{path}: tensors {before!r} and {tensor.name!r} overlap, the file is damaged")
        end, before = max(end, start + tensor.nbytes), tensor.name
    return entries


def _entry(path: Path, name: str, value: Any, data_start: int, size: int) -> tuple[StoredTensor, int]:
    label = f"{path}: tensor {name!r}"
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise MedusaError(f"{label}: its header entry is not dtype, shape and data_offsets, the file is damaged")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in STORED:
        raise MedusaError(f"{label}: dtype {json.dumps(dtype)[:40]} is not supported, save it as F16, BF16 or F32")
    if not _sizes(shape) or len(shape) > MAX_DIMS:
        raise MedusaError(f"{label}: its shape is not a list of at most {MAX_DIMS} sizes, the file is damaged")
    if not _sizes(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= size - data_start:
        raise MedusaError(f"{label}: its data does not lie inside the file, download it again")
    tensor = StoredTensor(name, tuple(shape), dtype)
    if tensor.nbytes != offsets[1] - offsets[0]:
        raise MedusaError(f"{label}: shape and dtype do not fit the length of its data, the file is damaged")
    check_shape(label, shape)
    return tensor, data_start + offsets[0]


def check_shape(label: str, shape: Sequence[int]) -> None:
    """MedusaError for a shape that no array can have."""
    if math.prod(size for size in shape if size) > MAX_VALUES:
        raise MedusaError(f"{label}: its shape is larger than any tensor, the file is damaged")


def _sizes(values: Any) -> bool:
    """Whether it is a list of whole numbers from 0 to 2^63 - 1 (a bool is not a number here)."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


# --- writing ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorToWrite(StoredTensor):
    """dtype: F16, F32 or an integer type; load: the values."""

    load: Callable[[], NDArray[Any]]


def write_safetensors(path: Path, tensors: Sequence[TensorToWrite]) -> None:
    """Writes `path`, whole or not at all. MedusaError for values of another shape or beyond the dtype's range."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with atomic_file(path) as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors:
            file.write(_stored(tensor).tobytes())


def _stored(tensor: TensorToWrite) -> NDArray[Any]:
    values = tensor.load()
    if values.shape != tensor.shape:
        raise MedusaError(f"{tensor.name}: has shape {list(values.shape)}, {list(tensor.shape)} was announced")
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(values, STORED[tensor.dtype])
    if stored.dtype.kind == "f" and not np.isfinite(stored).all():
        raise MedusaError(f"{tensor.name}: holds values that {tensor.dtype} cannot represent")
    return stored
