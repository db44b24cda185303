"""What kind of device a model runs on, and what follows from it for trees. No engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from medusa_cli.decoding import trees


class DeviceKind(str, Enum):
    """Devices whose steps cost alike."""

    cpu = "cpu"
    gpu = "gpu"
    metal = "metal"


@dataclass(frozen=True)
class Tile:
    """Columns that a matrix product takes at once from `first` on: any number up to `last` costs the same.

    Below `first`, each further column costs about as much as the one before.
    """

    first: int
    last: int


@dataclass(frozen=True)
class TreeRules:
    """Trees on one kind of device; all sizes count the root.

    sizes: those that `tune` weighs, ascending. probes: those of them that tell what a step takes beyond its pass.
    built_in: the fixed tree if the heads store none. stored_nodes: most nodes of the one they store. rising: a larger
    tree never costs less, so sizes past hope need not be tried. tile: of matrix products, if it shows in the costs.
    """

    sizes: tuple[int, ...]
    probes: tuple[int, ...]
    built_in: str
    stored_nodes: int
    rising: bool
    tile: Tile | None = None


# What checking n tokens costs on devices, in passes over one. Estimates: none of it was measured with this engine.
#                                           2     4     8     16    64
#   RTX 3090, 8B Q4_0  (public figures)     1.12  1.33  2.14
#   RTX 4090, 8B Q4    (part estimated)                 1.15  1.3   1.55
#   H100               (estimated)                      1.2   1.3   1.6
#   M2 Ultra, 7B Q8_0  (public figures)     1.11  1.41  2.16
#   M4 Pro, products   (public figures)     1.81  3.8   7.4
# On NVIDIA GPUs, 16 to 64 nodes are nearly free, and kernels change at 5 and 9 columns, so a curve may fall there; any
# GPU but Apple's is treated as one of these. On Apple's, up to 8 columns cost nearly one pass each; from 9 on they come
# in tiles of 32: only 1, 2, 4 and 32 can be best. No dynamic tree starts from these figures: devices of one kind differ
# too much, and a wrong start is not unlearned. Costs are learned from the first step on.
RULES = {
    # On a CPU every node costs time, and a stored tree is as large as its training could measure.
    DeviceKind.cpu: TreeRules((*range(1, 17), 24, 32, 48, 64), (4, 12), trees.DEFAULT_CPU, 4, rising=True),
    DeviceKind.gpu: TreeRules((1, 2, 4, 8, 16, 32, 64), (4, 16), trees.DEFAULT_GPU, trees.MAX_NODES, rising=False),
    DeviceKind.metal: TreeRules((1, 2, 4, 32), (4, 32), trees.DEFAULT_CPU, 4, rising=False, tile=Tile(9, 32)),
}
METAL_BACKENDS = ("MTL", "Metal")
CPU_BACKEND = "CPU"


def kind_of(backend: str) -> DeviceKind:
    """backend: native.Model's, that of the device that holds the output matrix."""
    if backend == CPU_BACKEND:
        return DeviceKind.cpu
    return DeviceKind.metal if backend in METAL_BACKENDS else DeviceKind.gpu
