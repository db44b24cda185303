"""How backbone and heads are trained together: the numbers, in one place (Medusa 2.2.2, 2.3.2). Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Strategy = Literal["distill", "truth"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
DEFAULT_STRATEGY: Strategy = "distill"
DEFAULT_LAYERS = 8
"""So many layers get adapters, from the top."""


@dataclass(frozen=True)
class JointRecipe:
    """distils: the backbone learns the base's distribution (KL, all tokens), else the text's tokens (cross entropy).

    heads_weight: highest weight of the heads' loss, which rises to it like a sine. rate: highest learning rate of the
    adapters; that of the heads is heads_rate times as high. rank, alpha, dropout: of the adapters (LoRA). batch: answer
    tokens per step, about. warmup: steps in which the rates rise.
    """

    distils: bool
    heads_weight: float
    rate: float
    heads_rate: float = 4.0
    rank: int = 32
    alpha: float = 16.0
    dropout: float = 0.05
    batch: int = 384
    warmup: int = 20


RECIPES: dict[Strategy, JointRecipe] = {
    "distill": JointRecipe(distils=True, heads_weight=0.01, rate=1e-4),
    "truth": JointRecipe(distils=False, heads_weight=0.2, rate=5e-4),
}
"""distill: self-distillation, the default. truth: for text that is worth learning."""
TEXT_SHARE = 0.6
"""Share of the time for text and warm heads; the rest is for both together."""
RESULT_SHARE = 0.15
"""Of that rest, for writing and measuring the result."""
EPOCHS = 2
"""With a fixed number of tokens."""
MOST_EPOCHS = 4.0
LEAST_STEPS = 4
