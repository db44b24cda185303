"""Whether the torch layers compute what the engine computes: checked before anything is trained.

The engine multiplies quantized matrices with activations rounded to 8 bits, torch does not. On a small model that alone
decides between practically tied tokens in two of a hundred places, and moves a layer's output by 0.02 of what it adds.
With the same weights in F16 nothing is rounded, and both agree (docs/measurements/joint.md). So the tolerance depends
on the types in the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli import native
from medusa_cli.support.errors import MedusaError

from .layers import TopLayers, rms_norm
from .shape import BaseTensors
from .states import as_stored

TOKENS = 2000
LEAST_AGREEMENT = 0.99
LAYER_TOKENS = 128
"""Tokens of the text on which layers are compared one by one."""
BLOCK = 256


@dataclass(frozen=True)
class Tolerance:
    """tie: logits this close count as equal. layer: a layer's error at most rows, relative to what the layer adds."""

    tie: float
    layer: float


ROUNDED = Tolerance(tie=0.1, layer=0.05)
"""A logit of the demo is off by 0.06 (standard deviation, eight layers), so the difference of two by 0.09."""
EXACT = Tolerance(tie=0.02, layer=0.02)
"""F32 and F16 (keys and values are F16 in the engine, whatever the weights)."""


def tolerance(tensors: BaseTensors) -> Tolerance:
    """The tolerance for the types of the file's matrices."""
    types = {tensor.type for tensor in tensors.header.tensors if len(tensor.shape) > 1}
    return EXACT if types <= {GGMLQuantizationType.F32, GGMLQuantizationType.F16} else ROUNDED


@dataclass(frozen=True)
class Parity:
    """agreement: share of `tokens` tokens after which the engine's likeliest token is torch's, ties aside."""

    tokens: int
    agreement: float


@torch.no_grad()
def check(
    model: native.Model,
    layers: TopLayers,
    output: Tensor,
    texts: Sequence[Sequence[int]],
    threads: int,
    allowed: Tolerance,
) -> Parity:
    """MedusaError, naming the layer, if torch and the engine differ on `texts`. output [V, h]: all rows."""
    for number, error in layer_errors(model, layers, texts[0][:LAYER_TOKENS], threads):
        if not error <= allowed.layer:
            raise MedusaError(
                f"{model.path}: layer {number} gives different results in torch and in the engine "
                f"(error {error:.2f} of what it adds): it cannot be trained jointly"
            )
    texts = first_tokens(texts, TOKENS)
    longest, below = max(map(len, texts)), [layers.first - 1] if layers.first else []
    reader = native.StatesReader(model, longest, tap_layers=below, outputs=True, n_threads=threads)
    same = 0
    for text in texts:
        states = reader.read(text)
        entered = entering(layers, text, states.after_layers)
        same += agreeing(layers(entered.to(output.device), [len(text)]), output, states.best, allowed.tie)
    total = sum(map(len, texts))
    if same < LEAST_AGREEMENT * total:
        raise MedusaError(
            f"{model.path}: torch and the engine agree on {same / total:.1%} of {total} tokens, "
            f"{LEAST_AGREEMENT:.0%} are needed, although no layer alone differs: it cannot be trained jointly"
        )
    return Parity(total, same / total)


def entering(layers: TopLayers, text: Sequence[int], after_layer: NDArray[np.float32] | None) -> Tensor:
    """[T, h]: what `layers` read at `text`, given the engine's states after the layer below, if there is one."""
    return layers.embedded(text) if after_layer is None else torch.from_numpy(as_stored(after_layer)).float()


@torch.no_grad()
def layer_errors(
    model: native.Model, layers: TopLayers, text: Sequence[int], threads: int
) -> Iterator[tuple[int, float]]:
    """(number, error) of each layer fed with the engine's states, relative to what it adds; lazily, from the bottom up.

    The last layer is judged after the final norm. Medians over rows, since a text's first row is often hundreds of
    times larger.
    """
    device = layers.output_norm.device
    rotations = layers.rotations([len(text)], device)

    def after(number: int) -> Tensor:
        states = native.StatesReader(model, len(text), tap_layers=[number], n_threads=threads).read(text).after_layers
        assert states is not None
        return torch.from_numpy(states).to(device)

    entered = after(layers.first - 1) if layers.first else layers.embedded(text).to(device)
    for layer in layers.layers[:-1]:
        left = after(layer.number)
        made = layer(entered, [len(text)], rotations[layer.of.rope])
        yield layer.number, _error(made, left, left - entered)
        entered = left
    last = layers.layers[-1]
    normed = native.StatesReader(model, len(text), outputs=True, n_threads=threads).read(text).post_norm
    assert normed is not None
    made = rms_norm(last(entered, [len(text)], rotations[last.of.rope]), layers.output_norm, layers.shape.eps)
    expected = torch.from_numpy(normed).to(device)
    yield last.number, _error(made, expected, expected)


def _error(made: Tensor, expected: Tensor, scale: Tensor) -> float:
    """All are [T, h]."""
    return float(((made - expected).norm(dim=1) / scale.norm(dim=1)).median())


def first_tokens(texts: Sequence[Sequence[int]], count: int) -> list[Sequence[int]]:
    """The first texts, up to `count` tokens of them."""
    before = itertools.accumulate(map(len, texts), initial=0)
    return [text[: count - at] for text, at in zip(texts, before, strict=False) if at < count]


def agreeing(states: Tensor, output: Tensor, best: Sequence[int], tie: float) -> int:
    """After how many of the states [T, h] no logit is more than `tie` above that of `best`."""
    tokens = torch.tensor(best, device=output.device)
    count = 0
    for part, wanted in zip(states.split(BLOCK), tokens.split(BLOCK), strict=True):
        logits = part @ output.T
        count += int((logits.max(dim=1).values - logits.gather(1, wanted[:, None])[:, 0] <= tie).sum())
    return count
