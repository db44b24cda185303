"""Heads of a file as the beginning of a training: those of a fine-tune's base, or of another quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.converters.gguf.header import Header, read_header
from medusa_cli.converters.heads import schema
from medusa_cli.support.errors import MedusaError

from .layers import Heads, HeadShape


class _File:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header = read_header(path)[0]
        self._tensors = {tensor.name: tensor for tensor in self.header.tensors}

    def load(self, name: str, shape: torch.Size) -> NDArray[np.float32]:
        """In torch order. MedusaError if there is none of that shape that can be decoded."""
        tensor = self._tensors.get(name)
        if tensor is None or tensor.shape[::-1] != tuple(shape):
            raise MedusaError(f"start: {self.path} has no {name} of {' x '.join(map(str, shape))} numbers")
        data = np.memmap(self.path, np.uint8, "r", self.header.data_offset + tensor.offset, (tensor.nbytes,))
        rows = np.array(data).reshape(int(np.prod(tensor.shape[1:], dtype=np.int64)), -1)
        try:
            values = dequantize(rows, GGMLQuantizationType(tensor.type))
        except NotImplementedError as error:
            raise MedusaError(f"start: {self.path}: {name} has a type that cannot be decoded") from error
        values = np.asarray(values, np.float32).reshape(shape)
        if not np.isfinite(values).all():
            raise MedusaError(f"start: {self.path}: {name} holds values that are not finite")
        return values

    def linear(self, name: str, shape: torch.Size) -> NDArray[np.float32]:
        """The same; a bias that is missing is zero."""
        is_missing = name.endswith(".bias") and name not in self._tensors
        return np.zeros(shape, np.float32) if is_missing else self.load(name, shape)


def weights_of(path: Path, heads: Heads) -> dict[str, Tensor]:
    """The weights in a heads file, or a single file with its base, in the places of `heads`.

    MedusaError, one line, if it holds other heads.
    """
    file, shape = _File(path), heads.shape
    _check(file, shape)
    found: dict[str, Tensor] = {}
    for name, value in heads.state_dict().items():
        found[name] = torch.from_numpy(_part(file, name, value.shape))
    return found


def _check(file: _File, shape: HeadShape) -> None:
    said = file.header.metadata()
    if said.get(schema.VERSION_KEY) != schema.VERSION:
        raise MedusaError(f"start: {file.path} is not a file of draft heads")
    there = (said.get(schema.KIND_KEY), said.get(schema.HEAD_COUNT_KEY), said.get(schema.BLOCK_COUNT_KEY))
    wanted = (shape.kind, shape.count, 1 if shape.kind == schema.RECURRENT else shape.blocks)
    if there != wanted:
        described = "{1} {0} heads of {2} blocks"
        raise MedusaError(f"start: {file.path} holds {described.format(*there)}, not {described.format(*wanted)}")


def _part(file: _File, name: str, shape: torch.Size) -> NDArray[np.float32]:
    """The value of one of the heads' parameters."""
    if 0 in shape:
        return np.zeros(shape, np.float32)
    kind, _, rest = name.partition(".")
    if kind == "cell":
        return file.load(schema.cell(rest), shape)
    if kind == "prefix":
        return file.load(schema.prefix(rest), shape)
    if kind == "outputs":
        raise MedusaError("start: heads with output matrices of their own begin with the model's: leave out lm_head")
    if kind == "first":  # a residual above a block
        return _grounded(file, int(rest), "weight", torch.Size((shape[0] // 2, *shape[1:])))
    if kind == "first_bias":
        return np.stack([_grounded(file, head, "bias", torch.Size((shape[1] // 2,))) for head in range(shape[0])])
    part: schema.Part = "weight" if kind == "weight" else "bias"
    at = 1 if any(tensor.name == schema.residual(0, "weight") for tensor in file.header.tensors) else 0
    names = [[schema.block(head, j + at, part) for head in range(shape[1])] for j in range(shape[0])]
    values = [file.linear(one, shape[2:]) for row in names for one in row]
    return np.stack(values).reshape(shape)


def _grounded(file: _File, head: int, part: schema.Part, shape: torch.Size) -> NDArray[np.float32]:
    names = (schema.residual(head, part), schema.block(head, 0, part))
    return np.concatenate([file.linear(name, shape) for name in names])
