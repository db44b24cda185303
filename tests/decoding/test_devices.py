"""What kind of device a model runs on, and the trees that go with it."""

from __future__ import annotations

import pytest

from medusa_cli.decoding import devices, trees
from medusa_cli.decoding.devices import RULES, DeviceKind


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        ("CPU", DeviceKind.cpu),
        ("CUDA", DeviceKind.gpu),
        ("ROCm", DeviceKind.gpu),
        ("Vulkan", DeviceKind.gpu),
        ("SYCL", DeviceKind.gpu),
        ("PRETENDED", DeviceKind.gpu),
        ("MTL", DeviceKind.metal),
        ("Metal", DeviceKind.metal),
    ],
)
def test_the_backend_tells_the_kind(backend: str, kind: DeviceKind) -> None:
    assert devices.kind_of(backend) is kind


def test_the_sizes_that_are_weighed() -> None:
    assert {kind: rules.sizes for kind, rules in RULES.items()} == {
        DeviceKind.cpu: (*range(1, 17), 24, 32, 48, 64),
        DeviceKind.gpu: (1, 2, 4, 8, 16, 32, 64),
        DeviceKind.metal: (1, 2, 4, 32),
    }


@pytest.mark.parametrize("kind", DeviceKind)
def test_the_rules_of_a_kind_fit_together(kind: DeviceKind) -> None:
    rules = RULES[kind]
    assert rules.sizes[0] == 1
    assert list(rules.sizes) == sorted(set(rules.sizes))
    assert set(rules.probes) <= set(rules.sizes)
    assert rules.built_in in trees.built_in()
    assert rules.stored_nodes <= trees.MAX_NODES
    assert rules.tile is None or rules.tile.last in rules.sizes
