"""Raw GGUF headers: every key-value keeps its bytes, every offset can be set.

gguf-py re-encodes metadata and chooses tensor offsets itself; the single-file layout needs both to be left alone. All
integers are little-endian. Readers trust nothing: each length is checked against the bytes that are there.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ..errors import MedusaError
from ..files import atomic_file, chunks, opened

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4

UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64 = 4, 5, 6, 7, 8, 9, 10
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


@dataclass(frozen=True)
class KeyValue:
    """One metadata entry; `raw` is its whole record (key, type, value) as it is in the file."""

    key: str
    type: int
    raw: bytes

    @property
    def value(self) -> Any:
        """The decoded value: int, float, bool, str, or a list of those. Strings: UTF-8, bad bytes replaced."""
        cursor = _Cursor(self.raw, 0, len(self.raw), self.key)
        cursor.string()
        return cursor.value(cursor.unpack("<I"))


@dataclass(frozen=True)
class TensorInfo:
    """shape is in ggml order (contiguous dimension first); offset counts from the data region's start."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Header:
    """A parsed header. data_offset: bytes from the header's start to the data region (padded to the alignment)."""

    name: str
    version: int
    alignment: int
    kv: tuple[KeyValue, ...]
    tensors: tuple[TensorInfo, ...]
    data_offset: int

    def get(self, key: str) -> Any:
        """The value under `key`, None if it is missing."""
        return next((entry.value for entry in self.kv if entry.key == key), None)

    def metadata(self) -> dict[str, Any]:
        """All key-values decoded, in file order."""
        return {entry.key: entry.value for entry in self.kv}

    @property
    def data_size(self) -> int:
        """Bytes of the data region up to the end of the last tensor, without the padding after it."""
        return self.tensors[-1].offset + self.tensors[-1].nbytes if self.tensors else 0


class _Cursor:
    """Reads forward through buffer[at:end]; `name` tells in messages whose bytes these are."""

    def __init__(self, buffer: bytes | mmap.mmap | memoryview, at: int, end: int, name: str) -> None:
        self.buffer, self.at, self.end, self.name = buffer, at, end, name

    def advance(self, count: int) -> int:
        """Takes `count` bytes and returns the position before them. MedusaError if they are not there."""
        start = self.at
        if count > self.end - start:
            raise MedusaError(f"{self.name}: truncated GGUF header, fetch or convert the file again")
        self.at = start + count
        return start

    def unpack(self, code: str) -> Any:
        return struct.unpack_from(code, self.buffer, self.advance(struct.calcsize(code)))[0]

    def string(self) -> str:
        """A value: vocabularies hold strings that are not UTF-8; their bad bytes are replaced."""
        return self._bytes().decode("utf-8", errors="replace")

    def identifier(self, what: str) -> str:
        """A key or a tensor's name. MedusaError if it is not UTF-8."""
        data = self._bytes()
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise MedusaError(f"{self.name}: {what} {data!r} is not UTF-8, fetch or convert the file again") from None

    def _bytes(self) -> bytes:
        start = self.advance(self.unpack("<Q"))
        return bytes(self.buffer[start : self.at])

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            kind, count = self.array_head()
            if kind == STRING:
                return [self.string() for _ in range(count)]
            code = SCALARS[kind]
            start = self.advance(count * struct.calcsize(code))
            return list(struct.unpack_from(f"<{count}{code[1]}", self.buffer, start))
        return self.unpack(SCALARS[kind])

    def array_head(self) -> tuple[int, int]:
        kind, count = self.unpack("<I"), self.unpack("<Q")
        if kind != STRING and kind not in SCALARS:
            raise MedusaError(f"{self.name}: GGUF array of unknown type {kind}, the file is damaged")
        return kind, count

    def skip_value(self, kind: int) -> None:
        if kind == ARRAY:
            kind, count = self.array_head()
            if kind == STRING:
                self.skip_strings(count)
            else:
                self.advance(count * struct.calcsize(SCALARS[kind]))
        elif kind == STRING or kind in SCALARS:
            self.value(kind)
        else:
            raise MedusaError(f"{self.name}: GGUF value of unknown type {kind}, the file is damaged")

    def skip_strings(self, count: int) -> None:
        """Vocabularies hold hundreds of thousands of strings: reads one length and adds once for each."""
        length = struct.Struct("<Q").unpack_from
        at, buffer, last = self.at, self.buffer, self.end - 8
        for _ in range(count):
            if at > last:
                break
            at += 8 + length(buffer, at)[0]
        else:
            if at <= self.end:
                self.at = at
                return
        raise MedusaError(f"{self.name}: truncated GGUF header, fetch or convert the file again")


def tensor_bytes(name: str, shape: Sequence[int], kind: int) -> int:
    """Bytes of a tensor's data. MedusaError for unknown types and rows that are not whole blocks."""
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise MedusaError(f"{name}: unknown tensor type {kind}, a newer gguf package may know it") from None
    if shape[0] % block:
        raise MedusaError(f"{name}: rows of {shape[0]} values are not whole blocks of {block}, the file is damaged")
    return math.prod(shape) // block * size


def parse(buffer: bytes | mmap.mmap | memoryview, name: str, start: int = 0, end: int | None = None) -> Header:
    """Parses the header in buffer[start:end] and checks the layout libllama asks for.

    That is: unique keys and tensor names, tensors one after another in file order, each padded to the alignment.
    MedusaError, starting with `name`, otherwise. Whether the data itself is there is for the caller to check.
    """
    cursor = _Cursor(buffer, start, len(buffer) if end is None else end, name)
    if bytes(buffer[start : cursor.advance(4) + 4]) != MAGIC:
        raise MedusaError(f"{name}: not a GGUF file")
    version = cursor.unpack("<I")
    if version not in VERSIONS:
        raise MedusaError(f"{name}: GGUF version {version} is not supported, only 2 and 3 (little-endian)")
    n_tensors, n_kv = cursor.unpack("<Q"), cursor.unpack("<Q")
    kv = _parse_kv(cursor, n_kv)
    alignment = next((entry.value for entry in kv if entry.key == "general.alignment"), DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise MedusaError(f"{name}: alignment {alignment!r} is not a power of two, the file is damaged")
    tensors = _parse_tensors(cursor, n_tensors, alignment)
    return Header(name, version, alignment, kv, tensors, padded(cursor.at - start, alignment))


def _parse_kv(cursor: _Cursor, count: int) -> tuple[KeyValue, ...]:
    entries: dict[str, KeyValue] = {}
    for _ in range(count):
        begin = cursor.at
        key = cursor.identifier("key")
        kind = cursor.unpack("<I")
        cursor.skip_value(kind)
        if key in entries:
            raise MedusaError(f"{cursor.name}: key {key!r} appears twice, the file is damaged")
        entries[key] = KeyValue(key, kind, bytes(cursor.buffer[begin : cursor.at]))
    return tuple(entries.values())


def _parse_tensors(cursor: _Cursor, count: int, alignment: int) -> tuple[TensorInfo, ...]:
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for _ in range(count):
        name = cursor.identifier("tensor name")
        dims = cursor.unpack("<I")
        label = f"{cursor.name}: tensor {name!r}"
        if not 1 <= dims <= MAX_DIMS or name in tensors:
            raise MedusaError(f"{label} appears twice or has {dims} dimensions, the file is damaged")
        shape = tuple(cursor.unpack("<Q") for _ in range(dims))
        kind, offset = cursor.unpack("<I"), cursor.unpack("<Q")
        if 0 in shape or offset != expected:
            raise MedusaError(f"{label} lies at {offset} where {expected} was expected, the file is damaged")
        tensors[name] = TensorInfo(name, shape, kind, offset, tensor_bytes(label, shape, kind))
        expected = padded(offset + tensors[name].nbytes, alignment)
    return tuple(tensors.values())


def read_header(path: Path) -> tuple[Header, int]:
    """Header and size of the GGUF file at `path`; every tensor is checked to lie inside the file."""
    with opened(path) as file:
        size = file.seek(0, 2)
        if size == 0:
            raise MedusaError(f"{path}: not a GGUF file (it is empty)")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            header = parse(view, str(path))
    if header.tensors and header.data_offset + header.data_size > size:
        missing = header.data_offset + header.data_size - size
        raise MedusaError(f"{path}: truncated GGUF, {missing} bytes are missing, fetch the file again")
    return header, size


def encode_string(text: str) -> bytes:
    """A GGUF string: 64-bit length, then UTF-8."""
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def encode_kv(key: str, kind: int, value: int | float | str) -> KeyValue:
    """A scalar or string entry."""
    body = encode_string(value) if isinstance(value, str) else struct.pack(SCALARS[kind], value)
    return KeyValue(key, kind, encode_string(key) + struct.pack("<I", kind) + body)


def encode_array(key: str, kind: int, values: Sequence[int] | Sequence[float]) -> KeyValue:
    """An array of scalars of one type."""
    body = struct.pack(f"<IQ{len(values)}{SCALARS[kind][1]}", kind, len(values), *values)
    return KeyValue(key, ARRAY, encode_string(key) + struct.pack("<I", ARRAY) + body)


def placed(tensors: Sequence[TensorInfo], start: int, alignment: int) -> list[TensorInfo]:
    """The same tensors, one after another from `start`."""
    out = []
    for tensor in tensors:
        out.append(replace(tensor, offset=start))
        start = padded(start + tensor.nbytes, alignment)
    return out


def build(kv: Sequence[KeyValue], tensors: Sequence[TensorInfo], alignment: int, version: int = 3) -> bytes:
    """Header bytes, padded with zeros to `alignment`."""
    parts = [MAGIC, struct.pack("<IQQ", version, len(tensors), len(kv)), *(entry.raw for entry in kv)]
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [encode_string(tensor.name), shape, struct.pack("<IQ", tensor.type, tensor.offset)]
    data = b"".join(parts)
    return data.ljust(padded(len(data), alignment), b"\0")


def replace_metadata(path: Path, entries: Sequence[KeyValue]) -> None:
    """Rewrites the file with `entries` in place of those with the same keys, whole or not at all.

    Tensors keep their bytes and their places in the data region, even those of a base model inside. MedusaError if the
    file is not a GGUF or its folder cannot be written.
    """
    header, size = read_header(path)
    changed = {entry.key: entry for entry in entries}
    kept = [changed.pop(entry.key, entry) for entry in header.kv]
    start = build([*kept, *changed.values()], header.tensors, header.alignment, header.version)
    with opened(path) as source, atomic_file(path) as out:
        out.write(start)
        out.writelines(chunks(source, header.data_offset, size - header.data_offset))
