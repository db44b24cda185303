"""Fits the heads, or goes on where an earlier call was stopped."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from ..heads.fit import CurvePoint, Fit, FitPlan
from ..heads.layers import Heads
from ..heads.ranking import rank_texts, tokens_per_step
from ..heads.recipe import EVALUATIONS
from ..heads.rows import TextRows
from ..heads.weights import round_weights
from ..report.curve import Curve, Point
from ..report.live import TrainingView, live
from ..report.messages import EVALUATION_NODES, GIB, say, say_best
from ..text.dataset import Examples
from .planning import watched_texts
from .prepare import DataSet, DraftVocabulary
from .setup import Setup


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
    console, checkpoint = setup.options.console, setup.folder / f"{setup.options.name}.pt"
    fit = Fit(plan, setup.base.n_embd, setup.device)
    if not setup.options.heads_first:
        return FittedHeads(fit.heads, plan, 0, CurvePoint(0, math.nan, 1.0), [])
    if not fit.restore(checkpoint):
        say(console, f"Checkpoint: up to {fit.checkpoint_bytes / GIB:.2f} GiB in {setup.folder}")
    output = vocabulary.fast_output
    watched = watched_texts(data.split.build, plan.steps * plan.batch, EVALUATIONS)
    curve = Curve(setup.folder / f"{setup.options.name}.curve.json", str(asdict(plan)), plan.steps, plan.batch)
    curve.start(fit.step)

    def held_out(heads: Heads) -> float:
        texts = rank_texts(heads, source, data.tokens, watched, vocabulary.t2d, output)
        return tokens_per_step(texts, EVALUATION_NODES)

    with live(TrainingView(console, curve, fit.step, plan.steps, plan.batch)) as view:
        fit.run(
            source,
            examples,
            output,
            evaluate=held_out,
            checkpoint=checkpoint,
            on_step=view.update,
            on_evaluation=lambda point: view.evaluated(point.step, point.loss, point.tokens_per_step),
            should_stop=lambda: setup.interrupt.requested,
        )
    setup.interrupt.check()
    best = fit.best.curve[fit.best.at]
    say_best(console, best, fit.step, plan.steps)
    round_weights(fit.heads)
    return FittedHeads(fit.heads, plan, fit.step, best, curve.points)
