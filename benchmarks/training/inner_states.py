"""Do Hydra heads draft better if their first blocks also read states of inner layers (as in EAGLE-3, 2503.01840)?

    medusa train MODEL --kind hydra -o any.gguf --sidecar --recipe RECIPE       # tokens, seed, work_dir = "WORK"
    python benchmarks/training/inner_states.py MODEL --text WORK/*/text --work FOLDER --results FILE
        [--layers 9 19] [--epochs 2]
    python benchmarks/training/inner_states.py MODEL --results FILE --table

Trains heads once as usual and once with the states after --layers (from 0) beside the last one, on the same text in the
same order. The additional columns start at zero; inner states come with the mean and the size of each place taken out.
Trees are built on one half of the held-out text and scored on the other. --work keeps the states for the next call. A
row that FILE has is not trained again.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from streams import CPU, SIZES, add_row, embeddings, read_rows, told
from torch import nn

from medusa_cli import native
from medusa_cli.decoding.tree_search import accuracy_table, greedy_tree, simulate
from medusa_cli.models import references
from medusa_cli.models.base_file import BaseModel, embedding_rows, output_rows, read_base
from medusa_cli.training.backbone.states import LayerStates, whole_texts
from medusa_cli.training.heads.fit import DraftsFit, FitPlan, rank_texts
from medusa_cli.training.heads.layers import Heads, HeadShape
from medusa_cli.training.heads.rows import DraftRows, FileRows, TextRows, matching_scale, teacher_rows
from medusa_cli.training.heads.torch_setup import matmul_dtype
from medusa_cli.training.recipes import RECIPES
from medusa_cli.training.text import dataset
from medusa_cli.training.text.corpus import Corpus

VOCABULARY, HEADS, TYPICAL, LARGEST = 8192, 4, 4096, 8.0
"""TYPICAL: states from which means and sizes are taken; LARGEST: inner states are cut at so many times their size."""


class DeepHeads(Heads):
    """Hydra heads whose states are `layers` times as wide again."""

    def __init__(self, shape: HeadShape, layers: int) -> None:
        super().__init__(shape)
        hidden = shape.hidden
        self.first = nn.ParameterList(
            nn.Parameter(
                torch.cat((weight[:, :hidden], torch.zeros(2 * hidden, layers * hidden), weight[:, hidden:]), 1)
            )
            for weight in self.first
        )


class DeepFit(DraftsFit):
    """Their weights decay towards fresh ones."""

    whole_texts = False

    def __init__(self, plan: FitPlan, heads: DeepHeads) -> None:
        fresh = [weight.detach().clone() for weight in heads.parameters()]
        super().__init__(plan, heads, heads, CPU)
        self.start = fresh


def wide_rows(
    corpus: Corpus, base: BaseModel, model: native.Model, spans: Sequence[dataset.Span], layers: list[int], work: Path
) -> NDArray[np.float16]:
    """[rows of the corpus, h + layers * h]: the last state, and inner ones of about its size; rows of other texts than
    `spans` stay zero."""
    hidden, tokens = base.n_embd, corpus.load_tokens()
    whole = whole_texts(spans, corpus.prompts_by_row(), tokens)
    states = LayerStates(work / "inner", whole, layers, hidden, model, 1)
    rows = np.lib.format.open_memmap(work / "wide.npy", "w+", np.float16, (len(tokens), (1 + len(layers)) * hidden))
    at = 0
    for shard in corpus.open_states():
        rows[at : at + len(shard), :hidden] = shard
        at += len(shard)
    some = [states.read(number)[text.answer_at :] for number, text in enumerate(whole[:64])]
    typical = np.concatenate(some)[:TYPICAL].astype(np.float32)
    unit = np.sqrt(np.mean(np.square(rows[: len(typical), :hidden].astype(np.float32))))
    mean, size = typical.mean(axis=0), typical.std(axis=0) / unit
    for number, text in enumerate(whole):
        inner = states.read(number)[text.answer_at :].astype(np.float32)
        inner = np.clip((inner - mean) / size, -LARGEST * unit, LARGEST * unit)
        rows[text.span.start : text.span.start + len(inner), hidden:] = inner
        if number % 200 == 0:
            print(f"states of text {number} of {len(whole)}", flush=True)
    return rows


def train(name: str, arguments: Namespace, layers: list[int]) -> None:
    base = read_base(references.resolve(arguments.model, Console(stderr=True)).path)
    arguments.work.mkdir(parents=True, exist_ok=True)
    corpus = Corpus(arguments.text, base.n_embd)
    tokens, split = corpus.load_tokens(), dataset.split_texts(corpus.texts)
    d2t = dataset.draft_vocabulary(tokens, split.train, base.n_vocab, VOCABULARY)
    t2d = dataset.token_to_draft(d2t, base.n_vocab)
    output = torch.from_numpy(output_rows(base, d2t)).to(matmul_dtype(CPU))
    last = FileRows(corpus.open_states(), CPU)
    spans = [*split.train, *{span.start: span for span in (*split.build, *split.score)}.values()]
    teacher = teacher_rows(arguments.work, last, max(span.start + span.length for span in spans), d2t, output)
    rows = last
    if layers:
        model = native.Model(str(base.path), n_gpu_layers=0)
        rows = FileRows([wide_rows(corpus, base, model, spans, layers, arguments.work)], CPU)
    drafted = embeddings(base, tokens, matching_scale(embedding_rows(base, d2t), last.gather(torch.arange(TYPICAL))))
    source = TextRows(rows, drafted, teacher)
    examples = dataset.examples_of(tokens, split.train, t2d, HEADS)
    recipe = replace(RECIPES["hydra"], epochs=arguments.epochs)
    steps = int(arguments.epochs * len(examples.rows) / recipe.batch)
    plan = FitPlan("", "hydra", "teacher", HEADS, 0, steps, recipe.batch, "cpu", recipe, len(d2t))
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        heads = DeepHeads(plan.shape(base.n_embd), len(layers))
    fit, begin = DeepFit(plan, heads), time.process_time()
    fit.run(DraftRows(source, examples, output), on_step=lambda step, loss: told(step, steps, loss))
    seconds = time.process_time() - begin
    build, score = (rank_texts(heads, source, tokens, part, t2d, output) for part in (split.build, split.score))
    accuracy = accuracy_table(build)
    found = {nodes: simulate(score, greedy_tree(accuracy, nodes))[0] for nodes in SIZES}
    first = [float(row[0]) for row in accuracy_table(score)]
    made = {"name": name, "steps": steps, "seconds": seconds, "held_out": found, "first_right": first}
    add_row(arguments.results, made)
    print(made, flush=True)


def parser() -> ArgumentParser:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--layers", type=int, nargs="+", default=[9, 19])
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--table", action="store_true")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    wanted = {"last state": [], f"with layers {' '.join(map(str, arguments.layers))}": arguments.layers}
    if not arguments.table:
        done = {row["name"] for row in read_rows(arguments.results)}
        for name, layers in wanted.items():
            if name not in done:
                train(name, arguments, layers)
    table = Table("heads see", "steps", "CPU s", *(f"{nodes} nodes" for nodes in SIZES), "first drafts right")
    for row in read_rows(arguments.results):
        figures = [f"{row['held_out'][str(nodes)]:.3f}" for nodes in SIZES]
        right = " / ".join(f"{share:.1%}" for share in row["first_right"])
        table.add_row(row["name"], str(row["steps"]), f"{row['seconds']:.0f}", *figures, right)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
