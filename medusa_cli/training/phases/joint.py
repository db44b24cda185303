"""Backbone and heads together: from warm heads to a new base file, and how far that is from the old one."""

from __future__ import annotations

import hashlib
import shutil
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medusa_cli import native
from medusa_cli.models.base_file import BaseModel, output_rows, read_base
from medusa_cli.prompts.seeds.passages import PASSAGES
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.progress import phase

from ..backbone import checkpoint, merge, parity, quality
from ..backbone.contexts import prompts_read
from ..backbone.fit import JointData, JointFit, JointPlan, JointPoint
from ..backbone.held_out import HeldOut, HeldOutTexts
from ..backbone.layers import TopLayers
from ..backbone.recipe import EPOCHS, LEAST_STEPS, MOST_EPOCHS, RESULT_SHARE, evaluations
from ..backbone.shape import read_shape
from ..backbone.states import Embeddings, EnteredTexts, LayerStates, WholeText, whole_texts
from ..backbone.weights import BaseTensors
from ..heads.layers import Heads
from ..heads.rows import PickedRows, TextRows, steps_per_epoch
from ..heads.torch_setup import matmul_dtype
from ..heads.weights import round_weights
from ..memory import recall, remember
from ..report.messages import EVALUATION_NODES, GIB, say
from ..text.corpus import Corpus
from ..text.dataset import Span, examples_of
from .changed import compare_models, tell, write_new
from .fitting import FittedHeads
from .planning import EVALUATION_COST, EVALUATION_SHARE, watched_texts
from .prepare import DataSet, DraftVocabulary, PreparedRows
from .setup import Setup

TRIAL_STEPS = 2
"""Of a throwaway run, the last of which tells how long a step takes."""


@dataclass(frozen=True)
class Backbone:
    """The base's top layers in torch, and its whole output matrix [V, h]."""

    tensors: BaseTensors
    layers: TopLayers
    output: Tensor

    @property
    def fast_output(self) -> Tensor:
        """`output` in the dtype that is multiplied fastest here."""
        return self.output.to(matmul_dtype(self.output.device))


@dataclass(frozen=True)
class JointResult:
    """base: the new model's file, in the work folder. data: with the held-out texts alone that were measured; rows: as
    the new model sees them. own, foreign: its distance from the old one."""

    base: BaseModel
    data: DataSet
    rows: PreparedRows
    heads: Heads
    plan: JointPlan
    parity: parity.Parity
    own: quality.Distance
    foreign: quality.Distance
    curve: list[JointPoint]
    held_out: list[HeldOut]

    def as_json(self) -> dict[str, Any]:
        """For the record."""
        return {
            "plan": asdict(self.plan),
            "parity": asdict(self.parity),
            "distance": {"own": asdict(self.own), "foreign": asdict(self.foreign)},
            "curve": [asdict(point) for point in self.curve],
            "held_out": [asdict(found) for found in self.held_out],
        }


def check_model(setup: Setup) -> parity.Parity:
    """Before any work: whether its layers can be trained. MedusaError, in one line, where they cannot."""
    header = BaseTensors(setup.base.path).header
    shape = read_shape(header)
    if setup.options.export_hf is not None and setup.options.kind == "medusa":
        checkpoint.check(header)
    asked, most = setup.options.joint_layers, len(shape.layers)
    if asked is not None and asked > most:
        raise MedusaError(f"--joint-layers {asked}: {setup.base.path} has {most}")
    path, key = setup.folder / "parity.json", {"content": setup.base.content, "layers": asked}
    stored = recall(path)
    if stored.items() >= key.items():
        return parity.Parity(stored["tokens"], stored["agreement"])
    model = native.Model(str(setup.base.path), n_gpu_layers=setup.options.n_gpu_layers)
    backbone = open_backbone(setup)
    with phase(setup.options.console, "Comparing layers", "tokens"):
        shown = [model.tokenize(text) for text in PASSAGES]
        allowed = parity.tolerance(backbone.tensors)
        found = parity.check(model, backbone.layers, backbone.output, shown, setup.options.threads, allowed)
    say(
        setup.options.console,
        f"Layers {backbone.layers.first} to {backbone.layers.first + len(backbone.layers.layers) - 1} in torch: "
        f"as in the engine on {found.agreement:.1%} of {found.tokens} tokens",
    )
    setup.folder.mkdir(parents=True, exist_ok=True)
    remember(path, {**key, **asdict(found)})
    return found


def train_jointly(
    setup: Setup,
    corpus: Corpus,
    data: DataSet,
    vocabulary: DraftVocabulary,
    rows: PreparedRows,
    fitted: FittedHeads,
    found: parity.Parity,
    seconds: float,
) -> JointResult:
    """All phases of it. seconds: spent on everything before. Stopped after Ctrl-C, with everything saved."""
    begin = time.monotonic()
    texts = whole_texts_of(corpus, data)
    model = native.Model(str(setup.base.path), n_gpu_layers=setup.options.n_gpu_layers)
    backbone = open_backbone(setup)
    states = entered_texts(setup, backbone, model, [*texts["train"], *texts["held"]])
    kept = [text.span for text in texts["train"]]
    examples = examples_of(data.tokens, kept, vocabulary.t2d, setup.options.heads)
    joint = JointData(states, rows.source, examples, data.tokens, backbone.fast_output, vocabulary.fast_output)
    plan = _plan(setup, backbone, joint, fitted, seconds + time.monotonic() - begin)
    watched = _watched(joint, data, vocabulary, plan, texts)
    fit = _fit(setup, backbone, joint, fitted.heads, plan, watched)
    return _result(setup, backbone, model, texts["held"], data, rows, fit, found)


def whole_texts_of(corpus: Corpus, data: DataSet) -> dict[str, list[WholeText]]:
    """Those to train on ("train") and those held out ("held"), with their prompts."""
    prompts = corpus.prompts_by_row()
    held = list({span.start: span for span in (*data.split.build, *data.split.score)}.values())
    texts = {
        name: whole_texts(spans, prompts, data.tokens) for name, spans in (("train", data.split.train), ("held", held))
    }
    if not texts["train"] or not texts["held"]:
        raise MedusaError(f"{corpus.folder}: holds answers without their prompts, use another --work-dir")
    return texts


def open_backbone(setup: Setup) -> Backbone:
    tensors = BaseTensors(setup.base.path)
    shape = read_shape(tensors.header)
    first = 0 if setup.options.joint_layers is None else len(shape.layers) - setup.options.joint_layers
    layers = TopLayers(tensors, shape, first, setup.device)
    output = torch.from_numpy(output_rows(setup.base, np.arange(setup.base.n_vocab))).to(setup.device)
    return Backbone(tensors, layers, output)


def entered_texts(setup: Setup, backbone: Backbone, model: native.Model, texts: list[WholeText]) -> EnteredTexts:
    """What the lowest trained layer reads. From disk: announced; MedusaError when it does not fit there."""
    if backbone.layers.embeddings is not None:
        return Embeddings(texts, backbone.layers.embeddings)
    layer, hidden, threads = backbone.layers.first - 1, setup.base.n_embd, setup.options.threads
    states = LayerStates(setup.folder / f"layer-{layer}", texts, layer, hidden, model, threads)
    free, needed = shutil.disk_usage(setup.folder).free, states.missing_rows * hidden * 2
    say(setup.options.console, f"States of layer {layer}: up to {states.nbytes / GIB:.2f} GiB in {states.folder}")
    if needed > free:
        raise MedusaError(f"{states.folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} are free")
    return states


def _plan(setup: Setup, backbone: Backbone, data: JointData, fitted: FittedHeads, seconds: float) -> JointPlan:
    """That of an earlier call on the same data, else a new one, written down. seconds: spent on everything before."""
    options, recipe = setup.options, setup.options.joint_recipe
    digest = hashlib.sha256(repr((data.states.key, asdict(fitted.plan), fitted.best.step)).encode())
    plan = JointPlan(
        digest.hexdigest(),
        options.kind,
        options.objective,
        options.heads,
        options.joint_strategy,
        backbone.layers.first,
        options.seed,
        0,
        setup.device.type,
        recipe,
    )
    path = setup.folder / f"{options.kind}.joint.plan.json"
    asked = {**asdict(plan), "budget": options.minutes, "rounds": options.joint_rounds}
    stored = recall(path)
    if isinstance(stored.get("steps"), int) and {**asked, "steps": stored["steps"]} == stored:
        return replace(plan, steps=stored["steps"])
    epoch = steps_per_epoch(data.examples, recipe.batch, whole_texts=True)
    steps = round((options.joint_rounds or EPOCHS) * epoch)
    if options.minutes is not None and options.joint_rounds is None:
        left = (options.minutes * 60 - seconds) * (1 - RESULT_SHARE)
        step_seconds = _time_step(replace(plan, steps=1000), backbone, data, fitted.heads, setup.device)
        step_seconds *= 1 + EVALUATION_COST * EVALUATION_SHARE
        steps = int(min(max(left / step_seconds, LEAST_STEPS), MOST_EPOCHS * epoch))
    plan = replace(plan, steps=max(1, steps))
    remember(path, {**asked, "steps": plan.steps})
    return plan


def _time_step(plan: JointPlan, backbone: Backbone, data: JointData, heads: Heads, device: torch.device) -> float:
    copy = Heads(heads.shape).to(device)
    copy.load_state_dict(heads.state_dict())
    fit = JointFit(plan, backbone.layers, copy, device)
    return [fit.timed_step(data) for _ in range(TRIAL_STEPS)][-1]


def _watched(
    joint: JointData, data: DataSet, vocabulary: DraftVocabulary, plan: JointPlan, texts: dict[str, list[WholeText]]
) -> HeldOutTexts:
    """The texts on which training judges itself: as many as it can afford to."""
    held = [text.span for text in texts["held"]]
    build = _of(data.split.build, {span.start for span in held}) or held
    spans = watched_texts(build, plan.steps * plan.recipe.batch, evaluations(plan.steps))
    starts, first = {span.start for span in spans}, len(texts["train"])
    numbers = [first + at for at, text in enumerate(texts["held"]) if text.span.start in starts]
    return HeldOutTexts(
        joint.states,
        numbers,
        joint.source,
        data.tokens,
        vocabulary.t2d,
        joint.output,
        joint.draft_output,
        EVALUATION_NODES,
    )


def _fit(
    setup: Setup, backbone: Backbone, data: JointData, heads: Heads, plan: JointPlan, watched: HeldOutTexts
) -> JointFit:
    """Trains, or continues from the checkpoint of the same plan."""
    console, checkpoint = setup.options.console, setup.folder / f"{plan.kind}.joint.pt"
    fit = JointFit(plan, backbone.layers, heads, setup.device)
    if not fit.restore(checkpoint):
        say(console, f"Checkpoint: up to {fit.checkpoint_bytes / GIB:.2f} GiB in {setup.folder}")
    with phase(console, "Training both", "steps") as bar:
        fit.run(
            data,
            checkpoint=checkpoint,
            evaluate=watched.measure,
            on_evaluation=lambda found: say(console, _held_out_line(found, plan.steps)),
            on_step=lambda point: bar.update(
                point.step, plan.steps, f"loss {point.backbone:.4f}, heads {point.heads:.3f}"
            ),
            should_stop=lambda: setup.interrupt.requested,
        )
    setup.interrupt.check()
    round_weights(fit.heads)
    fit.adapters.eval()
    return fit


def _held_out_line(found: HeldOut, steps: int) -> str:
    farther = found.perplexity / found.base_perplexity - 1
    return (
        f"Held out, step {found.step} of {steps}: {found.tokens_per_step:.3f} tokens per step with {EVALUATION_NODES} "
        f"nodes, KL {found.kl:.4f}, perplexity {farther:+.1%}"
    )


def _result(
    setup: Setup,
    backbone: Backbone,
    model: native.Model,
    held: list[WholeText],
    data: DataSet,
    rows: PreparedRows,
    fit: JointFit,
    found: parity.Parity,
) -> JointResult:
    """The new base's file, and everything that is measured with it by the engine itself."""
    options = setup.options
    path = write_new(setup, backbone.tensors, fit.adapters, backbone.layers.shape.architecture, merge.NAME_ENDING)
    new = native.Model(str(path), n_gpu_layers=options.n_gpu_layers)
    changed = compare_models(setup, model, new, held, rows.source.states, data.tokens, backbone.output)
    known = {text.span.start for text in held}
    contexts = prompts_read(new, held, options.threads) if fit.heads.shape.sees_prompts else None
    return JointResult(
        base=read_base(path),
        data=replace(
            data, split=replace(data.split, build=_of(data.split.build, known), score=_of(data.split.score, known))
        ),
        rows=replace(
            rows, source=TextRows(PickedRows(changed.rows, changed.values), rows.source.embeddings, contexts=contexts)
        ),
        heads=fit.heads,
        plan=fit.plan,
        parity=found,
        own=changed.own,
        foreign=changed.foreign,
        curve=fit.curve,
        held_out=fit.held_out,
    )


def _of(spans: list[Span], known: set[int]) -> list[Span]:
    return [span for span in spans if span.start in known]


def finish(setup: Setup, result: JointResult) -> None:
    """After the output was written: tells what changed, and removes the new model's file from the work folder."""
    tell(setup, result.own, result.foreign, result.base.path)
