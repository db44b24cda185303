"""One file that holds a base model and its heads, and the way back.

Layout: outer header (the base's key-values byte for byte, then medusa.*), then the data region: the tensor
`medusa.base_header` (I8: bytes [0, data_offset) of the base file), the base's data region as it was, the head tensors.
Blob and base data together are the base file, so libllama can open it there, and `split` is one copy.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from gguf.constants import GGMLQuantizationType

from ..errors import MedusaError
from ..files import atomic_file, chunks, opened
from ..gguf.fingerprint import fingerprint
from ..gguf.header import (
    DEFAULT_ALIGNMENT,
    STRING,
    UINT64,
    Header,
    TensorInfo,
    build,
    encode_kv,
    padded,
    parse,
    placed,
    read_header,
)
from .schema import ARCHITECTURE, BASE_FINGERPRINT_KEY, BASE_HEADER, BASE_SIZE_KEY, is_of_heads

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""


def join(base_path: Path, sidecar_path: Path, out_path: Path, on_progress: Progress = lambda done, total: None) -> None:
    """Writes base + heads to `out_path` in the single-file layout, whole or not at all.

    MedusaError if one of the inputs is the wrong kind of file, the heads belong to another base (fingerprint), or the
    base already has heads. Memory: the two headers and one chunk.
    """
    base, base_size = read_header(base_path)
    sidecar, _ = read_header(sidecar_path)
    _refuse_same_file(out_path, base_path, sidecar_path)
    _check_pair(base, base_size, sidecar)

    region = base.data_offset + padded(base.data_size, base.alignment)
    blob = TensorInfo(BASE_HEADER, (base.data_offset,), int(GGMLQuantizationType.I8), 0, base.data_offset)
    shifted = [replace(tensor, offset=tensor.offset + base.data_offset) for tensor in base.tensors]
    heads = placed(sidecar.tensors, region, base.alignment)
    medusa_kv = [entry for entry in sidecar.kv if is_of_heads(entry.key) and entry.key != BASE_SIZE_KEY]
    size_kv = encode_kv(BASE_SIZE_KEY, UINT64, base_size)
    header = build([*base.kv, *medusa_kv, size_kv], [blob, *shifted, *heads], base.alignment)

    total = len(header) + region + sum(padded(tensor.nbytes, base.alignment) for tensor in heads)
    with opened(base_path) as base_file, opened(sidecar_path) as sidecar_file, atomic_file(out_path) as out:
        whole_base = itertools.chain(chunks(base_file, 0, base_size), [bytes(region - base_size)])
        pieces = _tensors(sidecar_file, sidecar.data_offset, sidecar.tensors, base.alignment)
        _write(out, ([header], whole_base, pieces), on_progress, total)


def split(path: Path, base_out: Path, sidecar_out: Path, on_progress: Progress = lambda done, total: None) -> None:
    """Takes a single file apart: `base_out` equals the original base byte for byte, `sidecar_out` holds the heads.

    MedusaError for any file that is not in the single-file layout; then nothing is written.
    """
    outer, size = read_header(path)
    _refuse_same_file(base_out, path, sidecar_out)
    _refuse_same_file(sidecar_out, path, base_out)
    with opened(path) as file:
        base = _embedded_base(outer, file)
        base_size = _embedded_size(outer, base)
        heads = outer.tensors[1 + len(base.tensors) :]
        medusa_kv = [entry for entry in outer.kv[len(base.kv) :] if entry.key != BASE_SIZE_KEY]
        architecture = encode_kv("general.architecture", STRING, ARCHITECTURE)
        header = build([architecture, *medusa_kv], placed(heads, 0, DEFAULT_ALIGNMENT), DEFAULT_ALIGNMENT)
        total = base_size + len(header) + sum(padded(tensor.nbytes, DEFAULT_ALIGNMENT) for tensor in heads)
        if outer.data_offset + base_size > size:
            raise MedusaError(f"{path}: truncated GGUF, the base model is not complete, fetch the file again")
        with atomic_file(base_out) as base_file, atomic_file(sidecar_out) as sidecar_file:
            _write(base_file, [chunks(file, outer.data_offset, base_size)], on_progress, total)
            pieces = _tensors(file, outer.data_offset, heads, DEFAULT_ALIGNMENT)
            _write(sidecar_file, ([header], pieces), on_progress, total, base_size)


def is_single_file(header: Header) -> bool:
    """Whether a parsed header belongs to a single file."""
    return bool(header.tensors) and header.tensors[0].name == BASE_HEADER


def _check_pair(base: Header, base_size: int, sidecar: Header) -> None:
    """MedusaError unless `sidecar` holds heads and `base` is a complete base model they belong to."""
    if sidecar.get("general.architecture") != ARCHITECTURE or not sidecar.tensors:
        raise MedusaError(f"{sidecar.name}: not a heads file (its architecture is not '{ARCHITECTURE}')")
    stray = [tensor.name for tensor in sidecar.tensors if not is_of_heads(tensor.name)]
    if stray or is_single_file(sidecar):
        raise MedusaError(f"{sidecar.name}: tensor {(stray or [BASE_HEADER])[0]!r} does not belong in a heads file")
    metadata = base.metadata()
    if any(is_of_heads(name) for name in (*metadata, *(tensor.name for tensor in base.tensors))):
        raise MedusaError(f"{base.name}: already contains heads, split it first")
    if metadata.get("split.count", 0) > 1:
        raise MedusaError(f"{base.name}: one part of a split model, merge it with llama-gguf-split first")
    extra = base_size - base.data_offset - padded(base.data_size, base.alignment)
    if not base.tensors or extra > 0:
        raise MedusaError(f"{base.name}: {extra} unknown bytes after the last tensor, is it a complete model?")
    wanted, found = sidecar.get(BASE_FINGERPRINT_KEY), fingerprint(metadata)
    if wanted != found:
        raise MedusaError(f"{sidecar.name}: made for base {wanted}, but {base.name} is {found}: choose the right pair")


def _embedded_base(outer: Header, file: BinaryIO) -> Header:
    """The base's own header, checked against the outer one."""
    if not is_single_file(outer):
        raise MedusaError(f"{outer.name}: holds no base model with heads, nothing to split")
    blob = outer.tensors[0]
    if blob.type != GGMLQuantizationType.I8 or len(blob.shape) != 1:
        raise MedusaError(f"{outer.name}: {BASE_HEADER} has the wrong type or shape, the file is damaged")
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        base = parse(view, f"{outer.name} ({BASE_HEADER})", outer.data_offset, outer.data_offset + blob.nbytes)
    count = len(base.tensors)
    shifted = tuple(replace(tensor, offset=tensor.offset + blob.nbytes) for tensor in base.tensors)
    same_kv = [entry.raw for entry in outer.kv[: len(base.kv)]] == [entry.raw for entry in base.kv]
    if (
        base.data_offset != blob.nbytes
        or base.alignment != outer.alignment
        or not same_kv
        or outer.tensors[1 : 1 + count] != shifted
    ):
        raise MedusaError(f"{outer.name}: {BASE_HEADER} and the file's own header disagree, the file is damaged")
    names = [tensor.name for tensor in outer.tensors[1 + count :]] + [entry.key for entry in outer.kv[len(base.kv) :]]
    stray = [name for name in names if not is_of_heads(name)]
    if stray or not count:
        raise MedusaError(f"{outer.name}: {(stray or ['the base'])[0]!r} is not part of heads, the file is damaged")
    return base


def _embedded_size(outer: Header, base: Header) -> int:
    """Size of the original base file: its last tensor may or may not have been padded."""
    least = base.data_offset + base.data_size
    most = base.data_offset + padded(base.data_size, base.alignment)
    size = outer.get(BASE_SIZE_KEY)
    if size is None:
        return most
    if not isinstance(size, int) or not least <= size <= most:
        raise MedusaError(f"{outer.name}: {BASE_SIZE_KEY} {size!r} does not fit the tensors, the file is damaged")
    return size


def _write(out: BinaryIO, parts: Iterable[Iterable[bytes]], on_progress: Progress, total: int, done: int = 0) -> None:
    """Writes the pieces of all parts. done: bytes that count as already written."""
    for data in itertools.chain.from_iterable(parts):
        out.write(data)
        done += len(data)
        on_progress(done, total)


def _tensors(source: BinaryIO, offset: int, tensors: Sequence[TensorInfo], alignment: int) -> Iterator[bytes]:
    """The data of the tensors of a file whose data region begins at `offset`, each padded."""
    for tensor in tensors:
        yield from chunks(source, offset + tensor.offset, tensor.nbytes)
        yield bytes(padded(tensor.nbytes, alignment) - tensor.nbytes)


def _refuse_same_file(out_path: Path, *inputs: Path) -> None:
    for path in inputs:
        same = os.path.abspath(out_path) == os.path.abspath(path)
        if same or (os.path.exists(out_path) and os.path.exists(path) and os.path.samefile(out_path, path)):
            raise MedusaError(f"{out_path}: would overwrite an input or the other output, choose another name")
