"""A GGUF with some of its tensors replaced; all others are the same, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.converters.files import chunks, opened
from medusa_cli.converters.gguf.header import KeyValue, TensorInfo, build, padded, placed, tensor_bytes
from medusa_cli.models.tensors import Tensors
from medusa_cli.support.atomic import atomic_file

FINE_TYPE = GGMLQuantizationType.Q8_0
"""Fine enough for small changes; 4-bit types would round most of them away."""
FLOAT = GGMLQuantizationType.F32
KEPT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
"""Types finer than FINE_TYPE are kept."""
BLOCK = 32
"""Values of a row that FINE_TYPE stores together."""


@dataclass(frozen=True)
class Moved:
    """How far the changed tensors are from what they were, in parts of their size (root mean square): what was
    learned, and what the type of the file rounds away."""

    learned: float
    rounded: float


def rewrite(
    tensors: Tensors,
    changed: Mapping[str, Callable[[], NDArray[np.float32]]],
    kv: Sequence[KeyValue],
    path: Path,
    on_bytes: Callable[[int, int], None],
    only: Collection[str] | None = None,
) -> Moved:
    """Writes the file of `tensors` to `path`, whole or not at all. changed: new values, by name. only: the tensors that
    are written; None: all."""
    header = tensors.header
    kept = [tensor for tensor in header.tensors if only is None or tensor.name in only]
    infos = placed([stored_as(tensor) if tensor.name in changed else tensor for tensor in kept], 0, header.alignment)
    start = build(kv, infos, header.alignment, header.version)
    total, done = len(start) + sum(info.nbytes for info in infos), len(start)
    squares = np.zeros(3)
    with opened(tensors.path) as source, atomic_file(path) as out:
        out.write(start)
        for old, new in zip(kept, infos, strict=True):
            if old.name in changed:
                before, after = tensors.load(old.name), changed[old.name]()
                written = _encoded(after, new.type)
                rounding = _decoded(written, new).reshape(after.shape) - after
                squares += [np.vdot(part, part) for part in (before, after - before, rounding)]
                out.write(written)
            else:
                out.writelines(chunks(source, header.data_offset + old.offset, old.nbytes))
            out.write(bytes(padded(new.nbytes, header.alignment) - new.nbytes))
            done += new.nbytes
            on_bytes(done, total)
    learned, rounded = np.sqrt(squares[1:] / max(squares[0], np.finfo(np.float64).tiny))
    return Moved(float(learned), float(rounded))


def stored_as(tensor: TensorInfo) -> TensorInfo:
    """How a changed tensor is stored."""
    if GGMLQuantizationType(tensor.type) in KEPT_TYPES:
        return tensor
    kind = FINE_TYPE if tensor.shape[0] % BLOCK == 0 else GGMLQuantizationType.F16
    return replace(tensor, type=int(kind), nbytes=tensor_bytes(tensor.name, tensor.shape, int(kind)))


def rounded(values: NDArray[np.float32], tensor: TensorInfo) -> NDArray[np.float32]:
    """The new values of a tensor as a file will hold them."""
    info = stored_as(tensor)
    return np.array(_decoded(_encoded(values, info.type), info)).reshape(values.shape)


def _encoded(values: NDArray[np.float32], kind: int) -> bytes:
    if kind == FLOAT:
        return values.astype("<f4").tobytes()
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return native.quantize_rows(GGMLQuantizationType(kind).name.lower(), rows)


def _decoded(written: bytes, info: TensorInfo) -> NDArray[np.float32]:
    kind = GGMLQuantizationType(info.type)
    rows = np.frombuffer(written, np.uint8).reshape(int(np.prod(info.shape[1:])), -1)
    values = dequantize(rows if kind not in KEPT_TYPES else rows.view("<f4" if kind == FLOAT else "<f2"), kind)
    return np.asarray(values, dtype=np.float32)
