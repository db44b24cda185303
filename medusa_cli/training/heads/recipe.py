"""How each kind of heads is trained: the numbers found best so far, in one place. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["medusa", "hydra", "hydra++"]
Objective = Literal["truth", "teacher"]
PrefixSight = Literal["none", "answer", "context"]
Outputs = Literal["base", "own"]
KINDS: tuple[Kind, ...] = get_args(Kind)
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
PREFIX_SIGHTS: tuple[PrefixSight, ...] = get_args(PrefixSight)
OUTPUTS: tuple[Outputs, ...] = get_args(Outputs)
DEFAULT_KIND: Kind = "hydra"
DEFAULT_OBJECTIVE: Objective = "teacher"
TEACHER_TOP = 32
"""How many of the base's likeliest tokens are kept for each position."""
WHOLE = 0
"""As Recipe.teacher_top: all of them, computed anew for each batch."""


@dataclass(frozen=True)
class Recipe:
    """blocks: residual blocks of each head. rate: highest learning rate. noise: Hydra's alpha; the hidden states get
    uniform noise (noise.py), the embeddings of drafted tokens that of embedding_noise. decay: each step takes the
    weights, by this times the learning rate, back towards those of fresh heads, which pass the hidden state on. batch:
    rows per step on a CPU.

    prefix: what the attention layer before the heads sees, "none" without one. lm_head: the base's output rows, frozen,
    or a matrix of each head's own that starts from them (Medusa 2.1.1). teacher_top: tokens of the teacher's
    distribution, WHOLE: all.
    """

    blocks: int
    rate: float
    noise: float
    decay: float
    batch: int
    prefix: PrefixSight = "none"
    lm_head: Outputs = "base"
    embedding_noise: float = 0.0
    teacher_top: int = TEACHER_TOP


RECIPES = {
    "medusa": Recipe(blocks=1, rate=1e-3, noise=0.0, decay=0.01, batch=512),
    "hydra": Recipe(blocks=2, rate=1e-3, noise=0.0, decay=0.5, batch=512),
    "hydra++": Recipe(blocks=4, rate=1e-3, noise=0.0, decay=0.5, batch=1024, prefix="context"),
}
GPU_BATCH = 4096
"""Rows per step on a GPU, where a step's fixed costs count."""
WARMUP_STEPS = 100
EVALUATIONS = 16
"""How often a run measures held-out tokens per step, at even distances."""
PATIENCE = 5
"""So many evaluations in a row without a new best end a run."""
TEACHER_BYTES = 6
"""For each position and token: 4 of the token, 2 of its probability."""
