"""Heads of a file as the beginning of a training: those of a fine-tune's base, or of another quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.converters.heads import schema
from medusa_cli.models.tensors import Tensors
from medusa_cli.support.errors import MedusaError

from .layers import Heads, HeadShape


class _File(Tensors):
    def of(self, name: str, shape: torch.Size) -> NDArray[np.float32]:
        """In torch order. MedusaError if there is none of that shape, or not of finite numbers."""
        if not self.has(name) or self.tensors[name].shape[::-1] != tuple(shape):
            raise MedusaError(f"start: {self.path} has no {name} of {' x '.join(map(str, shape))} numbers")
        values = self.load(name)
        if not np.isfinite(values).all():
            raise MedusaError(f"start: {self.path}: {name} holds values that are not finite")
        return values

    def linear(self, name: str, shape: torch.Size) -> NDArray[np.float32]:
        """The same; a bias that is missing is zero."""
        is_missing = name.endswith(".bias") and not self.has(name)
        return np.zeros(shape, np.float32) if is_missing else self.of(name, shape)


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
        return file.of(schema.cell(rest), shape)
    if kind == "prefix":
        return file.of(schema.prefix(rest), shape)
    if kind == "outputs":
        raise MedusaError("start: heads with output matrices of their own begin with the model's: leave out lm_head")
    if kind == "first":  # a residual above a block
        return _grounded(file, int(rest), "weight", torch.Size((shape[0] // 2, *shape[1:])))
    if kind == "first_bias":
        return np.stack([_grounded(file, head, "bias", torch.Size((shape[1] // 2,))) for head in range(shape[0])])
    part: schema.Part = "weight" if kind == "weight" else "bias"
    at = 1 if file.has(schema.residual(0, "weight")) else 0
    names = [[schema.block(head, j + at, part) for head in range(shape[1])] for j in range(shape[0])]
    values = [file.linear(one, shape[2:]) for row in names for one in row]
    return np.stack(values).reshape(shape)


def _grounded(file: _File, head: int, part: schema.Part, shape: torch.Size) -> NDArray[np.float32]:
    names = (schema.residual(head, part), schema.block(head, 0, part))
    return np.concatenate([file.linear(name, shape) for name in names])
