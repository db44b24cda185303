"""How backbone and heads are trained together: the numbers, in one place (Medusa 2.2.2, 2.3.2). Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

Strategy = Literal["distill", "truth", "direct"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
DEFAULT_STRATEGY: Strategy = "distill"
Warmup = Literal["both", "heads", "sine", "none"]
WARMUPS: tuple[Warmup, ...] = get_args(Warmup)
DEFAULT_LAYERS = 8
"""So many layers get adapters, from the top."""
ALL_LAYERS = "all"
"""What is said in place of their number."""


@dataclass(frozen=True)
class JointRecipe:
    """distils: the backbone learns the base's distribution (KL, all tokens), else the text's tokens (cross entropy).

    heads_weight: highest weight of the heads' loss. warmup (2.2.2): "heads": they are trained alone first; "sine": the
    weight of their loss rises from zero, else it is the highest from the first step on; "both"; "none". rate: highest
    learning rate of the adapters; that of the heads is heads_rate times as high. rank, alpha, dropout: of the adapters
    (LoRA). batch: answer tokens per step, about. rising: steps in which the rates rise.
    """

    distils: bool
    heads_weight: float
    rate: float
    warmup: Warmup = "both"
    heads_rate: float = 4.0
    rank: int = 32
    alpha: float = 16.0
    dropout: float = 0.05
    batch: int = 384
    rising: int = 20

    @property
    def heads_first(self) -> bool:
        return self.warmup in ("both", "heads")

    @property
    def sine(self) -> bool:
        return self.warmup in ("both", "sine")


RECIPES: dict[Strategy, JointRecipe] = {
    "distill": JointRecipe(distils=True, heads_weight=0.01, rate=1e-4, heads_rate=1.5),
    "truth": JointRecipe(distils=False, heads_weight=0.2, rate=5e-4),
    "direct": JointRecipe(distils=False, heads_weight=0.2, rate=5e-4, warmup="none", heads_rate=1.0),
}
"""distill: self-distillation, the default; in runs of few steps, heads that have settled lose at the paper's four times
the rate (docs/measurements/joint.md). truth: for text that is worth learning. direct: the same without any of the
paper's precautions, its "direct fine-tuning", to compare with."""


def recipe_of(
    strategy: Strategy,
    warmup: Warmup | None = None,
    rate: float | None = None,
    heads_rate: float | None = None,
    heads_weight: float | None = None,
) -> JointRecipe:
    """That of the strategy, with what is given in place of its own."""
    given = {"warmup": warmup, "rate": rate, "heads_rate": heads_rate, "heads_weight": heads_weight}
    changed = {name: value for name, value in given.items() if value is not None}
    return replace(RECIPES[strategy], **changed)  # type: ignore[arg-type]


TEXT_SHARE = 0.6
"""Share of the time for text and warm heads; the rest is for both together."""
RESULT_SHARE = 0.15
"""Of the time that is left after text and heads, for writing and measuring the result."""
EPOCHS = 2
"""With a fixed number of tokens."""
MOST_EPOCHS = 4.0
LEAST_STEPS = 4
EVALUATIONS = 8
"""How often a run measures held-out text, at most, at even distances."""
EVALUATED_STEPS = 25
"""At least so many steps lie between two of them."""


def evaluations(steps: int) -> int:
    """How many a run of so many steps has."""
    return max(1, min(EVALUATIONS, steps // EVALUATED_STEPS))
