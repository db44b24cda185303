"""Between torch heads and the file: what is written, and what a reader of the file will compute with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.converters.heads.draft_heads import Block, Prefix
from medusa_cli.converters.heads.schema import PREFIX_MATRICES, PREFIX_NORMS
from medusa_cli.converters.heads.write import rounded

from .layers import Heads
from .prefix import NORM_EPS, ROPE_BASE

WEIGHT_TYPE = "q8_0"
"""The engine's own kernels multiply it; F16 is slower and no better."""


@dataclass(frozen=True)
class HeadParts:
    """The trained fields of draft_heads.DraftHeads."""

    kind: str
    blocks: list[list[Block]]
    residuals: list[Block]
    prefix: Prefix | None
    outputs: list[NDArray[np.float32]]


def head_parts(heads: Heads) -> HeadParts:
    """The weights of `heads` as the file orders them; they may share memory with the heads."""
    count, hidden = heads.shape.count, heads.shape.hidden
    weight, bias = _array(heads.weight), _array(heads.bias)
    first = [_array(matrix) for matrix in heads.first]
    first_bias = _array(heads.first_bias)
    blocks = [
        [Block(matrix[hidden:], first_bias[k, hidden:]) for matrix in first[k : k + 1]]
        + [Block(weight[j, k], bias[j, k]) for j in range(len(weight))]
        for k in range(count)
    ]
    residuals = [Block(matrix[:hidden], first_bias[k, :hidden]) for k, matrix in enumerate(first)]
    outputs = [] if heads.outputs is None else list(_array(heads.outputs))
    return HeadParts(heads.shape.kind, blocks, residuals, _prefix(heads), outputs)


def round_weights(heads: Heads, weight_type: str = WEIGHT_TYPE) -> None:
    """To what the file will hold, so that measurements are those of the file."""
    with torch.no_grad():
        for name, parameter in heads.named_parameters():
            if "norm" in name or "bias" in name or parameter.numel() == 0:
                continue
            values = rounded(_array(parameter).reshape(-1, parameter.shape[-1]), weight_type)
            parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))


def _prefix(heads: Heads) -> Prefix | None:
    layer = heads.prefix
    if layer is None:
        return None
    tensors = {name: _array(getattr(layer, name)) for name in (*PREFIX_MATRICES, *PREFIX_NORMS)}
    return Prefix(tensors, layer.shape.heads, layer.shape.heads, ROPE_BASE, NORM_EPS, not heads.shape.sees_prompts)


def _array(values: Tensor) -> NDArray[np.float32]:
    return values.detach().cpu().numpy()
