"""`medusa train`: text and hidden states from the model itself, heads from torch, a GGUF in the end."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from medusa_cli import paths
from medusa_cli.converters import sidecar, single_file
from medusa_cli.converters.atomic import atomic_file
from medusa_cli.errors import MedusaError
from medusa_cli.progress import phase

from . import dataset, evaluate
from .base_model import BaseModel, output_rows, read_base
from .corpus import Corpus
from .dialogs import MAX_TURN, FileSource, PromptSource, SeedSource
from .interrupts import Interrupt, interrupt_flag
from .leftovers import SCRATCH, remove_leftovers
from .options import TREE_NODES, TrainOptions
from .schedule import Schedule
from .torch_setup import deterministic, matmul_dtype, pick_device, require_torch

if TYPE_CHECKING:
    import torch

    from .fit import Fit, FitPlan, StateRows
    from .generate import TextWriter

GIB = 1 << 30


@dataclass(frozen=True)
class TrainResult:
    """What came out. tokens: trained on. accuracy [head][rank] and tree (choice paths) as written to the file.

    predicted: tokens per step as the accuracies tell; measured: walked over held-out text that they were not taken
    from. acceptance: share of steps that accepted at least 1, 2, .. drafted tokens there.
    """

    output: Path
    tokens: int
    accuracy: list[list[float]]
    tree: list[tuple[int, ...]]
    predicted: float
    measured: float
    acceptance: list[float]


def run(options: TrainOptions) -> TrainResult:
    """Trains heads and writes options.output, whole or not at all.

    Progress goes to options.console. Ctrl-C saves and raises KeyboardInterrupt; the same call continues. MedusaError
    for everything a person can put right.
    """
    options.check()
    require_torch()
    base = read_base(options.model)
    source = FileSource(options.data) if options.data else SeedSource(options.seed)
    folder = work_folder(options, base)
    remove_leftovers(folder, options.output)
    with interrupt_flag() as interrupt, deterministic(options.threads):
        corpus = Corpus(folder / "text", base.n_embd)
        _announce(options, base, corpus)
        job = _Run(options, base, corpus, folder, interrupt)
        job.generate(source)
        job.prepare()
        job.fit()
        result = job.measure()
        job.write(result)
    _report(options.console, result)
    return result


def work_folder(options: TrainOptions, base: BaseModel) -> Path:
    """Where this run keeps its text: the same for runs whose text is the same."""
    prompts = _file_hash(options.data) if options.data else "own"
    key = hashlib.sha256(f"{base.content} {prompts} {options.seed}".encode()).hexdigest()[:12]
    parent = options.work_dir or paths.cache_dir() / "train"
    return parent / f"{base.fingerprint}-{key}"


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise MedusaError(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()


class _Run:
    """The phases of one run, in order."""

    def __init__(
        self, options: TrainOptions, base: BaseModel, corpus: Corpus, folder: Path, interrupt: Interrupt
    ) -> None:
        from .fit import measure_rate

        self.options, self.base, self.corpus, self.folder, self.interrupt = options, base, corpus, folder, interrupt
        self.device = pick_device()
        vocabulary = min(dataset.DRAFT_VOCAB, base.n_vocab)
        timed = options.tokens is None
        rate = measure_rate(base.n_embd, vocabulary, options.heads, self.device) if timed else 1.0
        self.schedule = Schedule(options.tokens, options.minutes * 60 if timed else None, rate)

    # Set by prepare().
    split: dataset.Split
    tokens: NDArray[np.int32]
    d2t: NDArray[np.int32]
    states: StateRows
    output: torch.Tensor
    trained: Fit

    def generate(self, source: PromptSource) -> None:
        """Text until the schedule has enough; nothing when an earlier call of the same kind had."""
        asked = {"tokens": self.options.tokens, "minutes": None if self.options.tokens else self.options.minutes}
        if self.corpus.state.get("complete") == asked:
            return
        begin, before = time.monotonic(), float(self.corpus.state.get("seconds", 0.0))

        def seconds() -> float:
            return before + time.monotonic() - begin

        def tokens_left() -> float:
            return self.schedule.tokens_left(self.corpus.tokens, seconds())

        def should_stop() -> bool:
            return self.interrupt.requested or (self.schedule.budget is not None and tokens_left() <= 0)

        if tokens_left() > 0:
            from medusa_cli import native

            from .generate import TextWriter

            options = self.options
            model = native.Model(str(options.model), n_gpu_layers=options.n_gpu_layers)
            writer = TextWriter(
                model,
                self.corpus,
                source,
                seed=options.seed,
                parallel=options.parallel,
                threads=options.threads,
                self_written=options.data is None,
            )
            with phase(options.console, "Writing text", "tokens") as bar:

                def on_tokens(unfinished: int) -> None:
                    self.corpus.state["seconds"] = seconds()
                    have = self.corpus.tokens + unfinished
                    bar.update(have, have + max(0.0, tokens_left() - unfinished))

                writer.run(tokens_left, should_stop, on_tokens)
            self._tell_too_long(writer, source)
        self._check_interrupt()
        self.corpus.state.update(complete=asked, seconds=seconds())
        self.corpus.flush()

    def _tell_too_long(self, writer: TextWriter, source: PromptSource) -> None:
        """What part of the prompts was not answered, where some were not."""
        unread = source.too_long if isinstance(source, FileSource) else 0
        if writer.too_long or unread:
            _say(
                self.options.console,
                f"Left out: {writer.too_long} prompts of over {writer.max_prompt} tokens (the model's context and its "
                f"answers allow no more), {unread} conversations that open with over {MAX_TURN} characters",
            )

    def prepare(self) -> None:
        """Splits the text, picks the draft vocabulary and brings states and output rows to the device."""
        from .fit import StateRows

        corpus = self.corpus
        self.split = dataset.split_texts(corpus.texts, self.options.tokens)
        self.tokens = corpus.load_tokens()
        self.d2t = dataset.draft_vocabulary(self.tokens, self.split.train, self.base.n_vocab)
        if not self.split.train or not self.split.score or len(self.d2t) < 2 * evaluate.RANKS:
            raise MedusaError(
                f"only {corpus.tokens} tokens of usable text in {len(corpus.texts)} answers: "
                "give more time, more tokens or more prompts"
            )
        self.t2d = dataset.token_to_draft(self.d2t, self.base.n_vocab)
        self.states = StateRows(corpus.open_states(), self.device)
        import torch

        self.output = torch.from_numpy(output_rows(self.base, self.d2t)).to(self.device)

    def fit(self) -> None:
        """Trains, or continues from the checkpoint of the same data and settings."""
        from .fit import Fit, default_batch

        rows, target = dataset.targets(self.tokens, self.split.train, self.t2d, self.options.heads)
        batch = default_batch(self.device, len(rows))
        plan = self._plan(len(rows), batch, hashlib.sha256(rows.tobytes() + target.tobytes()).hexdigest())
        self.trained = Fit(plan, self.base.n_embd, self.device)
        checkpoint = self.folder / "heads.pt"
        self.trained.restore(checkpoint)
        with phase(self.options.console, "Training heads", "positions") as bar:

            def on_step(step: int, loss: float) -> None:
                bar.update(step * batch, plan.steps * batch, f"loss {loss:.3f}")

            self.trained.run(
                self.states,
                rows,
                target,
                self.output.to(matmul_dtype(self.device)),
                checkpoint=checkpoint,
                on_step=on_step,
                should_stop=lambda: self.interrupt.requested,
            )
        self._check_interrupt()
        self.trained.round_weights()

    def _plan(self, rows: int, batch: int, data: str) -> FitPlan:
        """The plan of an earlier call on the same data with the same options, else a new one, written down."""
        from .fit import FitPlan

        options, path = self.options, self.folder / "plan.json"
        seconds = float(self.corpus.state.get("seconds", 0.0))
        steps = self.schedule.steps(rows, batch, seconds)
        plan = FitPlan(data, options.heads, options.seed, steps, batch, self.device.type)
        asked = {**asdict(plan), "tokens": options.tokens, "minutes": None if options.tokens else options.minutes}
        stored = _read_json(path)
        if isinstance(stored.get("steps"), int) and {**asked, "steps": stored["steps"]} == stored:
            return replace(plan, steps=stored["steps"])
        with atomic_file(path) as file:
            file.write(json.dumps(asked).encode())
        return plan

    def measure(self) -> TrainResult:
        """Accuracies and tree on one half of the held-out prompts, tokens per step on the other."""
        from .fit import rank_texts

        halves, done = [], 0
        total = sum(span.length for span in (*self.split.build, *self.split.score))
        with phase(self.options.console, "Measuring", "positions") as bar:
            for spans in (self.split.build, self.split.score):
                texts = rank_texts(self.trained.heads, self.states, self.tokens, spans, self.t2d, self.output)
                done += sum(span.length for span in spans)
                bar.update(done, total)
                halves.append(texts)
        build, score = halves
        accuracy = evaluate.accuracy_table(build)
        tree = evaluate.grow_tree(accuracy, TREE_NODES)
        measured, acceptance = evaluate.simulate(score, tree)
        return TrainResult(
            output=self.options.output,
            tokens=sum(span.length for span in self.split.train),
            accuracy=accuracy.tolist(),
            tree=tree,
            predicted=evaluate.predicted_tokens_per_step(accuracy, tree),
            measured=measured,
            acceptance=acceptance,
        )

    def write(self, result: TrainResult) -> None:
        """The sidecar, or base and heads in one file."""
        weight = self.trained.heads.weight.detach().cpu().numpy()
        bias = self.trained.heads.bias.detach().cpu().numpy()
        heads = sidecar.MedusaHeads(
            blocks=[[sidecar.Block(w, b)] for w, b in zip(weight, bias, strict=True)],
            lm_head="draft_vocab",
            d2t=self.d2t,
            accuracy=result.accuracy,
            tree=result.tree,
            base_name=self.base.name,
            base_fingerprint=self.base.fingerprint,
        )
        if self.options.sidecar:
            sidecar.write_sidecar(self.options.output, heads)
            return
        with (
            tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch,
            phase(self.options.console, "Writing file", "bytes") as bar,
        ):
            part = Path(scratch) / "heads.gguf"
            sidecar.write_sidecar(part, heads)
            single_file.join(self.options.model, part, self.options.output, bar.update)

    def _check_interrupt(self) -> None:
        if self.interrupt.requested:
            _say(self.options.console, f"Saved in {self.folder}. The same command continues from here.")
            raise KeyboardInterrupt


def _announce(options: TrainOptions, base: BaseModel, corpus: Corpus) -> None:
    """Says what will be used; MedusaError when a known need exceeds the free space."""
    console, free = options.console, shutil.disk_usage(corpus.folder).free
    million = corpus.bytes_per_token * 1e6 / GIB
    _say(console, f"Base: {base.name} ({base.fingerprint}), {options.heads} heads")
    if corpus.tokens:
        _say(console, f"Continuing with {corpus.tokens} tokens from an earlier run.")
    where = f"{corpus.folder} ({free / GIB:.1f} GiB free)"
    if options.tokens is None:
        _say(console, f"Text and hidden states: {million:.2f} GiB per million tokens in {where}")
        return
    needed = max(0, options.tokens - corpus.tokens) * corpus.bytes_per_token
    _say(console, f"Text and hidden states: {needed / GIB:.2f} GiB in {where}")
    if needed > free:
        raise MedusaError(
            f"{corpus.folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} GiB are free: use --work-dir"
        )


def _say(console: Console, text: str) -> None:
    """One line as it is: paths are neither wrapped nor read as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _report(console: Console, result: TrainResult) -> None:
    table = Table(
        "head", "rank 1", "rank 2", "rank 3", "first 10", title="Accuracy on held-out text", title_justify="left"
    )
    for head, row in enumerate(result.accuracy, 1):
        table.add_row(str(head), *(f"{value:.1%}" for value in row[:3]), f"{sum(row):.1%}")
    console.print(table)
    size = result.output.stat().st_size / (1 << 20)
    _say(
        console,
        f"Tree: {len(result.tree) + 1} nodes; {result.predicted:.2f} tokens per step predicted, "
        f"{result.measured:.2f} measured on other held-out text",
    )
    _say(console, f"Wrote {result.output} ({size:.1f} MiB), trained on {result.tokens} tokens")


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
