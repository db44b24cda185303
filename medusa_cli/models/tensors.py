"""The tensors of a GGUF by name, dequantized one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from medusa_cli.converters.gguf.header import read_header
from medusa_cli.support.errors import MedusaError


class Tensors:
    """Of one file, which is read anew for each tensor."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header, _ = read_header(path)
        self.tensors = {tensor.name: tensor for tensor in self.header.tensors}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def raw(self, name: str) -> NDArray[np.uint8]:
        """[rows, bytes] as stored."""
        tensor = self.tensors[name]
        data = np.memmap(self.path, np.uint8, "r", self.header.data_offset + tensor.offset, (tensor.nbytes,))
        return np.array(data).reshape(int(np.prod(tensor.shape[1:], dtype=np.int64)), -1)

    def load(self, name: str) -> NDArray[np.float32]:
        """In torch order: [rows, columns], or [size]. MedusaError if its type cannot be decoded."""
        tensor = self.tensors[name]
        try:
            values = dequantize(self.raw(name), GGMLQuantizationType(tensor.type))
        except NotImplementedError as error:
            raise MedusaError(f"{self.path}: {name} has a type that cannot be decoded ({error})") from error
        return np.asarray(values, dtype=np.float32).reshape(tensor.shape[::-1])
