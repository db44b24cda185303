"""Fits heads, or continues where an earlier call was stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from medusa_cli.support import machine
from medusa_cli.support.errors import MedusaError

from ..backbone.fit import JointFit, JointPlan
from ..heads.fit import DraftsFit, Fit, FitPlan, rank_texts, tokens_per_step
from ..heads.layers import Heads, HeadShape, round_weights
from ..heads.rows import DraftRows, TextRows
from ..heads.start import weights_of
from ..heads.torch_setup import fastest
from ..loop import CurvePoint
from ..progress import Curve, Point, TrainingView, live
from ..recipes import EVALUATIONS, KINDS, RECIPES, Recipe
from ..reporting import EVALUATION_NODES, GIB, say
from ..streams.fit import StreamsFit, StreamsPlan
from ..text.dataset import Examples, examples_of
from . import Setup
from .planning import ASSUMED_VOCABULARY, Schedule, plan_fit, watched_texts
from .prepare import DataSet, DraftVocabulary, Material

BYTES_PER_WEIGHT = 28
"""Of memory in training: weights, their gradients and two moments, the best and the fresh ones, and a step's own."""
SMALL = 256
"""Hidden size of heads whose weights are counted: those of larger ones grow with its square."""


@dataclass(frozen=True)
class Fitted:
    """steps: how many were done; best: the evaluation whose weights were kept; points: loss and held-out tokens per
    step, over all calls."""

    plan: FitPlan | JointPlan | StreamsPlan
    steps: int
    best: CurvePoint
    points: list[Point]

    @property
    def seconds(self) -> float:
        """Seconds of training, over all calls."""
        return self.points[-1].seconds if self.points else 0.0


@dataclass(frozen=True)
class FittedHeads(Fitted):
    """heads: rounded to what the file will hold."""

    heads: Heads


def run_watched(
    setup: Setup,
    fit: DraftsFit | JointFit | StreamsFit,
    name: str,
    data: Any,
    evaluate: Callable[..., Any],
    on_evaluation: Callable[[], None] = lambda: None,
    title: str = "Training heads",
    nodes: int = EVALUATION_NODES,
) -> Fitted:
    """Trains on `data`, or continues from the checkpoint of the same plan. name: its files'; evaluate: as in run();
    nodes: of the tree that it measures.

    Stopped after Ctrl-C: the checkpoint is written.
    """
    console, plan, checkpoint = setup.options.console, fit.plan, setup.folder / f"{name}.pt"
    if not fit.restore(checkpoint):
        say(console, f"Checkpoint: up to {fit.checkpoint_bytes / GIB:.2f} GiB in {setup.folder}")
    curve = Curve(setup.folder / f"{name}.curve.json", str(asdict(plan)), plan.steps, plan.batch)
    curve.start(fit.step)
    view = TrainingView(console, curve, fit.step, plan.steps, plan.batch, title)
    with live(view):

        def evaluated(point: CurvePoint) -> None:
            if point.step > 0:
                view.evaluated(point.step, point.loss, point.tokens_per_step)
            elif fit.keeps_fresh:
                fresh = f"{point.tokens_per_step:.3f} tokens per step on held-out text with {nodes} nodes"
                say(console, f"Before training: {fresh}")
            on_evaluation()

        fit.run(
            data,
            evaluate=evaluate,
            checkpoint=checkpoint,
            on_step=view.update,
            on_evaluation=evaluated,
            should_stop=lambda: setup.interrupt.requested,
        )
    setup.interrupt.check()
    best = fit.best.curve[fit.best.at]
    ended = "" if fit.step == plan.steps else f"; stopped after {fit.step} of {plan.steps} steps without a better one"
    found = f"Best at step {best.step}: {best.tokens_per_step:.3f} tokens per step on held-out text"
    say(console, f"{found} with {nodes} nodes{ended}")
    return Fitted(plan, fit.step, best, curve.points)


def check_start(setup: Setup) -> None:
    """MedusaError if the training is to begin with heads that are not like those that are trained."""
    options = setup.options
    if options.start is not None:
        recipe = options.recipe
        own = 1 if recipe.lm_head == "own" else 0
        shape = HeadShape(options.kind, options.heads, setup.base.n_embd, recipe.blocks, recipe.prefix, own)
        weights_of(options.start, Heads(shape))


def check_memory(setup: Setup) -> None:
    """MedusaError if heads of this size cannot be trained in the memory that is available."""
    options, (_, available) = setup.options, machine.memory()
    if options.kind not in KINDS or setup.device.type != "cpu" or available is None:
        return
    needed = _bytes_in_training(setup, options.kind, options.recipe)
    if needed <= available:
        return
    others = {kind: _bytes_in_training(setup, kind, RECIPES[kind]) for kind in KINDS}
    fitting = [f"--kind {kind} ({size / GIB:.1f} GiB)" for kind, size in others.items() if size <= available]
    remedies = " or ".join(["end other programs", *fitting])
    raise MedusaError(
        f"training {options.kind} heads for {options.model.name} takes about {needed / GIB:.1f} GiB of memory, "
        f"{available / GIB:.1f} are available: {remedies}"
    )


def _bytes_in_training(setup: Setup, kind: str, recipe: Recipe) -> int:
    count, hidden = setup.options.heads, setup.base.n_embd
    small = Heads(HeadShape(kind, count, SMALL, recipe.blocks, recipe.prefix))
    weights = sum(weight.numel() for weight in small.parameters()) * hidden**2 // SMALL**2
    if recipe.lm_head == "own":
        weights += count * hidden * (setup.options.draft_vocab or ASSUMED_VOCABULARY)
    return BYTES_PER_WEIGHT * weights


def train_heads(setup: Setup, material: Material, schedule: Schedule, seconds: float) -> FittedHeads:
    """Plans and trains heads. seconds: spent before. Stopped after Ctrl-C, with everything saved."""
    data, vocabulary = material.data, material.vocabulary
    examples = examples_of(data.tokens, data.split.train, vocabulary.t2d, setup.options.heads)
    if setup.options.recipe.prefix != "none":
        examples = examples.in_pieces()
    plan = plan_fit(setup, examples, schedule, seconds, len(vocabulary.d2t))
    return fit_heads(setup, data, vocabulary, material.source, examples, plan)


def fit_heads(
    setup: Setup, data: DataSet, vocabulary: DraftVocabulary, source: TextRows, examples: Examples, plan: FitPlan
) -> FittedHeads:
    """Trains heads; returns fresh ones if the options say that they begin with the backbone."""
    fit = Fit(plan, setup.base.n_embd, setup.device, setup.options.start)
    if not setup.options.heads_first:
        return FittedHeads(plan, 0, CurvePoint(0, math.nan, 1.0), [], fit.heads)
    output = fastest(vocabulary.output)
    watched = watched_texts(data.split.build, plan.steps * plan.batch, EVALUATIONS)

    def held_out(heads: Heads) -> float:
        texts = rank_texts(heads, source, data.tokens, watched, vocabulary.t2d, output)
        return tokens_per_step(texts, EVALUATION_NODES)

    fitted = run_watched(setup, fit, setup.options.name, DraftRows(source, examples, output), held_out)
    round_weights(fit.heads)
    return FittedHeads(**vars(fitted), heads=fit.heads)
