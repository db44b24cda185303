"""How a run's time is divided between writing text and training on it, and how many steps are trained."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch

from medusa_cli.support.files import recall, remember

from ..backbone.fit import JointPlan
from ..heads.fit import ASSUMED_CONTEXT, FitPlan, default_batch, endless_plan, measure_rate, rate_of
from ..heads.layers import HeadShape
from ..loop import steps_per_epoch
from ..mtp.fit import MtpFit
from ..mtp.layer import read_layer
from ..recipes import MTP, STREAMS
from ..streams import fit as streams_fit
from ..streams.fit import StreamsPlan
from ..text.dataset import Examples, Span
from . import Setup
from .layers import open_layers

EPOCHS = 4
"""Used with a fixed number of tokens: then a clock only decides the draft vocabulary's size, if none is given."""
TIMED_EPOCHS = 2.0
"""What a timed run aims at: more text teaches more than another round over the same."""
MAX_EPOCHS = 8.0
LEAST_SHARE, MOST_SHARE = 0.5, 0.85
"""Bounds on generation's share of the time."""
FIRST_TOKENS = 10_000.0
"""What the first round is for, as the model's own rate is not known yet. For a large round, a slow model would make up
questions for so long that no time is left to answer them."""
ASSUMED_VOCABULARY = 12288
"""Size of the draft vocabulary assumed in planning until the text tells."""
EVALUATION_COST = 0.5
"""Time for evaluating a position, relative to training on one."""
EVALUATION_SHARE = 0.1
MOST_EVALUATED = 8192
"""Held-out positions per evaluation: at most this, and in all EVALUATION_SHARE of the positions trained on."""

P = TypeVar("P", FitPlan, JointPlan, StreamsPlan)


@dataclass(frozen=True)
class Schedule:
    """tokens: of text, None if the budget decides. budget: seconds for everything, None if no clock decides.

    train_rate: positions per second.
    """

    tokens: int | None
    budget: float | None
    train_rate: float

    def tokens_left(self, tokens: int, seconds: float) -> float:
        """How many more tokens to generate after `tokens` in `seconds`; not positive if generation should end."""
        if self.tokens is not None or self.budget is None:
            return (self.tokens or 0) - tokens
        if not tokens or seconds <= 0:
            return FIRST_TOKENS if seconds < MOST_SHARE * self.budget else 0.0
        rate, cost = tokens / seconds, TIMED_EPOCHS / self.train_rate
        left = (self.budget - seconds - tokens * cost) / (1 + rate * cost)
        left = min(max(left, LEAST_SHARE * self.budget - seconds), MOST_SHARE * self.budget - seconds)
        return rate * left

    def steps(self, rows: int, batch: int, seconds: float, epochs: float | None = None) -> int:
        """Training steps on `rows` positions after `seconds` of the budget are gone. epochs: rounds over the rows,
        where a clock decides at most so many and at least one."""
        per_epoch = max(1, rows // batch)
        if self.budget is None:
            return int((epochs or EPOCHS) * per_epoch)
        affordable = (self.budget - seconds) * self.train_rate / batch
        return int(min(max(affordable, per_epoch), (epochs or MAX_EPOCHS) * per_epoch))


def plan_time(setup: Setup, vocabulary: int | None = None) -> Schedule:
    """How the time is divided, given how fast training goes with a draft vocabulary of this size (None: not known)."""
    options = setup.options
    if options.drafts_minutes is None:
        return Schedule(options.tokens, None, 1.0)
    if vocabulary is None:
        whole = options.whole_vocabulary or options.kind == MTP
        assumed = setup.base.n_vocab if whole else options.draft_vocab or ASSUMED_VOCABULARY
        vocabulary = min(assumed, setup.base.n_vocab)
    if options.kind == STREAMS:
        top = open_layers(setup)
        plan = unplanned_streams(setup, top.first, "")
        rate = streams_fit.measure_rate(top, plan, vocabulary, setup.base.n_vocab, setup.device)
    elif options.kind == MTP:
        rate = _rate_of_layer(setup, vocabulary)
    else:
        shape = HeadShape(options.kind, options.heads, setup.base.n_embd, options.recipe.blocks)
        rate = measure_rate(shape, options.recipe, options.objective, vocabulary, setup.device)
    return Schedule(options.tokens, options.drafts_minutes * 60, rate * (1 - EVALUATION_COST * EVALUATION_SHARE))


def _rate_of_layer(setup: Setup, vocabulary: int) -> float:
    """Positions per second of an MTP layer."""
    options, hidden = setup.options, setup.base.n_embd
    layer = read_layer(setup.base.path, options.heads, setup.device)
    plan = endless_plan(options.kind, options.heads, options.recipe, options.objective, vocabulary, setup.device)
    return rate_of(
        MtpFit(plan, layer, setup.device), hidden, vocabulary, before=torch.zeros(ASSUMED_CONTEXT, 2 * hidden)
    )


def settled(setup: Setup, name: str, plan: P, asked: dict[str, Any], steps: Callable[[], int]) -> P:
    """`plan` with the steps that an earlier call decided on for the same data and options, else with steps(), which is
    then written down. name: the plan's; asked: what else decides."""
    path, asked = setup.folder / f"{name}.plan.json", {**asdict(plan), **asked}
    stored = recall(path)
    if isinstance(stored.get("steps"), int) and {**asked, "steps": stored["steps"]} == stored:
        return replace(plan, steps=stored["steps"])
    plan = replace(plan, steps=max(1, steps()))
    remember(path, {**asked, "steps": plan.steps})
    return plan


def plan_fit(setup: Setup, examples: Examples, schedule: Schedule, seconds: float, vocabulary: int) -> FitPlan:
    """The plan for heads. seconds: time already spent; vocabulary: tokens that the heads choose from."""
    options, recipe = setup.options, setup.options.recipe
    plan = FitPlan(
        _digest(examples) + options.start_content,
        options.kind,
        options.objective,
        options.heads,
        options.seed,
        0,
        default_batch(setup.device, len(examples.rows), recipe),
        setup.device.type,
        recipe,
        vocabulary,
    )
    asked = {"tokens": options.tokens, "minutes": options.drafts_minutes}

    def steps() -> int:
        return schedule.steps(len(examples.rows), plan.batch, seconds, recipe.epochs)

    return settled(setup, options.name, plan, asked, steps)


def plan_streams(setup: Setup, first_layer: int, examples: Examples, schedule: Schedule, seconds: float) -> StreamsPlan:
    """The plan for streams. seconds: time already spent."""
    options, plan, rows = setup.options, unplanned_streams(setup, first_layer, _digest(examples)), len(examples.rows)

    def steps() -> int:
        if options.joint_rounds is not None:
            return round(options.joint_rounds * steps_per_epoch(examples, plan.batch, whole_texts=True))
        return schedule.steps(rows, min(plan.batch, rows), seconds, plan.recipe.epochs)

    asked = {"tokens": options.tokens, "minutes": options.minutes, "rounds": options.joint_rounds}
    return settled(setup, options.name, plan, asked, steps)


def unplanned_streams(setup: Setup, first_layer: int, data: str) -> StreamsPlan:
    """A plan whose number of steps is still open: it has as many as there could ever be."""
    options, recipe = setup.options, setup.options.streams_recipe
    return StreamsPlan(
        data,
        options.objective,
        options.heads,
        first_layer,
        options.seed,
        1 << 30,
        recipe.batch,
        setup.device.type,
        recipe,
    )


def _digest(examples: Examples) -> str:
    return hashlib.sha256(examples.rows.tobytes() + examples.target.tobytes()).hexdigest()


def watched_texts(held_out: list[Span], positions: int, evaluations: int, most: int = MOST_EVALUATED) -> list[Span]:
    """The first of `held_out`, on which training on `positions` judges itself: as many as it can afford, at least one.
    most: positions."""
    most_here = min(most, EVALUATION_SHARE * positions / evaluations)
    texts: list[Span] = []
    for span in held_out:
        if not texts or sum(text.length for text in texts) < most_here:
            texts.append(span)
    return texts
