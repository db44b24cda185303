"""How long each phase may take, and how many steps the heads are trained for."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace

from ..heads.fit import FitPlan, default_batch, measure_rate
from ..heads.layers import HeadShape
from ..heads.schedule import Schedule
from ..memory import recall, remember
from ..text.dataset import Examples, Span
from .setup import Setup

ASSUMED_VOCABULARY = 12288
"""Size of the draft vocabulary that the time is planned with until the text tells."""
EVALUATION_COST = 0.5
"""Time of a position evaluated, against one trained on."""
EVALUATION_SHARE = 0.1
MOST_EVALUATED = 8192
"""Held-out positions per evaluation: at most this, and in all EVALUATION_SHARE of the positions trained on."""


def plan_time(setup: Setup, vocabulary: int | None = None) -> Schedule:
    """How the time is divided, given how fast training goes with a draft vocabulary of this size (None: not known)."""
    options, recipe = setup.options, setup.options.recipe
    if options.heads_minutes is None:
        return Schedule(options.tokens, None, 1.0)
    if vocabulary is None:
        assumed = setup.base.n_vocab if options.whole_vocabulary else options.draft_vocab or ASSUMED_VOCABULARY
        vocabulary = min(assumed, setup.base.n_vocab)
    shape = HeadShape(options.kind, options.heads, setup.base.n_embd, recipe.blocks)
    rate = measure_rate(shape, recipe, options.objective, vocabulary, setup.device)
    return Schedule(options.tokens, options.heads_minutes * 60, rate * (1 - EVALUATION_COST * EVALUATION_SHARE))


def plan_fit(setup: Setup, examples: Examples, schedule: Schedule, seconds: float, vocabulary: int) -> FitPlan:
    """The plan of an earlier call on the same data with the same options, else a new one, written down.

    seconds: how much of the time was spent before; vocabulary: tokens that the heads choose from.
    """
    options, recipe = setup.options, setup.options.recipe
    data = hashlib.sha256(examples.rows.tobytes() + examples.target.tobytes()).hexdigest()
    batch = default_batch(setup.device, len(examples.rows), recipe)
    steps = schedule.steps(len(examples.rows), batch, seconds)
    kind, objective, device = options.kind, options.objective, setup.device.type
    plan = FitPlan(data, kind, objective, options.heads, options.seed, steps, batch, device, recipe)
    plan = replace(plan, vocabulary=vocabulary)
    path = setup.folder / f"{options.name}.plan.json"
    asked = {**asdict(plan), "tokens": options.tokens, "minutes": options.heads_minutes}
    stored = recall(path)
    if isinstance(stored.get("steps"), int) and {**asked, "steps": stored["steps"]} == stored:
        return replace(plan, steps=stored["steps"])
    remember(path, asked)
    return plan


def watched_texts(held_out: list[Span], positions: int, evaluations: int) -> list[Span]:
    """The first of `held_out`, on which training on `positions` judges itself: as many as it can afford to, at least
    one."""
    most = min(MOST_EVALUATED, EVALUATION_SHARE * positions / evaluations)
    texts: list[Span] = []
    for span in held_out:
        if not texts or sum(text.length for text in texts) < most:
            texts.append(span)
    return texts
