"""Fits the heads, or goes on where an earlier call was stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ..heads.fit import CurvePoint, Fit, FitPlan
from ..heads.layers import Heads
from ..heads.ranking import rank_texts, tokens_per_step
from ..heads.recipe import EVALUATIONS
from ..heads.rows import TextRows
from ..heads.weights import round_weights
from ..report.curve import Point
from ..report.messages import EVALUATION_NODES
from ..text.dataset import Examples
from .planning import watched_texts
from .prepare import DataSet, DraftVocabulary
from .setup import Setup
from .watched import run_watched


@dataclass(frozen=True)
class FittedHeads:
    """heads: with the weights of the evaluation `best`, rounded to what the file will hold.

    steps: done of the plan; points: loss and held-out tokens per step, over all calls.
    """

    heads: Heads
    plan: FitPlan
    steps: int
    best: CurvePoint
    points: list[Point]

    @property
    def seconds(self) -> float:
        """Of training, over all calls."""
        return self.points[-1].seconds if self.points else 0.0


def fit_heads(
    setup: Setup, data: DataSet, vocabulary: DraftVocabulary, source: TextRows, examples: Examples, plan: FitPlan
) -> FittedHeads:
    """Trains, or continues from the checkpoint of the same plan. Stopped after Ctrl-C: the checkpoint is written.

    Fresh heads where the options say that they begin with the backbone.
    """
    fit = Fit(plan, setup.base.n_embd, setup.device)
    if not setup.options.heads_first:
        return FittedHeads(fit.heads, plan, 0, CurvePoint(0, math.nan, 1.0), [])
    output = vocabulary.fast_output
    watched = watched_texts(data.split.build, plan.steps * plan.batch, EVALUATIONS)

    def held_out(heads: Heads) -> float:
        texts = rank_texts(heads, source, data.tokens, watched, vocabulary.t2d, output)
        return tokens_per_step(texts, EVALUATION_NODES)

    best, points = run_watched(setup, fit, plan, partial(fit.run, source, examples, output, evaluate=held_out))
    round_weights(fit.heads)
    return FittedHeads(fit.heads, plan, fit.step, best, points)
