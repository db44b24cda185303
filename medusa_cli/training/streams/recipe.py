"""How streams are trained: the numbers found best so far, in one place. Imports nothing but names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from ..backbone.recipe import Strategy
from ..heads.recipe import Kind

DraftKind = Literal[Kind, "streams"]
"""Everything that `medusa train` makes."""
DRAFT_KINDS: tuple[DraftKind, ...] = get_args(DraftKind)
STREAMS: Literal["streams"] = "streams"
DEFAULT_LAYERS = 4
"""So many layers draft, from the top."""


@dataclass(frozen=True)
class SharedTask:
    """What the base learns beside its streams. distils: its own distribution (KL), else the text's tokens (cross
    entropy). weight: of the streams' loss beside that (alpha_j / alpha_0)."""

    distils: bool
    weight: float


@dataclass(frozen=True)
class StreamsRecipe:
    """rank, alpha: of the adapters (LoRA); rank 0: none. shared: base and streams learn together, with one set of
    adapters for both; None: the base stays as it is. root: streams see the root's token embedding. rate: highest
    learning rate of the adapters; that of stream embeddings and root_scale is vectors_rate times as high. batch: answer
    positions per step, about. warmup: steps in which the rates rise."""

    rank: int = 32
    alpha: float = 32.0
    root: bool = True
    rate: float = 2e-3
    vectors_rate: float = 20.0
    batch: int = 128
    warmup: int = 20
    shared: SharedTask | None = None

    @property
    def bare(self) -> StreamsRecipe:
        """Of streams through layers that adapters were merged into."""
        return replace(self, rank=0, shared=None)


RECIPE = StreamsRecipe()
SHARED_RECIPES: dict[Strategy, StreamsRecipe] = {
    "distill": replace(RECIPE, rate=1e-3, shared=SharedTask(distils=True, weight=0.1)),
    "truth": replace(RECIPE, rate=1e-3, shared=SharedTask(distils=False, weight=0.1)),
}
"""By --joint-strategy. The weight is the paper's."""
SHARED_RESULT_SHARE = 0.15
"""Of the time of a shared training, for writing and measuring the new model."""
EVALUATIONS = 8
"""How often a run measures held-out tokens per step: each costs what many steps cost."""
EVALUATION_SHARE = 0.1
"""Of the positions trained on, that evaluations may read in all."""
MOST_EVALUATED = 4096
"""Held-out positions per evaluation, at most."""
