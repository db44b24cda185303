"""Backbone and heads together: from warm heads to a new base file, and how far that is from the old one."""

from __future__ import annotations

import copy
import hashlib
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..backbone import merge, parity
from ..backbone.fit import JointFit, JointPlan, JointPoint
from ..backbone.layers import TopLayers
from ..backbone.quality import HeldOut, HeldOutTexts
from ..backbone.states import BaseRows, Embeddings, LayerStates, TextData, WholeText, prompts_read
from ..heads.layers import Heads, round_weights
from ..heads.rows import PickedRows, TextRows
from ..heads.torch_setup import fastest
from ..loop import steps_per_epoch
from ..recipes import JOINT_EPOCHS, LEAST_STEPS, MOST_JOINT_EPOCHS, RESULT_SHARE, joint_evaluations
from ..reporting import EVALUATION_NODES, say
from ..text.dataset import examples_of
from . import Setup
from .fitting import FittedHeads, run_watched
from .layers import NewModel, entered_texts, known_spans, make_new, only_known, open_layers, whole_texts_of
from .planning import EVALUATION_COST, EVALUATION_SHARE, settled, watched_texts
from .prepare import Material

TRIAL_STEPS = 2
"""Steps of a throwaway run, the last of which tells how long a step takes."""


@dataclass(frozen=True)
class JointResult(NewModel):
    """material: with only the held-out texts that were measured, as the new model sees them; curve, held_out: as in
    JointFit."""

    material: Material
    heads: Heads
    plan: JointPlan
    parity: parity.Parity
    curve: list[JointPoint]
    held_out: list[HeldOut]

    def as_json(self) -> dict[str, Any]:
        return {
            "plan": asdict(self.plan),
            "parity": asdict(self.parity),
            **super().as_json(),
            "curve": [asdict(point) for point in self.curve],
            "held_out": [asdict(found) for found in self.held_out],
        }


def train_jointly(
    setup: Setup, material: Material, fitted: FittedHeads, found: parity.Parity, seconds: float
) -> JointResult:
    """All phases of joint training. seconds: spent before. Stopped after Ctrl-C, with everything saved."""
    begin, data, vocabulary = time.monotonic(), material.data, material.vocabulary
    texts = whole_texts_of(material.corpus, data)
    model, top = setup.open(), open_layers(setup)
    states = entered_texts(setup, top, model, [*texts["train"], *texts["held"]])
    kept = [text.span for text in texts["train"]]
    examples = examples_of(data.tokens, kept, vocabulary.t2d, setup.options.heads)
    base = BaseRows(data.tokens, fastest(top.output))
    joint = TextData(states, material.source, examples, fastest(vocabulary.output), base)
    plan = _plan(setup, top, states, joint, fitted, seconds + time.monotonic() - begin)
    watched = _watched(joint, material, plan, texts)
    fit = JointFit(plan, top, fitted.heads, setup.device)

    def tell() -> None:
        now = fit.held_out[-1]
        say(
            setup.options.console,
            f"Held out, step {now.step} of {plan.steps}: {now.tokens_per_step:.3f} tokens per step with "
            f"{EVALUATION_NODES} nodes, KL {now.kl:.4f}, perplexity {now.perplexity / now.base_perplexity - 1:+.1%}",
        )

    run_watched(setup, fit, f"{plan.kind}.joint", joint, watched.measure, tell, "Training both")
    round_weights(fit.heads)
    fit.adapters.eval()
    held = texts["held"]
    changed, new = make_new(setup, material, model, top, fit.adapters, held, merge.NAME_ENDING)
    contexts = prompts_read(new, held, setup.options.threads) if fit.heads.shape.sees_prompts else None
    seen = TextRows(PickedRows(changed.rows, changed.values), material.source.embeddings, contexts=contexts)
    return JointResult(
        **vars(changed),
        material=replace(material, data=only_known(data, held), source=seen),
        heads=fit.heads,
        plan=plan,
        parity=found,
        curve=fit.curve,
        held_out=fit.held_out,
    )


def _plan(
    setup: Setup,
    top: TopLayers,
    states: Embeddings | LayerStates,
    data: TextData,
    fitted: FittedHeads,
    seconds: float,
) -> JointPlan:
    """seconds: spent on everything before."""
    options, recipe = setup.options, setup.options.joint_recipe
    digest = hashlib.sha256(repr((states.key, asdict(fitted.plan), fitted.best.step)).encode())
    plan = JointPlan(
        digest.hexdigest(),
        options.kind,
        options.objective,
        options.heads,
        options.joint_strategy,
        top.first,
        options.seed,
        0,
        setup.device.type,
        recipe,
    )

    def steps() -> int:
        epoch = steps_per_epoch(data.examples, recipe.batch, whole_texts=True)
        if options.minutes is None or options.joint_rounds is not None:
            return round((options.joint_rounds or JOINT_EPOCHS) * epoch)
        left = (options.minutes * 60 - seconds) * (1 - RESULT_SHARE)
        trial = JointFit(replace(plan, steps=1000), top, copy.deepcopy(fitted.heads), setup.device)
        evaluated = 1 + EVALUATION_COST * EVALUATION_SHARE
        step_seconds = [trial.timed_step(data) for _ in range(TRIAL_STEPS)][-1]
        return int(min(max(left / (step_seconds * evaluated), LEAST_STEPS), MOST_JOINT_EPOCHS * epoch))

    asked = {"budget": options.minutes, "rounds": options.joint_rounds}
    return settled(setup, f"{options.kind}.joint", plan, asked, steps)


def _watched(joint: TextData, material: Material, plan: JointPlan, texts: dict[str, list[WholeText]]) -> HeldOutTexts:
    """The texts on which training judges itself: as many as it can afford."""
    held = [text.span for text in texts["held"]]
    build = known_spans(material.data.split.build, texts["held"]) or held
    spans = watched_texts(build, plan.steps * plan.batch, joint_evaluations(plan.steps))
    starts, first = {span.start for span in spans}, len(texts["train"])
    numbers = [first + at for at, span in enumerate(held) if span.start in starts]
    return HeldOutTexts(joint, numbers, material.vocabulary.t2d, EVALUATION_NODES)
