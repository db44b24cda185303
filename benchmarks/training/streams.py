"""What the experiments with streams share: text, training for so much CPU time, trees walked over answers in torch.

    medusa train MODEL --kind medusa -o any.gguf --sidecar --recipe RECIPE

with tokens = 148000, seed = 1 and work_dir = "WORK" in the recipe

writes the text that they read: --text WORK/*/text. --seconds: CPU time of training alone, one thread; how many steps
that is follows from the first ones. Reading the states below streams comes on top and is told. Trees are built on
held-out answers of the training text, tokens per step are those of greedy answers to the questions in --data. --work
keeps answers and states for the next call.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.decoding import prompts
from medusa_cli.decoding.tree_search import accuracy_table, greedy_tree, simulate
from medusa_cli.models.base_file import BaseModel, embedding_rows, output_rows, read_base
from medusa_cli.prompts import bench_set
from medusa_cli.training.backbone.layers import TopLayers
from medusa_cli.training.backbone.shape import BaseTensors, read_shape
from medusa_cli.training.backbone.states import BaseRows, LayerStates, TextData, whole_texts
from medusa_cli.training.heads.rows import FileRows, TextRows, TokenEmbeddings, teacher_rows
from medusa_cli.training.heads.torch_setup import matmul_dtype
from medusa_cli.training.loop import BatchOrder
from medusa_cli.training.recipes import StreamsRecipe
from medusa_cli.training.streams.fit import StreamsFit, StreamsPlan, rank_streams
from medusa_cli.training.streams.layers import Streams
from medusa_cli.training.text import dataset
from medusa_cli.training.text.corpus import Corpus

CPU = torch.device("cpu")
SIZES, ANSWER, VOCABULARY, TRIAL_STEPS = (4, 8, 16), 64, 4096, 6
HELD_OUT = 2500
"""Positions of held-out text, at most."""
Ranks = list[NDArray[np.int64]]


@dataclass(frozen=True)
class Material:
    """Text with everything that training and walking read. train, build: spans of the corpus; asked: answers to the
    questions, spans of `answers`."""

    base: BaseModel
    model: native.Model
    tokens: NDArray[np.int32]
    prompts: dict[int, NDArray[np.int32]]
    train: list[dataset.Span]
    build: list[dataset.Span]
    source: TextRows
    d2t: NDArray[np.int32]
    t2d: NDArray[np.int32]
    output: torch.Tensor
    answers: NDArray[np.int32]
    asked: list[dataset.Span]
    asked_prompts: dict[int, NDArray[np.int32]]


def options(description: str | None, seconds: float, tokens: int) -> argparse.ArgumentParser:
    """What scripts that train streams have in common. seconds, tokens: by default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--tokens", type=int, default=tokens, help="of the text; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    return parser


def read_rows(results: Path) -> list[dict[str, Any]]:
    """Of --results; none where there is no such file yet."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def add_row(results: Path, row: dict[str, Any]) -> None:
    with results.open("a") as file:
        file.write(json.dumps(row) + "\n")


def answer(path: Path, data: Path, kept: Path) -> list[tuple[list[int], list[int]]]:
    """(prompt, greedy answer) for each question, by plain decoding."""
    if not kept.exists():
        model = native.Model(str(path), n_gpu_layers=0)
        session, pairs = native.Session(model, n_ctx=2048, n_threads=1), []
        for question in bench_set.read(data):
            session.reset()
            prompt = prompts.chat_tokens(model, [{"role": "user", "content": question.text}])
            sampling = native.Sampling(temperature=0.0)
            pairs.append((prompt, list(session.generate(prompt, max_tokens=ANSWER, sampling=sampling).tokens)))
        kept.write_text(json.dumps(pairs))
    found: list[tuple[list[int], list[int]]] = json.loads(kept.read_text())
    return found


def read_material(
    path: Path, arguments: argparse.Namespace, answered: list[tuple[list[int], list[int]]], *, taught: bool = True
) -> Material:
    """taught: by the model's own probabilities, else by the text."""
    base = read_base(path)
    corpus = Corpus(arguments.text, base.n_embd)
    split, tokens = dataset.split_texts(corpus.texts, arguments.tokens), corpus.load_tokens()
    d2t = dataset.draft_vocabulary(tokens, split.train, base.n_vocab, VOCABULARY)
    output = torch.from_numpy(output_rows(base, d2t)).to(matmul_dtype(CPU))
    states = FileRows(corpus.open_states(), CPU)
    rows = max(span.start + span.length for span in split.train)
    teacher = teacher_rows(arguments.work, states, rows, d2t, output) if taught else None
    starts = np.cumsum([0, *(text.length for text in corpus.texts)])[:-1].tolist()
    long = [(prompt, said) for prompt, said in answered if len(said) > arguments.heads]
    ends = np.cumsum([0, *(len(said) for _, said in long)]).tolist()
    asked = [dataset.Span(start, len(said), str(start)) for start, (_, said) in zip(ends, long, strict=False)]
    return Material(
        base=base,
        model=native.Model(str(path), n_gpu_layers=0),
        tokens=tokens,
        prompts=dict(zip(starts, corpus.load_prompts(), strict=True)),
        train=split.train,
        build=first_of(list({span.start: span for span in (*split.build, *split.score)}.values()), HELD_OUT),
        source=TextRows(states, None, teacher),
        d2t=d2t,
        t2d=dataset.token_to_draft(d2t, base.n_vocab),
        output=output,
        answers=np.concatenate([np.array(said, np.int32) for _, said in long]),
        asked=asked,
        asked_prompts={span.start: np.array(pair[0], np.int32) for span, pair in zip(asked, long, strict=True)},
    )


def first_of(spans: list[dataset.Span], positions: int) -> list[dataset.Span]:
    ends = np.cumsum([span.length for span in spans])
    return [span for span, end in zip(spans, ends.tolist(), strict=True) if end - span.length < positions]


def embeddings(base: BaseModel, tokens: NDArray[np.int32], scale: float = 1.0) -> TokenEmbeddings:
    used, place = dataset.token_places(tokens, base.n_vocab)
    return TokenEmbeddings(torch.from_numpy((embedding_rows(base, used) * np.float32(scale)).astype(np.float16)), place)


def steps_in(seconds: float, run: Callable[[Callable[[], bool]], object]) -> int:
    """How many steps take `seconds` of CPU. run(should_stop): makes steps of a throwaway run."""
    marks: list[float] = []

    def enough() -> bool:
        marks.append(time.process_time())
        return len(marks) > TRIAL_STEPS

    run(enough)
    return max(1, int(seconds * (len(marks) - 2) / (marks[-1] - marks[1])))


@dataclass(frozen=True)
class Trained:
    """Streams with what they are judged on: held-out answers (`held`) and answers to the questions (`asked`), both
    multiplied in float32. seconds: CPU time of training; reading: of the states below the streams."""

    top: TopLayers
    streams: Streams
    held: TextData
    asked: TextData
    positions: int
    seconds: float
    reading: float

    def ranks(self) -> tuple[Ranks, Ranks]:
        """On `held` and on `asked`."""
        held, asked = (rank_streams(self.top, self.streams, part) for part in (self.held, self.asked))
        return held, asked


def read_data(material: Material, arguments: argparse.Namespace, top: TopLayers) -> dict[str, TextData]:
    """By "train", "held" and "asked"; the states below `top` of "train" are read when they are asked for."""
    corpus = replace(material.source, embeddings=embeddings(material.base, material.tokens))
    answered = TextRows(material.source.states, embeddings(material.base, material.answers), None)

    def data(name: str, spans: list[dataset.Span]) -> TextData:
        of_questions = name == "asked"
        tokens = material.answers if of_questions else material.tokens
        whole = whole_texts(spans, material.asked_prompts if of_questions else material.prompts, tokens)
        folder = arguments.work / f"{name}-{top.first}"
        states = LayerStates(folder, whole, [top.first - 1], material.base.n_embd, material.model, 1)
        if name != "train":
            states.write(material.model, 1)
        examples = dataset.examples_of(tokens, [text.span for text in whole], material.t2d, arguments.heads)
        return TextData(states, answered if of_questions else corpus, examples, material.output)

    texts = {"train": material.train, "held": material.build, "asked": material.asked}
    return {name: data(name, spans) for name, spans in texts.items()}


def read_batches(data: TextData, plan: StreamsPlan, steps: int) -> None:
    """The states of the texts that the first steps see."""
    order = BatchOrder(data.examples, plan.batch, plan.seed, whole_texts=True)
    for step in range(steps):
        at = order.pick(step).index.numpy()
        for text in np.unique(np.searchsorted(data.examples.starts, at, side="right") - 1).tolist():
            data.states.read(text)


def train_streams(
    material: Material, arguments: argparse.Namespace, recipe: StreamsRecipe, make: type[Streams] = Streams
) -> Trained:
    """On the teacher's distribution, for so much CPU time. arguments: work, layers, heads and seconds are read. make:
    the streams that are trained."""
    top = top_layers(material.base, arguments.layers)
    begin = time.process_time()
    data = read_data(material, arguments, top)
    train = with_base(data["train"], material) if recipe.shared is not None else data["train"]
    plan = StreamsPlan("", "teacher", arguments.heads, top.first, 0, 1 << 20, recipe.batch, "cpu", recipe)
    read_batches(train, plan, TRIAL_STEPS + 1)
    reading, trial = time.process_time() - begin, StreamsFit(plan, top, CPU, make)
    steps = steps_in(arguments.seconds, lambda should_stop: trial.run(train, should_stop=should_stop))
    return fitted(material, data, train, replace(plan, steps=steps), top, make, reading)


def top_layers(base: BaseModel, count: int | None = None) -> TopLayers:
    """The topmost `count` layers; None: all, with the embeddings before them."""
    tensors = BaseTensors(base.path)
    decoder = read_shape(tensors.header)
    return TopLayers(tensors, decoder, 0 if count is None else len(decoder.layers) - count, CPU)


def with_base(train: TextData, material: Material) -> TextData:
    """For a base that learns, too."""
    whole = torch.from_numpy(output_rows(material.base, np.arange(material.base.n_vocab)))
    return replace(train, base=BaseRows(material.tokens, whole.to(material.output.dtype)))


def fitted(
    material: Material,
    data: dict[str, TextData],
    train: TextData,
    plan: StreamsPlan,
    top: TopLayers,
    make: type[Streams],
    reading: float = 0.0,
) -> Trained:
    """Trained by `plan` on `train`. data: of read_data(); reading: CPU time that reading states took already."""
    begin = time.process_time()
    read_batches(train, plan, plan.steps)
    reading += time.process_time() - begin
    fit, begin = StreamsFit(plan, top, CPU, make), time.process_time()
    fit.run(train, on_step=lambda step, loss: told(step, plan.steps, loss))
    spent = time.process_time() - begin
    exact = [replace(data[name], output=material.output.float()) for name in ("held", "asked")]
    return Trained(top, fit.streams, exact[0], exact[1], plan.steps * plan.batch, spent, reading)


def told(step: int, steps: int, loss: float) -> None:
    if step % max(1, steps // 10) == 0:
        print(f"step {step} of {steps}, loss {loss:.3f}", flush=True)


def trained_row(
    name: str, arguments: argparse.Namespace, trained: Trained, ranks: tuple[Ranks, Ranks]
) -> dict[str, Any]:
    """ranks: on held-out text, which builds the trees, and on answers to the questions."""
    build, asked = ranks
    accuracy = accuracy_table(build)
    trees = {nodes: greedy_tree(accuracy, nodes) for nodes in SIZES}
    return {
        "name": name,
        "heads": arguments.heads,
        "positions": trained.positions,
        "train_seconds": trained.seconds,
        "states_seconds": trained.reading,
        "parameters": sum(parameter.numel() for parameter in trained.streams.parameters() if parameter.requires_grad),
        "mt_bench": {nodes: simulate(asked, tree)[0] for nodes, tree in trees.items()},
        "held_out": {nodes: simulate(build, tree)[0] for nodes, tree in trees.items()},
        "first_right": [float(row[0]) for row in accuracy_table(asked)],
    }
