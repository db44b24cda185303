"""How the trees are found that `tune` weighs."""

from __future__ import annotations

from enum import Enum


class TreeMethod(str, Enum):
    """accuracies: the likeliest paths (Medusa 2.3.3). simulate: each next node by simulated decoding (Hydra 4)."""

    accuracies = "accuracies"
    simulate = "simulate"
