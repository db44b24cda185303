"""What the numbers of joint training are worth: layers trained, learning rates, weight of the heads' loss.

    python benchmarks/joint_recipe.py MODEL --tokens N --work-dir DIR [--kind medusa] [--minutes 2 | --steps N]
                                      [--seed 0] [--draft-vocab 8192] [--threads 1]
                                      --try LAYERS:RATE:TIMES:WEIGHT ... (LAYERS: a number, or all)

Writes N tokens of text into DIR (or finds them there), trains heads on them (or finds those of `medusa train` with the
same options), and then, from these same heads, trains layers and heads together with each of the settings, for
`--minutes` of the process's own time or `--steps`. TIMES: the heads' learning rate, so many times the layers'. On
held-out text, in torch and before anything is merged: KL to the model as it was, how often the likeliest token stays,
perplexity, and the tokens per step of the best trees of 4, 8 and 16 nodes.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

CONSOLE = Console(width=140)


@dataclass(frozen=True)
class Setting:
    """layers: trained, from the top; None: all. rate: of the adapters; that of the heads is heads_rate times as high.
    weight: the highest one of the heads' loss."""

    layers: int | None
    rate: float
    heads_rate: float
    weight: float


def setting(text: str) -> Setting:
    layers, rate, heads_rate, weight = text.split(":")
    return Setting(None if layers == "all" else int(layers), float(rate), float(heads_rate), float(weight))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--kind", default="medusa")
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--try", dest="settings", type=setting, nargs="+", required=True)
    arguments = parser.parse_args()

    from medusa_cli.models import references
    from medusa_cli.training import train
    from medusa_cli.training.heads.torch_setup import deterministic, require_torch
    from medusa_cli.training.interrupts import interrupt_flag
    from medusa_cli.training.options import TrainOptions

    require_torch()
    options = TrainOptions(
        references.resolve(arguments.model, CONSOLE).path,
        arguments.work_dir / "unused.gguf",
        sidecar=True,
        kind=arguments.kind,
        tokens=arguments.tokens,
        seed=arguments.seed,
        draft_vocab=arguments.draft_vocab,
        threads=arguments.threads,
        work_dir=arguments.work_dir,
        console=CONSOLE,
    )
    options.check()
    base = train.read_base(options.model)
    with interrupt_flag() as interrupt, deterministic(options.threads):
        compare(options, base, train.work_folder(options, base), interrupt, arguments)


def compare(options: Any, base: Any, folder: Path, interrupt: Any, arguments: argparse.Namespace) -> None:
    from medusa_cli import native
    from medusa_cli.training.heads.torch_setup import pick_device
    from medusa_cli.training.phases import collect, fitting, joint, planning, prepare
    from medusa_cli.training.phases.setup import Setup
    from medusa_cli.training.text.corpus import Corpus
    from medusa_cli.training.text.dataset import examples_of
    from medusa_cli.training.text.dialogs import SeedSource

    corpus = Corpus(folder / "text", base.n_embd)
    setup = Setup(options, base, folder, pick_device(), interrupt)
    text = collect.collect_text(setup, corpus, SeedSource(options.seed), planning.plan_time(setup))
    data = prepare.read_data(setup, corpus)
    vocabulary = prepare.pick_vocabulary(setup, data)
    rows = prepare.open_rows(setup, corpus, data, vocabulary)
    examples = examples_of(data.tokens, data.split.train, vocabulary.t2d, options.heads)
    schedule = planning.plan_time(setup, len(vocabulary.d2t))
    plan = planning.plan_fit(setup, examples, schedule, text.seconds, len(vocabulary.d2t))
    fitted = fitting.fit_heads(setup, data, vocabulary, rows.source, examples, plan)
    texts = joint.whole_texts_of(corpus, data)
    model = native.Model(str(base.path), n_gpu_layers=0)
    for tried in arguments.settings:
        one = replace(setup, options=replace(options, joint=True, joint_layers=tried.layers))
        backbone = joint.open_backbone(one)
        states = {
            name: joint.entered_texts(replace(one, folder=folder / name), backbone, model, texts[name])
            for name in texts
        }
        evaluate = Evaluation(backbone, states["held"], data, rows, vocabulary)
        if tried is arguments.settings[0]:
            evaluate.show("heads alone", fitted.heads, None)
        kept = examples_of(data.tokens, [text.span for text in texts["train"]], vocabulary.t2d, options.heads)
        joined = joint.JointData(
            states["train"], rows.source, kept, data.tokens, backbone.fast_output, vocabulary.fast_output
        )
        begin = time.process_time()
        fit = trained(one, backbone, joined, fitted, tried, arguments)
        taken = time.process_time() - begin
        evaluate.show(f"{tried}, {fit.step} steps, {taken:.0f} s", fit.heads, fit.adapters)


def trained(setup: Any, backbone: Any, data: Any, fitted: Any, tried: Setting, arguments: argparse.Namespace) -> Any:
    """A JointFit that had so many steps, or so much of the process's time."""
    from medusa_cli.training.backbone.fit import JointFit, JointPlan
    from medusa_cli.training.backbone.recipe import recipe_of

    recipe = recipe_of("distill", rate=tried.rate, heads_rate=tried.heads_rate, heads_weight=tried.weight)
    options = setup.options
    plan = JointPlan(
        "", options.kind, options.objective, options.heads, "distill", backbone.layers.first, options.seed, 1000,
        setup.device.type, recipe,
    )  # fmt: skip
    trial, seconds = JointFit(plan, backbone.layers, copy.deepcopy(fitted.heads), setup.device), []
    for _ in range(0 if arguments.steps else 3):
        begin = time.process_time()
        trial.timed_step(data)
        seconds.append(time.process_time() - begin)
    steps = arguments.steps or max(1, int(60 * arguments.minutes / min(seconds)))
    fit = JointFit(replace(plan, steps=steps), backbone.layers, copy.deepcopy(fitted.heads), setup.device)
    fit.run(data, should_stop=lambda: setup.interrupt.requested)
    setup.interrupt.check()
    fit.adapters.eval()
    return fit


@dataclass
class Evaluation:
    """Held-out text through the layers in torch."""

    backbone: Any
    states: Any
    data: Any
    rows: Any
    vocabulary: Any

    def show(self, name: str, heads: Any, adapters: Any) -> None:
        import numpy as np
        import torch

        from medusa_cli.decoding import tree_search
        from medusa_cli.training.backbone.layers import plain
        from medusa_cli.training.backbone.loss import compare as compare_rows
        from medusa_cli.training.backbone.quality import Distance
        from medusa_cli.training.heads.ranking import rank_texts
        from medusa_cli.training.heads.rows import PickedRows, TextRows

        project = plain if adapters is None else adapters.project
        picked, parts = [], []
        with torch.no_grad():
            for number, text in sorted(enumerate(self.states.texts), key=lambda pair: pair[1].span.start):
                entered = torch.from_numpy(self.states.read(number)).float()
                normed = self.backbone.layers(entered, [len(entered)], project)
                parts.append(normed[text.answer_at :].half())
                picked.append(np.arange(text.span.start, text.span.start + text.span.length))
        at, values = np.concatenate(picked), torch.cat(parts)
        old, said = self.rows.source.states.gather(torch.from_numpy(at)), torch.from_numpy(self.data.tokens[at]).long()
        far = Distance.of(compare_rows(old, values, self.backbone.output, said))
        known = {text.span.start for text in self.states.texts}
        source = TextRows(PickedRows(at, values), self.rows.source.embeddings)
        build, score = (
            rank_texts(
                heads, source, self.data.tokens, [span for span in spans if span.start in known],
                self.vocabulary.t2d, self.vocabulary.output,
            )
            for spans in (self.data.split.build, self.data.split.score)
        )  # fmt: skip
        accuracy = tree_search.accuracy_table(build)
        steps = [tree_search.simulate(score, tree_search.greedy_tree(accuracy, nodes))[0] for nodes in (4, 8, 16)]
        CONSOLE.print(
            f"{name}: KL {far.kl:.4f}, same likeliest {far.top1:.1%}, perplexity {far.perplexity:.3f} "
            f"({far.base_perplexity:.3f}), tokens per step {steps[0]:.3f} {steps[1]:.3f} {steps[2]:.3f}",
            highlight=False,
        )


if __name__ == "__main__":
    main()
