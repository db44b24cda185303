"""Kinds of heads for the same CPU time, how fast models are trained, and how near their layers in torch are.

    python benchmarks/training/trainer.py kinds [MODEL] --recipes A.toml B.toml ... --work-dir DIR --output DIR
    python benchmarks/training/trainer.py joint-rate MODEL [--layers 8] [--kind hydra]
    python benchmarks/training/trainer.py stream-rate MODEL [--layers 4] [--streams 4]
    python benchmarks/training/trainer.py parity MODEL [--layers 8] [--as-f16]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from medusa_cli import native
from medusa_cli.models import references
from medusa_cli.models.base_file import output_rows, read_base
from medusa_cli.prompts.seeds.data import PASSAGES
from medusa_cli.support.progress import phase
from medusa_cli.training import train
from medusa_cli.training.backbone import fit, layers, parity, shape, states
from medusa_cli.training.heads import loss
from medusa_cli.training.heads.fit import Fit, FitPlan
from medusa_cli.training.heads.layers import Heads, HeadShape
from medusa_cli.training.heads.rows import DraftRows, FileRows, TextRows, TokenEmbeddings
from medusa_cli.training.heads.torch_setup import matmul_dtype, pick_device
from medusa_cli.training.options import RecipeFile, TrainOptions, read_recipe
from medusa_cli.training.phases import fitting
from medusa_cli.training.recipes import JOINT_RECIPES, RECIPES, STREAMS_LAYERS, STREAMS_RECIPE
from medusa_cli.training.streams import fit as streams_fit
from medusa_cli.training.streams.fit import StreamsPlan
from medusa_cli.training.text.dataset import Span, examples_of

MESSAGES = Console(stderr=True)
TRIAL_STEPS = 4
EVALUATIONS = 1.06
"""What evaluations add to the steps."""


@dataclass
class Row:
    """steps, positions, cpu_minutes: of the training alone. tokens_per_step: by nodes, on held-out text of its kind."""

    recipe: str
    steps: int
    positions: int
    cpu_minutes: float
    tokens_per_step: dict[int, float]


class CpuBudget:
    """Stands in for fitting.fit_heads."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.spent, self.steps, self.positions = seconds, 0.0, 0, 0
        self._fit_heads = fitting.fit_heads

    def __call__(self, setup: Any, data: Any, vocabulary: Any, source: Any, examples: Any, plan: FitPlan) -> Any:
        trial = Fit(plan, setup.base.n_embd, setup.device)
        rows = DraftRows(source, examples, vocabulary.fast_output)
        trial.run(rows, should_stop=lambda: trial.step >= 1)
        begin = time.process_time()
        trial.run(rows, should_stop=lambda: trial.step >= 1 + TRIAL_STEPS)
        step = (time.process_time() - begin) / TRIAL_STEPS
        self.steps = max(1, int(self.seconds / (step * EVALUATIONS)))
        self.positions = self.steps * plan.batch
        begin = time.process_time()
        fitted = self._fit_heads(setup, data, vocabulary, source, examples, replace(plan, steps=self.steps))
        self.spent = time.process_time() - begin
        return fitted


def kinds(arguments: Namespace) -> None:
    """Kinds of heads that had the same text and the same CPU time to train: tokens per step on held-out text.

    Each recipe (docs/recipes.md) is `medusa train MODEL --recipe FILE -t 1`, but for the number of steps: a few steps
    on the real data say what one costs in CPU time, and as many are planned as the time allows. Text in --work-dir is
    used again. Heads go to --output, by the recipes' names; benchmarks/tokens_per_step.py takes them from there.
    """
    model = references.resolve(arguments.model, MESSAGES).path
    arguments.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for path in arguments.recipes:
        budget = CpuBudget(60 * arguments.cpu_minutes)
        fitting.fit_heads = budget
        with phase(MESSAGES, path.stem, "recipes"):
            result = train.run(train_options(model, path, read_recipe(path), arguments))
        fitting.fit_heads = budget._fit_heads
        rows.append(Row(path.stem, budget.steps, budget.positions, budget.spent / 60, result.by_size))
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    sizes = (f"{nodes} nodes" for nodes in rows[0].tokens_per_step)
    table = Table("recipe", "steps", "positions", "CPU minutes", *sizes)
    for row in rows:
        figures = (f"{value:.3f}" for value in row.tokens_per_step.values())
        table.add_row(row.recipe, str(row.steps), f"{row.positions:,}", f"{row.cpu_minutes:.2f}", *figures)
    Console().print(table)


def train_options(model: Path, path: Path, file: RecipeFile, arguments: Namespace) -> TrainOptions:
    usual = {name: getattr(arguments, name) for name in ("tokens", "seed", "draft_vocab", "work_dir")}
    return TrainOptions(
        model=model,
        output=arguments.output / f"{path.stem}.gguf",
        sidecar=True,
        threads=1,
        file=file,
        console=MESSAGES,
        **{**usual, **file.options()},
    )


TEXTS, PROMPT, ANSWER, DRAFT_VOCABULARY = 3, 60, 128, 8192


def joint_rate(arguments: Namespace) -> None:
    """How fast backbone and heads are trained together, from made-up states.

    One step: three texts of 60 tokens of prompt and 128 of answer through the top layers and heads, forward and back.
    Peak memory is that of the process.
    """
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    path = references.resolve(arguments.model, MESSAGES).path
    wall, cpu = joint_seconds(path, arguments.layers, arguments.kind, arguments.steps)
    answered = TEXTS * ANSWER / wall
    print(
        f"{answered:.0f} answer tokens a second ({wall:.2f} s a step, {cpu:.2f} s of CPU), {peak_gib():.1f} GiB at most"
    )


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)


def joint_seconds(path: Path, layer_count: int, kind: str, steps: int) -> tuple[float, float]:
    """Seconds of the fastest step, and of the process in the one that took it least."""
    device, base, rng = pick_device(), read_base(path), np.random.default_rng(0)
    tensors = shape.BaseTensors(path)
    decoder = shape.read_shape(tensors.header)
    first = len(decoder.layers) - layer_count
    top = layers.TopLayers(tensors, decoder, first, device)
    output = torch.from_numpy(output_rows(base, np.arange(base.n_vocab))).to(device, matmul_dtype(device))
    tokens = rng.integers(0, DRAFT_VOCABULARY, TEXTS * ANSWER).astype(np.int32)
    spans = [Span(at * ANSWER, ANSWER, str(at)) for at in range(TEXTS)]
    prompts = {span.start: np.arange(PROMPT, dtype=np.int32) for span in spans}
    rows_each = PROMPT + ANSWER - 1
    made = rng.standard_normal((TEXTS * (PROMPT + ANSWER), base.n_embd)).astype(np.float16)
    with tempfile.TemporaryDirectory() as folder:
        stored = states.LayerStates(
            Path(folder) / "states",
            states.whole_texts(spans, prompts, tokens),
            [first - 1],
            base.n_embd,
            native.Model(str(path)),
            1,
        )
        for number in range(TEXTS):
            begin = number * rows_each
            np.save(Path(folder) / "states" / f"{number:06d}.npy", made[begin : begin + rows_each])
        rows = FileRows([made[: len(tokens)]], device)
        embeddings = TokenEmbeddings(rows.gather(torch.arange(len(tokens))), np.arange(len(tokens)))
        t2d = np.arange(base.n_vocab, dtype=np.int32)
        data = states.TextData(
            stored, TextRows(rows, embeddings), examples_of(tokens, spans, t2d, 4), output[:DRAFT_VOCABULARY],
            states.BaseRows(tokens, output),
        )  # fmt: skip
        heads = Heads(HeadShape(kind, 4, base.n_embd, RECIPES[kind].blocks)).to(device)
        plan = fit.JointPlan("", kind, "truth", 4, "distill", first, 0, steps, device.type, JOINT_RECIPES["distill"])
        run = fit.JointFit(plan, top, heads, device)
        times, used = [], []
        for _ in range(steps):
            before = time.process_time()
            times.append(run.timed_step(data))
            used.append(time.process_time() - before)
    return min(times), min(used)


LENGTH = streams_fit.PROMPT + streams_fit.ANSWER


def stream_rate(arguments: Namespace) -> None:
    """How fast streams are trained, from made-up states, and how fast the states that they start from are read.

    Rates are of the process's CPU time. Training: whole steps of the recipe, forward and back. Reading: texts of as
    many tokens as training makes up, through the layers below. Peak memory is that of the process.
    """
    torch.set_num_threads(arguments.threads)
    path = references.resolve(arguments.model, MESSAGES).path
    trained, read = training_rate(path, arguments), reading_rate(path, arguments)
    hours = arguments.positions / trained / 3600
    print(f"{trained:.1f} positions per CPU second, {arguments.positions:,} in {hours:.1f} CPU hours")
    print(f"{read:.0f} tokens read per CPU second; {peak_gib():.1f} GiB at most")


def training_rate(path: Path, arguments: Namespace) -> float:
    tensors, base = shape.BaseTensors(path), read_base(path)
    decoder = shape.read_shape(tensors.header)
    first, device = len(decoder.layers) - arguments.layers, torch.device("cpu")
    top = layers.TopLayers(tensors, decoder, first, device)
    plan = StreamsPlan(
        "", "teacher", arguments.streams, first, 0, 1 << 30, STREAMS_RECIPE.batch, device.type, STREAMS_RECIPE
    )
    seconds, clock = arguments.seconds, time.process_time
    return streams_fit.measure_rate(
        top, plan, arguments.draft_vocab, base.n_vocab, device, seconds=seconds, clock=clock
    )


def reading_rate(path: Path, arguments: Namespace) -> float:
    decoder, rng = shape.read_shape(shape.BaseTensors(path).header), np.random.default_rng(0)
    below, model = len(decoder.layers) - arguments.layers - 1, native.Model(str(path), n_gpu_layers=0)
    reader = native.StatesReader(model, LENGTH, tap_layers=[below], outputs=False, n_threads=arguments.threads)
    text = rng.integers(0, model.n_vocab, LENGTH).tolist()
    reader.read(text)
    count, begin = 0, time.process_time()
    while time.process_time() - begin < arguments.seconds / 4:
        reader.read(text)
        count += 1
    return count * LENGTH / (time.process_time() - begin)


F16 = 1  # general.file_type


def layer_parity(arguments: Namespace) -> None:
    """How near the top layers in torch are to the engine's.

    Passages of the package through both: how often the likeliest token is the same, with and without those that are
    tied as the gate of `medusa train --joint` allows; the error of a logit (standard deviation over the vocabulary, the
    median over places); the KL of what follows from the states after the final norm; the error of each layer alone, of
    what it adds (the last layer: of the states after the final norm), the median over the rows of one passage.
    --as-f16: the same weights as F16, with which the engine does not round activations to 8 bits.
    """
    path = references.resolve(arguments.model, MESSAGES).path
    with tempfile.TemporaryDirectory() as folder:
        if arguments.as_f16:
            plain = Path(folder) / "f16.gguf"
            native.quantize_model(str(path), str(plain), file_type=F16, allow_requantize=True, pure=True)
            path = plain
        compare(path, arguments.layers, arguments.tokens, arguments.threads)


def compare(path: Path, layer_count: int, token_count: int, threads: int) -> None:
    torch.set_num_threads(threads)
    model, base, tensors = native.Model(str(path)), read_base(path), shape.BaseTensors(path)
    decoder = shape.read_shape(tensors.header)
    top = layers.TopLayers(tensors, decoder, len(decoder.layers) - layer_count, torch.device("cpu"))
    output = torch.from_numpy(output_rows(base, np.arange(base.n_vocab)))
    texts = parity.first_tokens([model.tokenize(text) for text in PASSAGES], token_count)
    below = [top.first - 1] if top.first else []
    reader = native.StatesReader(model, max(map(len, texts)), tap_layers=below, outputs=True, n_threads=threads)
    allowed, errors = parity.tolerance(tensors), []
    same, tied, kl, count = 0, 0, 0.0, sum(map(len, texts))
    with torch.no_grad():
        for text in texts:
            states = reader.read(text)
            entered = parity.entering(top, text, states.after_layers)
            made = top(entered, [len(text)])
            same += parity.agreeing(made, output, states.best, 0.0)
            tied += parity.agreeing(made, output, states.best, allowed.tie)
            engine = torch.from_numpy(np.asarray(states.post_norm))
            errors.append(((made - engine) @ output.T).std(dim=1))
            kl += float(loss.compare(engine, made, output, torch.tensor(states.best))[:, 0].sum())
    print(
        f"{count} tokens: same likeliest {same / count:.2%}, within {allowed.tie:g} of it {tied / count:.2%}, "
        f"error of a logit {float(torch.cat(errors).median()):.3f}, KL {kl / count:.5f}"
    )
    alone = parity.layer_errors(model, top, texts[0], threads)
    print("layers: " + ", ".join(f"{number} {error:.4f}" for number, error in alone))


def parser() -> ArgumentParser:
    whole = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    commands = whole.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[Namespace], None], **model: Any) -> ArgumentParser:
        text = run.__doc__ or ""
        one = commands.add_parser(
            name, help=text.splitlines()[0], description=text, formatter_class=RawDescriptionHelpFormatter
        )
        one.set_defaults(run=run)
        one.add_argument("model", **model)
        return one

    one = add("kinds", kinds, nargs="?", default="demo")
    one.add_argument("--recipes", type=Path, nargs="+", required=True)
    one.add_argument("--cpu-minutes", type=float, default=2.0)
    one.add_argument("--tokens", type=int, default=148000)
    one.add_argument("--seed", type=int, default=1)
    one.add_argument("--draft-vocab", type=int, default=8192)
    one.add_argument("--work-dir", type=Path, required=True)
    one.add_argument("--output", type=Path, required=True)
    one.add_argument("--json", type=Path)
    one = add("joint-rate", joint_rate)
    one.add_argument("--layers", type=int, default=8)
    one.add_argument("--kind", default="hydra")
    one.add_argument("--steps", type=int, default=3)
    one.add_argument("--threads", type=int, default=0)
    one = add("stream-rate", stream_rate)
    one.add_argument("--layers", type=int, default=STREAMS_LAYERS)
    one.add_argument("--streams", type=int, default=4)
    one.add_argument("--draft-vocab", type=int, default=8192)
    one.add_argument("--seconds", type=float, default=20)
    one.add_argument("--threads", type=int, default=1)
    one.add_argument("--positions", type=int, default=500_000)
    one = add("parity", layer_parity)
    one.add_argument("--layers", type=int, default=8)
    one.add_argument("--tokens", type=int, default=2000)
    one.add_argument("--threads", type=int, default=1)
    one.add_argument("--as-f16", action="store_true")
    return whole


def main() -> None:
    arguments = parser().parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
