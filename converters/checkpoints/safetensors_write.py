"""Writes .safetensors files, one tensor in memory at a time: the safetensors library wants all of them at once."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from ..files import atomic_file
from .safetensors_file import STORED, StoredTensor

ALIGNMENT = 8


@dataclass(frozen=True)
class TensorToWrite(StoredTensor):
    """dtype: F16, F32 or an integer one; load: the values."""

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
