"""How much of a model fits on its devices: an estimate, before anything is loaded.

llama.cpp has a helper that fits a model into memory, but only in its tools: the library that llama-cpp-python installs
does not export it, and it would load the file once more. Sizes are in bytes. Layers are counted as -ngl counts them:
the output matrix first, as one more layer, then the last layers before earlier ones.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_cli.support.errors import OptionError
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from medusa_cli import native

ALL_LAYERS = -1
"""The -ngl that means as many as fit."""
NO_DEVICE = "none"
"""llama.cpp's --device value for the CPU alone."""

CELL_STEP = 256
"""llama.cpp rounds contexts up to a multiple of this."""
BATCH = 512
"""Most tokens of one forward pass."""
OUTPUTS = 64
"""Rows of logits that a pass has room for: the nodes of a tree."""
SMALL_CACHE = "q8_0"
"""The cache type suggested if F16 does not fit: half the size, next to no loss."""
CACHE_BITS = {"f32": 32.0, "f16": 16.0, "bf16": 16.0, "q8_0": 8.5, "q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5,
              "iq4_nl": 4.5}  # fmt: skip
"""Bits per number, scales included."""

MARGIN_SHARE, MOST_MARGIN = 16, 1 << 30
"""A sixteenth of the free memory, at most 1 GiB, is left to the drivers' own buffers and to other programs."""

_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True)
class Shape:
    """What a model file says about the memory that the model takes.

    layers: weights of each layer. output: weights after the last one. heads: weights of draft heads. keys, values:
    numbers that each layer's cache holds per token. row: floats that a pass holds for each token of a batch.
    """

    layers: tuple[int, ...]
    output: int
    heads: int
    keys: tuple[int, ...]
    values: tuple[int, ...]
    row: int
    vocabulary: int


@dataclass(frozen=True)
class Context:
    """Tokens of a context and the types of its cache.

    sequences: how many of that length, which do not see one another.
    """

    tokens: int
    type_k: str = "f16"
    type_v: str = "f16"
    sequences: int = 1


@dataclass(frozen=True)
class Device:
    """free: bytes; None if the device does not tell."""

    name: str
    free: int | None


def shape_of(file: native.GgufFile, heads: Sequence[native.GgufTensor] = ()) -> Shape:
    """heads: tensors of the draft heads that come along. Of a split model, only the first part is counted."""
    layers: dict[int, int] = {}
    output = embedding = 0
    for tensor in file.tensors:
        if (found := _LAYER.match(tensor.name)) is not None:
            layers[int(found[1])] = layers.get(int(found[1]), 0) + tensor.nbytes
        elif tensor.name == "token_embd.weight":
            embedding = tensor.nbytes
        elif tensor.name.startswith("output"):
            output += tensor.nbytes
    if not any(tensor.name == "output.weight" for tensor in file.tensors):
        output += embedding
    metadata = file.metadata
    architecture = metadata.get("general.architecture")

    def per_layer(key: str) -> list[int]:
        """One number for each layer, even if the file has one for all."""
        value = metadata.get(f"{architecture}.{key}", 0)
        found = value if isinstance(value, list) else [value] * len(layers)
        return [one if isinstance(one, int) else 0 for one in [*found, *[0] * len(layers)][: len(layers)]]

    width, attention = max(per_layer("embedding_length"), default=0), per_layer("attention.head_count")
    # If it does not say how many heads are cached, all are.
    cached = per_layer("attention.head_count_kv") if any(per_layer("attention.head_count_kv")) else attention
    keys, values = (
        max(per_layer(f"attention.{part}_length"), default=0) or width // max([1, *attention])
        for part in ("key", "value")
    )
    return Shape(
        layers=tuple(layers[index] for index in sorted(layers)),
        output=output,
        heads=sum(tensor.nbytes for tensor in heads),
        keys=tuple(keys * count for count in cached),
        values=tuple(values * count for count in cached),
        # The residual stream and its copies; gate, up and their product; queries, keys and values.
        row=4 * width
        + 3 * max(per_layer("feed_forward_length"), default=0)
        + max([0, *attention]) * keys
        + max([0, *cached]) * (keys + values),
        vocabulary=len(metadata.get("tokenizer.ggml.tokens", ())),
    )


def needed(shape: Shape, context: Context, count: int) -> int:
    """Bytes of `count` layers, their cache and a pass's working memory, on one device."""
    if count <= 0:
        return 0
    first = max(len(shape.layers) - (count - 1), 0)
    # Activations and the attention mask (F32, and F16 for the fused operator) of a batch, and rows of logits.
    computed = BATCH * (4 * shape.row + 6 * _cells(context)) + 4 * OUTPUTS * shape.vocabulary
    weights = shape.output + shape.heads + sum(shape.layers[first:])
    return weights + cache_bytes(shape, context, first) + computed


def cache_bytes(shape: Shape, context: Context, first: int = 0) -> int:
    """Bytes of the cache of all layers from `first` on."""
    bits = sum(
        keys * CACHE_BITS[context.type_k] + values * CACHE_BITS[context.type_v]
        for keys, values in zip(shape.keys[first:], shape.values[first:], strict=True)
    )
    return int(_cells(context) * context.sequences * bits / 8)


def _cells(context: Context) -> int:
    return -(-max(context.tokens, 1) // CELL_STEP) * CELL_STEP


def room(devices: Sequence[Device]) -> int:
    """Free memory of all devices, less the margins."""
    return sum(free - min(free // MARGIN_SHARE, MOST_MARGIN) for device in devices if (free := device.free) is not None)


def most_layers(shape: Shape, context: Context, devices: Sequence[Device]) -> int:
    """The largest -ngl that fits. llama.cpp splits layers by free memory; each device computes on its own."""
    most = len(shape.layers) + 1
    if any(device.free is None for device in devices):
        return most
    further = (len(devices) - 1) * needed(dataclasses.replace(shape, output=0, heads=0), context, 1)
    return max(n for n in range(most + 1) if needed(shape, context, n) + further * (n > 1) <= room(devices))


def fewer(count: int) -> list[int]:
    """What to try, in turn, when `count` layers did not load: down in quarters to the CPU alone."""
    return sorted({count * quarters // 4 for quarters in range(4)} - {count}, reverse=True)


def remedies(shape: Shape, context: Context, devices: Sequence[Device], count: int) -> list[str]:
    """Options, each of which alone makes `count` layers fit by the estimate, or fewer layers; slots stand for names."""
    most = most_layers(shape, context, devices)
    if most >= count:  # the estimate was wrong
        return [f"{{n_gpu_layers}} {count * 3 // 4}"]
    fits = [f"{{n_gpu_layers}} {most}"]
    smaller = (
        tokens
        for tokens in range((context.tokens - 1) // CELL_STEP * CELL_STEP, 0, -CELL_STEP)
        if most_layers(shape, dataclasses.replace(context, tokens=tokens), devices) >= count
    )
    if (tokens := next(smaller, None)) is not None:
        fits.append(f"{{ctx_size}} {tokens}")
    small = Context(context.tokens, SMALL_CACHE, SMALL_CACHE)
    if needed(shape, small, count) < needed(shape, context, count) and most_layers(shape, small, devices) >= count:
        fits.append(f"{{cache_type_k}} {SMALL_CACHE} {{cache_type_v}} {SMALL_CACHE}")
    return fits


def remark(count: int, most: int, devices: Sequence[Device]) -> str:
    """What to say if not all layers fit."""
    if count == 0:
        return f"note: no layer fits on {described(devices)}: everything runs on the CPU"
    return (
        f"note: {count} of {most} layers fit on {described(devices)}, the output matrix counted as one; the CPU runs "
        f"the rest (-c, -ctk {SMALL_CACHE} -ctv {SMALL_CACHE} make room)"
    )


# --- devices ---------------------------------------------------------------------------------------


def device_names(given: str | None, known: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """The names in --device: None when it is not given, empty for none. known: native.system_info()["devices"].

    OptionError lists the devices there are.
    """
    if given is None:
        return None
    if given == NO_DEVICE:
        return []
    there = [str(device["name"]) for device in known if device["type"] != "cpu"]
    names = given.split(",")
    for name in names:
        if name not in there:
            choices = ", ".join([*there, NO_DEVICE])
            raise OptionError("{device}: there is no {name!r} here, but {choices}", name=name, choices=choices)
    return names


def used_devices(names: Sequence[str] | None, known: Sequence[Mapping[str, Any]]) -> list[Device]:
    """Where layers go: to the named devices, else, as in llama.cpp, to all GPUs, else to integrated ones."""
    kinds = ("gpu",) if any(device["type"] == "gpu" for device in known) else ("igpu",)
    return [
        Device(str(device["name"]), int(device["memory_free"]) if device["memory_total"] else None)
        for device in known
        if (device["type"] in kinds if names is None else device["name"] in names)
    ]


def described(devices: Sequence[Device]) -> str:
    """ "CUDA0 (7.5 GB free)"."""
    return ", ".join(
        device.name if device.free is None else f"{device.name} ({size(device.free)} free)" for device in devices
    )
