"""`medusa train`: text and hidden states from the model itself, heads from torch, a GGUF in the end."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medusa_cli.converters.heads import draft_heads, single_file
from medusa_cli.decoding import tree_search
from medusa_cli.support import paths
from medusa_cli.support.atomic import atomic_file
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.progress import phase

from .base_model import BaseModel, embedding_rows, output_rows, read_base
from .heads import draft_vocab, export
from .heads.recipe import EVALUATIONS, RECIPES
from .heads.schedule import Schedule
from .heads.torch_setup import deterministic, matmul_dtype, pick_device, require_torch
from .interrupts import Interrupt, interrupt_flag
from .leftovers import SCRATCH, remove_leftovers
from .options import TREE_NODES, TrainOptions
from .report import record
from .report.curve import Curve
from .report.live import TrainingView, live
from .report.messages import EVALUATION_NODES, GIB, TrainResult, announce, report, say, say_best
from .text import dataset, sources
from .text.corpus import Corpus
from .text.dialogs import MAX_TURN, FileSource, PromptSource, SeedSource

if TYPE_CHECKING:
    import torch

    from .heads.fit import Fit, FitPlan
    from .heads.layers import Heads
    from .heads.rows import FileRows, TextRows
    from .text.generate import TextWriter

SIZES = (4, 8, 16)
"""Tree sizes (root included) that are reported."""
ASSUMED_VOCABULARY = 12288
"""Size of the draft vocabulary that the time is planned with until the text tells."""
EVALUATION_SHARE = 0.1
SCALE_ROWS = 4096
"""Hidden states that token embeddings are scaled to the size of."""
EVALUATION_COST = 0.5
"""Time of a position evaluated, against one trained on."""
MOST_EVALUATED = 8192
"""Held-out positions per evaluation: at most this, and in all this share of the positions trained on."""


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
        announce(options, base, corpus)
        job = _Run(options, base, corpus, folder, interrupt)
        job.generate(source)
        job.prepare()
        job.fit()
        result = job.measure()
        job.write(result)
        written = job.record(result)
    report(options.console, result, written)
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
        self.options, self.base, self.corpus, self.folder, self.interrupt = options, base, corpus, folder, interrupt
        self.embedding_scale = 1.0
        self.device = pick_device()
        self.recipe = RECIPES[options.kind]
        self.schedule = self._schedule(min(options.draft_vocab or ASSUMED_VOCABULARY, base.n_vocab))

    # Set by prepare().
    split: dataset.Split
    tokens: NDArray[np.int32]
    d2t: NDArray[np.int32]
    t2d: NDArray[np.int32]
    vocabulary: draft_vocab.VocabularyChoice
    shares: list[sources.SourceShare]
    source: TextRows
    output: torch.Tensor
    preparation: float
    """Seconds."""
    # Set by fit().
    trained: Fit
    curve: Curve

    def _schedule(self, vocabulary: int) -> Schedule:
        """How the time is divided, given how fast training goes with a draft vocabulary of this size."""
        from .heads.fit import measure_rate
        from .heads.layers import HeadShape

        options = self.options
        if options.tokens is not None:
            return Schedule(options.tokens, None, 1.0)
        shape = HeadShape(options.kind, options.heads, self.base.n_embd, self.recipe.blocks)
        rate = measure_rate(shape, self.recipe, options.objective, vocabulary, self.device)
        return Schedule(None, options.minutes * 60, rate * (1 - EVALUATION_COST * EVALUATION_SHARE))

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

            from .text.generate import TextWriter

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
        if writer.too_long:
            limit = f"{writer.max_prompt} tokens (the model's context less its answer)"
            say(self.options.console, f"Left out: {writer.too_long} prompts of over {limit}")
        if isinstance(source, FileSource) and source.too_long:
            what = f"{source.too_long} conversations that open with over {MAX_TURN} characters"
            say(self.options.console, f"Left out: {what}")

    def prepare(self) -> None:
        """Splits the text, picks the draft vocabulary and brings what training reads to the device."""
        import torch

        from .heads.rows import FileRows, TextRows, TokenEmbeddings, matching_scale

        begin, corpus = time.monotonic(), self.corpus
        self.split = dataset.split_texts(corpus.texts, self.options.tokens)
        self.tokens = corpus.load_tokens()
        ranked = dataset.draft_vocabulary(self.tokens, self.split.train, self.base.n_vocab, draft_vocab.SIZES[-1])
        if not self.split.train or not self.split.score or len(ranked) < 2 * tree_search.RANKS:
            raise MedusaError(
                f"only {corpus.tokens} tokens of usable text in {len(corpus.texts)} answers: "
                "give more time, more tokens or more prompts"
            )
        self.shares = sources.source_shares(corpus)
        self.options.console.print(sources.as_table(self.shares))
        self.vocabulary = self._vocabulary(ranked)
        self.d2t = ranked[: self.vocabulary.size]
        self.schedule = self._schedule(len(self.d2t))
        self.t2d = dataset.token_to_draft(self.d2t, self.base.n_vocab)
        self.output = torch.from_numpy(output_rows(self.base, self.d2t)).to(self.device)
        states, embeddings = FileRows(corpus.open_states(), self.device), None
        if self.options.kind != "medusa":
            used, place = dataset.token_places(self.tokens, self.base.n_vocab)
            matrix = embedding_rows(self.base, used)
            self.embedding_scale = matching_scale(matrix, states.gather(torch.arange(min(SCALE_ROWS, len(place)))))
            matrix = (matrix * np.float32(self.embedding_scale)).astype(np.float16)
            embeddings = TokenEmbeddings(torch.from_numpy(matrix).to(self.device), place)
        teacher = self._teacher(states) if self.options.objective == "teacher" else None
        self.source = TextRows(states, embeddings, teacher)
        self.preparation = time.monotonic() - begin

    def _vocabulary(self, ranked: NDArray[np.int32]) -> draft_vocab.VocabularyChoice:
        """The size that was asked for, else the best one on this machine."""
        options = self.options
        if options.draft_vocab is not None:
            return draft_vocab.VocabularyChoice(min(options.draft_vocab, len(ranked)), None, [])
        choice = draft_vocab.choose(
            self.base,
            ranked,
            self.tokens,
            self.split.build or self.split.score,
            kind=options.kind,
            heads=options.heads,
            n_gpu_layers=options.n_gpu_layers,
            threads=options.threads,
            memory=self.folder / f"{options.kind}.vocabulary.json",
        )
        if choice.rows:
            options.console.print(choice.as_table())
        return choice

    def _teacher(self, states: FileRows) -> tuple[FileRows, FileRows]:
        """The base's distribution at every row that is trained on."""
        from .heads.teacher import teacher_rows

        rows = max(span.start + span.length for span in self.split.train)
        with phase(self.options.console, "Teacher", "positions") as bar:

            def on_rows(done: int) -> None:
                bar.update(done, rows)
                self._check_interrupt()

            output = self.output.to(matmul_dtype(self.device))
            return teacher_rows(self.folder, states, rows, self.d2t, output, on_rows)

    def fit(self) -> None:
        """Trains, or continues from the checkpoint of the same data and settings."""
        from .heads.fit import Fit, default_batch
        from .heads.weights import round_weights

        options = self.options
        examples = dataset.examples_of(self.tokens, self.split.train, self.t2d, options.heads)
        batch = default_batch(self.device, len(examples.rows), self.recipe)
        digest = hashlib.sha256(examples.rows.tobytes() + examples.target.tobytes())
        plan = self._plan(len(examples.rows), batch, digest.hexdigest())
        self.trained = Fit(plan, self.base.n_embd, self.device)
        checkpoint = self.folder / f"{options.kind}.pt"
        if not self.trained.restore(checkpoint):
            say(options.console, f"Checkpoint: up to {self.trained.checkpoint_bytes / GIB:.2f} GiB in {self.folder}")
        low = self.output.to(matmul_dtype(self.device))
        watched = self._watched(plan)
        self.curve = Curve(self.folder / f"{options.kind}.curve.json", str(asdict(plan)), plan.steps, batch)
        self.curve.start(self.trained.step)

        def held_out(heads: Heads) -> float:
            from .heads.ranking import rank_texts, tokens_per_step

            texts = rank_texts(heads, self.source, self.tokens, watched, self.t2d, low)
            return tokens_per_step(texts, EVALUATION_NODES)

        with live(TrainingView(options.console, self.curve, self.trained.step, plan.steps, batch)) as view:
            self.trained.run(
                self.source,
                examples,
                low,
                evaluate=held_out,
                checkpoint=checkpoint,
                on_step=view.update,
                on_evaluation=lambda point: view.evaluated(point.step, point.loss, point.tokens_per_step),
                should_stop=lambda: self.interrupt.requested,
            )
        self._check_interrupt()
        best = self.trained.best
        say_best(options.console, best.curve[best.at], self.trained.step, plan.steps)
        round_weights(self.trained.heads)

    def _watched(self, plan: FitPlan) -> list[dataset.Span]:
        """The texts on which training judges itself: the first of those the tree is built on, none for the score."""
        most = min(MOST_EVALUATED, EVALUATION_SHARE * plan.steps * plan.batch / EVALUATIONS)
        texts: list[dataset.Span] = []
        for span in self.split.build:
            if not texts or sum(text.length for text in texts) < most:
                texts.append(span)
        return texts

    def _plan(self, rows: int, batch: int, data: str) -> FitPlan:
        """The plan of an earlier call on the same data with the same options, else a new one, written down."""
        from .heads.fit import FitPlan

        options, path = self.options, self.folder / f"{self.options.kind}.plan.json"
        seconds = float(self.corpus.state.get("seconds", 0.0)) + self.preparation
        steps = self.schedule.steps(rows, batch, seconds)
        kind, objective, device = options.kind, options.objective, self.device.type
        plan = FitPlan(data, kind, objective, options.heads, options.seed, steps, batch, device, self.recipe)
        asked = {**asdict(plan), "tokens": options.tokens, "minutes": None if options.tokens else options.minutes}
        stored = _read_json(path)
        if isinstance(stored.get("steps"), int) and {**asked, "steps": stored["steps"]} == stored:
            return replace(plan, steps=stored["steps"])
        with atomic_file(path) as file:
            file.write(json.dumps(asked).encode())
        return plan

    def measure(self) -> TrainResult:
        """Accuracies and tree on one half of the held-out prompts, tokens per step on the other."""
        from .heads.ranking import rank_texts

        halves, done = [], 0
        total = sum(span.length for span in (*self.split.build, *self.split.score))
        with phase(self.options.console, "Measuring", "positions") as bar:
            for spans in (self.split.build, self.split.score):
                texts = rank_texts(self.trained.heads, self.source, self.tokens, spans, self.t2d, self.output)
                done += sum(span.length for span in spans)
                bar.update(done, total)
                halves.append(texts)
        build, score = halves
        accuracy = tree_search.accuracy_table(build)
        tree = tree_search.grow_tree(accuracy, TREE_NODES)
        measured, acceptance = tree_search.simulate(score, tree)
        trees = {nodes: tree_search.grow_tree(accuracy, nodes) for nodes in SIZES}
        return TrainResult(
            output=self.options.output,
            tokens=sum(span.length for span in self.split.train),
            accuracy=accuracy.tolist(),
            tree=tree,
            predicted=tree_search.predicted_tokens_per_step(accuracy, tree),
            measured=measured,
            acceptance=acceptance,
            by_size={nodes: tree_search.simulate(score, sized)[0] for nodes, sized in trees.items()},
        )

    def write(self, result: TrainResult) -> None:
        """The sidecar, or base and heads in one file."""
        from .heads.weights import WEIGHT_TYPE, head_parts

        parts = head_parts(self.trained.heads)
        heads = draft_heads.DraftHeads(
            kind=parts.kind,
            blocks=parts.blocks,
            residuals=parts.residuals,
            prefix=parts.prefix,
            embedding_scale=self.embedding_scale,
            weight_type=WEIGHT_TYPE,
            lm_head="draft_vocab",
            d2t=self.d2t,
            accuracy=result.accuracy,
            tree=result.tree,
            base_name=self.base.name,
            base_fingerprint=self.base.fingerprint,
        )
        if self.options.sidecar:
            draft_heads.write_heads(self.options.output, heads)
            return
        with (
            tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch,
            phase(self.options.console, "Writing file", "bytes") as bar,
        ):
            part = Path(scratch) / "heads.gguf"
            draft_heads.write_heads(part, heads)
            single_file.join(self.options.model, part, self.options.output, bar.update)

    def record(self, result: TrainResult) -> list[Path]:
        """Writes how the run went beside the output, and the heads as a checkpoint where that was asked for."""
        options, corpus = self.options, self.corpus
        seconds = float(corpus.state.get("seconds", 0.0))
        document = {
            "model": {"name": self.base.name, "fingerprint": self.base.fingerprint},
            "options": options.as_json(),
            "seed": options.seed,
            "recipe": asdict(self.recipe),
            "device": self.device.type,
            "text": {
                "tokens": corpus.tokens,
                "trained_on": result.tokens,
                "seconds": seconds,
                "tokens_per_second": corpus.tokens / seconds if seconds else None,
                "sources": sources.as_json(self.shares),
            },
            "draft_vocabulary": self.vocabulary.as_json(),
            "training": self._training_record(),
            "accuracy": result.accuracy,
            "acceptance_per_depth": result.acceptance,
            "tree": result.tree,
            "tokens_per_step": {str(nodes): value for nodes, value in result.by_size.items()},
        }
        written = record.write(document, options.output)
        if options.export_hf is not None:
            written += export.export_heads(options.output, self.base, options.export_hf)
        return written

    def _training_record(self) -> dict[str, Any]:
        fit, points = self.trained, self.curve.points
        best = fit.best.curve[fit.best.at]
        positions, seconds = fit.step * fit.plan.batch, points[-1].seconds if points else 0.0
        return {
            "planned_steps": fit.plan.steps,
            "steps": fit.step,
            "batch": fit.plan.batch,
            "positions": positions,
            "seconds": seconds,
            "positions_per_second": positions / seconds if seconds else None,
            "evaluation_nodes": EVALUATION_NODES,
            "best": {"step": best.step, "tokens_per_step": best.tokens_per_step},
            "curve": [asdict(point) for point in points],
        }

    def _check_interrupt(self) -> None:
        if self.interrupt.requested:
            say(self.options.console, f"Saved in {self.folder}. The same command continues from here.")
            raise KeyboardInterrupt


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is none."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
