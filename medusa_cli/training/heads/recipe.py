"""How each kind of heads is trained: the numbers found best so far, in one place. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["medusa", "hydra", "hydra++"]
Objective = Literal["truth", "teacher"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
DEFAULT_KIND: Kind = "hydra"
DEFAULT_OBJECTIVE: Objective = "teacher"


@dataclass(frozen=True)
class Recipe:
    """blocks: residual blocks of each head. rate: highest learning rate. noise: Hydra's alpha; the hidden states get
    uniform noise of up to alpha / sqrt(hidden size) in each place. decay: each step takes the weights, by this
    times the learning rate, back towards those of fresh heads, which pass the hidden state on. batch: rows per step
    on a CPU."""

    blocks: int
    rate: float
    noise: float
    decay: float
    batch: int


RECIPES = {
    "medusa": Recipe(blocks=1, rate=1e-3, noise=0.0, decay=0.01, batch=512),
    "hydra": Recipe(blocks=2, rate=1e-3, noise=0.0, decay=0.5, batch=512),
    "hydra++": Recipe(blocks=4, rate=1e-3, noise=0.0, decay=0.5, batch=1024),
}
GPU_BATCH = 4096
"""Rows per step on a GPU, where a step's fixed costs count."""
WARMUP_STEPS = 100
EVALUATIONS = 16
"""How often a run measures held-out tokens per step, at even distances."""
PATIENCE = 5
"""So many evaluations in a row without a new best end a run."""
TEACHER_TOP = 32
"""How many of the base's likeliest tokens are kept for each position."""
TEACHER_BYTES = TEACHER_TOP * 6
"""For each position: 4 of the token, 2 of its probability."""
