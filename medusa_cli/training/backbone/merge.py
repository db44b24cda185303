"""Adapters as files: merged into a base model's (adapted tensors are new, everything else is the same byte for byte),
or in their own GGUF, which llama.cpp applies to the base when it loads (`--lora`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.converters.files import chunks, opened
from medusa_cli.converters.gguf.header import (
    DEFAULT_ALIGNMENT,
    FLOAT32,
    STRING,
    TensorInfo,
    build,
    encode_kv,
    padded,
    placed,
    tensor_bytes,
)
from medusa_cli.support.atomic import atomic_file

from .layers import Adapters
from .shape import BaseTensors

MERGED_TYPE = GGMLQuantizationType.Q8_0
"""Fine enough for small changes; 4-bit types would round most of them away."""
FLOAT = GGMLQuantizationType.F32
KEPT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
"""Types finer than MERGED_TYPE are kept."""
NAME_KEY = "general.name"
NAME_ENDING = " (Medusa-2)"


@dataclass(frozen=True)
class Moved:
    """How far the adapted matrices are from what they were, in parts of their size (root mean square): what was
    learned, and what the type of the file rounds away."""

    learned: float
    rounded: float


def merge(
    tensors: BaseTensors,
    adapters: Adapters,
    name: str,
    path: Path,
    on_bytes: Callable[[int, int], None],
    ending: str = NAME_ENDING,
) -> Moved:
    """Writes the base in `tensors` with `adapters` merged to `path`, whole or not at all.

    It is called `name` with `ending`, so that nobody takes it for the base.
    """
    header = tensors.header
    adapted = {f"{name}.weight": name for name in adapters.names()}
    infos = placed([_info(tensor, tensor.name in adapted) for tensor in header.tensors], 0, header.alignment)
    renamed = encode_kv(NAME_KEY, STRING, name + ending)
    kv = [renamed if entry.key == NAME_KEY else entry for entry in header.kv]
    if all(entry.key != NAME_KEY for entry in kv):
        kv.append(renamed)
    start = build(kv, infos, header.alignment, header.version)
    total, done = len(start) + sum(info.nbytes for info in infos), len(start)
    squares = np.zeros(3)
    with opened(tensors.path) as source, atomic_file(path) as out:
        out.write(start)
        for old, new in zip(header.tensors, infos, strict=True):
            if old.name in adapted:
                weight, change = tensors.load(old.name), adapters.change(adapted[old.name]).cpu().numpy()
                written = _encoded(weight + change, new.type)
                rounding = _decoded(written, new) - (weight + change)
                squares += [np.vdot(part, part) for part in (weight, change, rounding)]
                out.write(written)
            else:
                out.writelines(chunks(source, header.data_offset + old.offset, old.nbytes))
            out.write(bytes(padded(new.nbytes, header.alignment) - new.nbytes))
            done += new.nbytes
            on_bytes(done, total)
    learned, rounded = np.sqrt(squares[1:] / squares[0])
    return Moved(float(learned), float(rounded))


def _info(tensor: TensorInfo, adapted: bool) -> TensorInfo:
    if not adapted or GGMLQuantizationType(tensor.type) in KEPT_TYPES:
        return tensor
    block = 32  # of MERGED_TYPE
    kind = MERGED_TYPE if tensor.shape[0] % block == 0 else GGMLQuantizationType.F16
    return replace(tensor, type=int(kind), nbytes=tensor_bytes(tensor.name, tensor.shape, int(kind)))


def _encoded(matrix: NDArray[np.float32], kind: int) -> bytes:
    if kind == GGMLQuantizationType.F32:
        return matrix.astype("<f4").tobytes()
    return native.quantize_rows(GGMLQuantizationType(kind).name.lower(), np.ascontiguousarray(matrix))


def _decoded(written: bytes, info: TensorInfo) -> NDArray[np.float32]:
    kind = GGMLQuantizationType(info.type)
    rows = np.frombuffer(written, np.uint8).reshape(info.shape[-1], -1)
    return dequantize(rows if kind not in KEPT_TYPES else rows.view("<f4" if kind == FLOAT else "<f2"), kind)


@contextlib.contextmanager
def adapter_file(adapters: Adapters, name: str, path: Path) -> Iterator[None]:
    """Writes `adapters` as a LoRA, in F32. It appears, whole, if the block ends without an error. name: the base's.

    MedusaError before the block begins, if it cannot be written.
    """
    matrices: list[tuple[str, NDArray[np.float32]]] = []
    for adapted in adapters.names():
        a, b = adapters.matrices(adapted)
        for part, values in (("lora_a", a), ("lora_b", b)):
            matrices.append((f"{adapted}.weight.{part}", values.detach().cpu().numpy().astype("<f4")))
    kind = int(GGMLQuantizationType.F32)
    tensors = [TensorInfo(tensor, matrix.shape[::-1], kind, 0, matrix.nbytes) for tensor, matrix in matrices]
    entries = [
        encode_kv("general.type", STRING, "adapter"),
        encode_kv("general.architecture", STRING, adapters.architecture),
        encode_kv("general.name", STRING, f"Medusa-2 of {name}"),
        encode_kv("adapter.type", STRING, "lora"),
        encode_kv("adapter.lora.alpha", FLOAT32, adapters.alpha),
    ]
    with atomic_file(path) as out:
        out.write(build(entries, placed(tensors, 0, DEFAULT_ALIGNMENT), DEFAULT_ALIGNMENT))
        for _, matrix in matrices:
            out.write(matrix.tobytes())
            out.write(bytes(padded(matrix.nbytes, DEFAULT_ALIGNMENT) - matrix.nbytes))
        out.flush()
        yield
