"""How everything is trained: the numbers found best so far, in one place. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Kind = Literal["medusa", "hydra", "hydra++", "recurrent"]
Objective = Literal["truth", "teacher"]
PrefixSight = Literal["none", "answer", "context"]
Outputs = Literal["base", "own"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RECURRENT: Literal["recurrent"] = "recurrent"
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
PREFIX_SIGHTS: tuple[PrefixSight, ...] = get_args(PrefixSight)
OUTPUTS: tuple[Outputs, ...] = get_args(Outputs)
DEFAULT_KIND: Kind = "hydra"
DEFAULT_OBJECTIVE: Objective = "teacher"
TEACHER_TOP = 32
"""How many of the base's likeliest tokens are kept for each position."""
ALL = "all"
"""Stands in place of a number."""
WHOLE = 0
"""As a Recipe.teacher_top: all tokens, computed anew for each batch."""


DEPTH_WEIGHT = 0.8
"""Head k counts DEPTH_WEIGHT ** k in the loss (Medusa 2.2.1)."""
PATIENCE = 5
"""This many evaluations in a row without a new best end a run."""


@dataclass(frozen=True)
class Recipe:
    """blocks: residual blocks of each head. rate: highest learning rate. noise: Hydra's alpha; the hidden states get
    uniform noise (rows.noisy()), the embeddings of drafted tokens that of embedding_noise. decay: each step moves the
    weights, by this times the learning rate, back towards those of fresh heads, which pass the hidden state on. batch:
    rows per step on a CPU.

    prefix: what the attention layer before the heads sees, "none" without one. lm_head: the base's output rows, frozen,
    or each head's own matrix, starting from them (Medusa 2.1.1). teacher_top: tokens of the teacher's distribution,
    WHOLE: all. depth_weight: head k counts depth_weight ** k in the loss. epochs: rounds over the text, where a clock
    decides the most of them; None: as phases.planning says. patience: this many evaluations in a row without a better
    one end a run.

    An MTP layer is its own attention layer, which sees prompts; its head k is the layer after k tokens of its own.
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
    depth_weight: float = DEPTH_WEIGHT
    epochs: float | None = None
    patience: int = PATIENCE


MTP: Literal["mtp"] = "mtp"
"""No heads: the layer for further tokens that a model brings along."""
RECIPES = {
    "medusa": Recipe(blocks=1, rate=1e-3, noise=0.0, decay=0.01, batch=512),
    "hydra": Recipe(blocks=2, rate=1e-3, noise=0.0, decay=0.5, batch=512),
    "hydra++": Recipe(blocks=4, rate=1e-3, noise=0.0, decay=0.5, batch=1024, prefix="context"),
    "recurrent": Recipe(blocks=1, rate=1.5e-3, noise=0.0, decay=0.0, batch=512),
    MTP: Recipe(blocks=1, rate=1e-4, noise=0.0, decay=0.0, batch=512, prefix="context", depth_weight=0.6),
}
"""For mtp, the weights of the depths are FastMTP's (Cai et al. 2025)."""
START_RATE = 0.3
"""What a training that begins with given heads takes of the usual rate. The whole rate made good heads worse, for all
of a training of ten minutes."""
GPU_BATCH = 4096
"""Rows per step on a GPU, where a step's fixed costs count."""
WARMUP_STEPS = 100
"""Steps in which the heads' rate rises."""
EVALUATIONS = 16
"""How often a run measures held-out tokens per step, evenly spaced."""
TEACHER_BYTES = 6
"""Bytes per position and token: 4 for the token, 2 for its probability."""

# --- the model's top layers with its heads (Medusa 2.2.2, 2.3.2) -----------------------------------

Strategy = Literal["distill", "truth", "direct"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
DEFAULT_STRATEGY: Strategy = "distill"
Warmup = Literal["both", "heads", "sine", "none"]
WARMUPS: tuple[Warmup, ...] = get_args(Warmup)
JOINT_LAYERS = 8
"""How many layers, from the top, get adapters."""


@dataclass(frozen=True)
class JointRecipe:
    """distils: the backbone learns the base's distribution (KL, all tokens), else the text's tokens (cross entropy).

    heads_weight: highest weight of the heads' loss. warmup (2.2.2): "heads": they are trained alone first; "sine": the
    weight of their loss rises from zero, else it is the highest from the first step on; "both"; "none". rate: highest
    learning rate of the adapters; the heads' is heads_rate times as high. rank, alpha, dropout: of the adapters (LoRA).
    batch: answer tokens per step, about. rising: steps in which the rates rise.
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


JOINT_RECIPES: dict[Strategy, JointRecipe] = {
    "distill": JointRecipe(distils=True, heads_weight=0.01, rate=1e-4, heads_rate=1.5),
    "truth": JointRecipe(distils=False, heads_weight=0.05, rate=5e-4),
    "direct": JointRecipe(distils=False, heads_weight=0.2, rate=5e-4, warmup="none", heads_rate=1.0),
}
"""distill: self-distillation, the default; in runs of few steps, settled heads lose at the paper's four times the rate
(docs/measurements/joint.md). truth: for text that is worth learning; the paper's weight of 0.2 costs right answers
(same page). direct: with that weight, without any of the paper's precautions, its "direct fine-tuning", for
comparison."""


def joint_recipe_of(strategy: Strategy, **given: Any) -> JointRecipe:
    """The strategy's recipe, with its values replaced by those given that are not None."""
    return replace(JOINT_RECIPES[strategy], **{name: value for name, value in given.items() if value is not None})


TEXT_SHARE = 0.6
"""Share of the time for text and warm heads; the rest is for both together."""
RESULT_SHARE = 0.15
"""Share of the time left after text and heads, for writing and measuring the result."""
JOINT_EPOCHS = 2
"""Used with a fixed number of tokens."""
MOST_JOINT_EPOCHS = 4.0
LEAST_STEPS = 4
JOINT_EVALUATIONS = 8
"""How often a run measures held-out text, at most, evenly spaced."""
EVALUATED_STEPS = 25
"""At least this many steps lie between two of them."""


def joint_evaluations(steps: int) -> int:
    """How many evaluations a run of that many steps has."""
    return max(1, min(JOINT_EVALUATIONS, steps // EVALUATED_STEPS))


# --- streams ---------------------------------------------------------------------------------------

DraftKind = Literal[Kind, "streams", "mtp"]
"""Everything that `medusa train` makes."""
DRAFT_KINDS: tuple[DraftKind, ...] = get_args(DraftKind)
STREAMS: Literal["streams"] = "streams"
STREAMS_LAYERS = 4
"""How many layers, from the top, draft."""


@dataclass(frozen=True)
class SharedTask:
    """What the base learns besides its streams. distils: its own distribution (KL), else the text's tokens (cross
    entropy). weight: the streams' loss relative to that (alpha_j / alpha_0)."""

    distils: bool
    weight: float


@dataclass(frozen=True)
class StreamsRecipe:
    """rank, alpha: of the adapters (LoRA); rank 0: none. shared: base and streams learn together, with one set of
    adapters for both; None: the base stays as it is. root_rank: of the matrix through which streams see the root's
    token embedding; 0: they do not. rate: highest learning rate; for stream embeddings it is vectors_rate times as
    high. batch: answer positions per step, about. warmup: steps in which the rates rise. epochs: as in Recipe."""

    rank: int = 32
    alpha: float = 32.0
    root_rank: int = 64
    rate: float = 2e-3
    vectors_rate: float = 20.0
    batch: int = 128
    epochs: float | None = None
    warmup: int = 20
    shared: SharedTask | None = None

    @property
    def bare(self) -> StreamsRecipe:
        """The recipe for streams through layers that adapters were merged into."""
        return replace(self, rank=0, shared=None)


STREAMS_RECIPE = StreamsRecipe()
SHARED_RECIPES: dict[Strategy, StreamsRecipe] = {
    "distill": replace(STREAMS_RECIPE, rate=1e-3, shared=SharedTask(distils=True, weight=0.1)),
    "truth": replace(STREAMS_RECIPE, rate=1e-3, shared=SharedTask(distils=False, weight=0.1)),
}
"""By joint_strategy. The weight is the paper's."""
SHARED_RESULT_SHARE = 0.15
"""Share of a shared training's time for writing and measuring the new model."""
STREAMS_EVALUATIONS = 8
"""How often a run measures held-out tokens per step: each time costs as much as many steps."""
MOST_STREAMS_EVALUATED = 4096
"""Held-out positions per evaluation, at most."""

# --- text ------------------------------------------------------------------------------------------

Answers = Literal["own", "given"]
ANSWERS: tuple[Answers, ...] = get_args(Answers)
DEFAULT_ANSWERS: Answers = "own"
LaterTurns = Literal["given", "self-written"]
LATER_TURNS: tuple[LaterTurns, ...] = get_args(LaterTurns)


@dataclass(frozen=True)
class TextRecipe:
    """longest_answer: tokens, at most half of the model's context. later_turns: the user's turns after the opening,
    from the prompts or written by the model, until a conversation has `turns` of them (Medusa 2.3.2). greedy: share of
    the answers written greedily, the setting speculation gains most from; the others are sampled."""

    longest_answer: int = 384
    later_turns: LaterTurns = "given"
    turns: int = 3
    greedy: float = 0.6

    @property
    def key(self) -> str:
        """Part of the name of a folder with such text; empty for the usual recipe."""
        return "" if self == TextRecipe() else f" {self}"
