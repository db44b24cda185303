"""LoRA adapters of frozen layers: small matrices whose product is added to a weight (Hu et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layers import TopLayers
from .shape import MATRICES


class Adapters(nn.Module):
    """Of all matrices of `layers`. Fresh ones change nothing: b is zero."""

    def __init__(self, layers: TopLayers, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for layer in layers.layers:
            for part in MATRICES:
                rows, columns = layer.weights[f"{part}.weight"].shape
                name = _key(f"blk.{layer.number}.{part}")
                self.a[name] = nn.Parameter(torch.empty(rank, columns).uniform_(-1, 1) * (3 / columns) ** 0.5)
                self.b[name] = nn.Parameter(torch.zeros(rows, rank))

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def project(self, name: str, weight: Tensor, x: Tensor) -> Tensor:
        """layers.Project, with what is learned."""
        a, b = self.matrices(name)
        dropped = functional.dropout(x, self.dropout, self.training)
        return functional.linear(x, weight) + functional.linear(functional.linear(dropped, a), b) * self.scale

    def names(self) -> list[str]:
        """blk.{layer}.{part} of all matrices."""
        return [name.replace("/", ".") for name in self.a]

    def matrices(self, name: str) -> tuple[Tensor, Tensor]:
        """(a [rank, in], b [out, rank]): scale * b @ a is what is added to the weight."""
        return self.a[_key(name)], self.b[_key(name)]

    @torch.no_grad()
    def change(self, name: str) -> Tensor:
        """[out, in]: what is added to the weight."""
        a, b = self.matrices(name)
        return b @ a * self.scale


def _key(name: str) -> str:
    """Modules allow no dots."""
    return name.replace(".", "/")
