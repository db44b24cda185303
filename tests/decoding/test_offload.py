"""How many layers fit: the pure plan, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixtures import BASE_FF, BASE_HIDDEN, BASE_LAYERS, BASE_VOCAB, tiny_base

from medusa_cli import native
from medusa_cli.decoding import offload
from medusa_cli.decoding.offload import Context, Device, Shape
from medusa_cli.support.errors import MedusaError, OptionError

GIB = 1 << 30
MIB = 1 << 20
# As of an 8B model in Q4: 32 layers, 8 of 32 heads cached, a vocabulary of 128k.
SHAPE = Shape(
    layers=(128 * MIB,) * 32, output=410 * MIB, heads=100 * MIB, keys=(1024,) * 32, values=(1024,) * 32,
    row=4 * 4096 + 3 * 14336 + 6144, vocabulary=128256,
)  # fmt: skip
KNOWN = [
    {"name": "CUDA0", "type": "gpu", "memory_free": 3, "memory_total": 4},
    {"name": "Vulkan1", "type": "igpu", "memory_free": 0, "memory_total": 0},
    {"name": "BLAS", "type": "accel", "memory_free": 0, "memory_total": 0},
    {"name": "CPU", "type": "cpu", "memory_free": 9, "memory_total": 9},
]


@pytest.mark.parametrize(
    ("free", "context", "layers"),
    [
        ([24 * GIB], Context(4096), 33),
        ([6 * GIB], Context(4096), 33),
        ([4 * GIB], Context(4096), 22),
        ([4 * GIB], Context(512), 25),
        ([4 * GIB], Context(512, "q8_0", "q8_0"), 25),
        ([4 * GIB], Context(16384), 17),
        ([4 * GIB], Context(16384, "q8_0", "q8_0"), 20),
        ([1 * GIB], Context(4096), 2),
        ([700 * MIB], Context(4096), 0),
        ([3 * GIB, 3 * GIB], Context(4096), 33),
        ([2 * GIB, 2 * GIB], Context(4096), 21),
        ([0], Context(4096), 0),
        ([None], Context(4096), 33),
    ],
)
def test_the_largest_offload_that_fits(free: list[int | None], context: Context, layers: int) -> None:
    devices = [Device(f"CUDA{n}", bytes_) for n, bytes_ in enumerate(free)]
    assert offload.most_layers(SHAPE, context, devices) == layers


def test_it_needs_what_fits_and_a_margin_is_left() -> None:
    for free in (1 * GIB, 3 * GIB, 5 * GIB):
        devices = [Device("CUDA0", free)]
        layers = offload.most_layers(SHAPE, Context(4096), devices)
        assert offload.needed(SHAPE, Context(4096), layers) <= offload.room(devices) < free
        assert offload.needed(SHAPE, Context(4096), layers + 1) > offload.room(devices)
    assert offload.needed(SHAPE, Context(4096), 0) == 0
    assert offload.needed(SHAPE, Context(4096), 33) == offload.needed(SHAPE, Context(4000), 99)
    assert offload.room([Device("CUDA0", 80 * GIB)]) == 79 * GIB


@pytest.mark.parametrize(("count", "then"), [(33, [24, 16, 8, 0]), (2, [1, 0]), (1, [0]), (0, [])])
def test_fewer_layers_where_the_estimate_was_too_much(count: int, then: list[int]) -> None:
    assert offload.fewer(count) == then


@pytest.mark.parametrize(
    ("free", "context", "count", "found"),
    [
        (4 * GIB, Context(4096), 33, ["-ngl 22"]),
        (4 * GIB, Context(16384), 22, ["-ngl 17", "-c 5632"]),
        (4 * GIB, Context(16384), 20, ["-ngl 17", "-c 9472", "-ctk q8_0 -ctv q8_0"]),
        (4 * GIB, Context(16384, "q8_0", "q8_0"), 22, ["-ngl 20", "-c 10240"]),
        (24 * GIB, Context(4096), 33, ["-ngl 24"]),
        (500 * MIB, Context(4096), 33, ["-ngl 0"]),
    ],
)
def test_what_would_fit(free: int, context: Context, count: int, found: list[str]) -> None:
    remedies = offload.remedies(SHAPE, context, [Device("CUDA0", free)], count)
    assert [str(OptionError(remedy)) for remedy in remedies] == found


def test_the_shape_of_a_file(tmp_path: Path) -> None:
    file = native.read_gguf(str(tiny_base(tmp_path / "base.gguf")))
    shape = offload.shape_of(file, file.tensors[:2])
    attention, forward = 4 * BASE_HIDDEN * BASE_HIDDEN, 3 * BASE_HIDDEN * BASE_FF
    assert shape.layers == ((attention + forward + 2 * BASE_HIDDEN) * 4,) * BASE_LAYERS
    assert shape.output == (BASE_VOCAB * BASE_HIDDEN + BASE_HIDDEN) * 4
    assert shape.heads == sum(tensor.nbytes for tensor in file.tensors[:2])
    assert shape.keys == shape.values == (BASE_HIDDEN,) * BASE_LAYERS
    assert (shape.row, shape.vocabulary) == (4 * BASE_HIDDEN + 3 * BASE_FF + 3 * BASE_HIDDEN, BASE_VOCAB)


@pytest.mark.parametrize(
    ("given", "names", "used"),
    [
        (None, None, ["CUDA0"]),
        ("none", [], []),
        ("Vulkan1", ["Vulkan1"], ["Vulkan1"]),
        ("Vulkan1,CUDA0", ["Vulkan1", "CUDA0"], ["CUDA0", "Vulkan1"]),
    ],
)
def test_devices_by_name(given: str | None, names: list[str] | None, used: list[str]) -> None:
    assert offload.device_names(given, KNOWN) == names
    assert [device.name for device in offload.used_devices(names, KNOWN)] == used


@pytest.mark.parametrize("given", ["cuda0", "CPU", "", "CUDA0,", "none,CUDA0"])
def test_a_wrong_device_names_those_that_there_are(given: str) -> None:
    with pytest.raises(MedusaError, match="CUDA0, Vulkan1, BLAS, none"):
        offload.device_names(given, KNOWN)


def test_integrated_devices_stand_in_for_gpus() -> None:
    known: list[dict[str, Any]] = [device for device in KNOWN if device["type"] != "gpu"]
    assert [device.name for device in offload.used_devices(None, known)] == ["Vulkan1"]
    assert offload.used_devices(None, known[-1:]) == []
