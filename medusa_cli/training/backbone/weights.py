"""Tensors of a base model's file, dequantized one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from medusa_cli.converters.gguf.header import TensorInfo, read_header
from medusa_cli.support.errors import MedusaError


class BaseTensors:
    """The tensors of a GGUF by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header, _ = read_header(path)
        self.tensors = {tensor.name: tensor for tensor in self.header.tensors}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def load(self, name: str) -> NDArray[np.float32]:
        """In torch order: [rows, columns], or [size]. MedusaError where its type cannot be decoded."""
        tensor = self.tensors[name]
        raw = np.memmap(self.path, np.uint8, "r", self.header.data_offset + tensor.offset, (tensor.nbytes,))
        rows = int(np.prod(tensor.shape[1:], dtype=np.int64))
        return decode(self.path, tensor, np.array(raw).reshape(rows, -1)).reshape(tensor.shape[::-1])


def decode(path: Path, tensor: TensorInfo, rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[rows, columns] of rows as they are stored."""
    try:
        values = dequantize(rows, GGMLQuantizationType(tensor.type))
    except NotImplementedError as error:
        raise MedusaError(f"{path}: {tensor.name} has a type that cannot be decoded ({error})") from error
    return np.asarray(values, dtype=np.float32)
