"""Do Hydra heads draft better if their first blocks also read states of inner layers (as in EAGLE-3, 2503.01840)?

    medusa train MODEL --kind hydra -o any.gguf --sidecar --recipe RECIPE       # tokens, seed, work_dir = "WORK"
    python benchmarks/training/inner_states.py MODEL --text WORK/*/text --work FOLDER --results FILE
        [--layers 9 19] [--epochs 2] [--together ROWS]
    python benchmarks/training/inner_states.py MODEL --results FILE --table

Trains heads once as usual and, unless --layers is empty, once with the states after these layers (from 0) beside the
last one, on the same text in the same order. The additional columns start at zero; inner states come with the mean and
the size of each place taken out. --together: a batch is of pieces of texts, up to so many rows in a row, as for all
that has attention; without it, of single rows. Trees are built on one half of the held-out text and scored on the
other. --work keeps the states for the next call. A row that FILE has is not trained again.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from medusa_cli.training.heads.layers import Drafting, Heads, HeadShape
from medusa_cli.training.heads.rows import (
    DraftRows,
    FileRows,
    TextRows,
    TokenEmbeddings,
    matching_scale,
    teacher_rows,
)
from medusa_cli.training.heads.torch_setup import matmul_dtype
from medusa_cli.training.recipes import RECIPES
from medusa_cli.training.text import dataset
from medusa_cli.training.text.corpus import Corpus

VOCABULARY, HEADS, TYPICAL, LARGEST = 8192, 4, 4096, 8.0
"""TYPICAL: states from which means and sizes are taken; LARGEST: inner states are cut at so many times their size."""


@dataclass(frozen=True)
class Material:
    """Text with what is learned and judged. spans: all texts; output [D, h]: the rows of the draft vocabulary, and t2d
    its row of each token; teacher: as TextRows'."""

    base: BaseModel
    corpus: Corpus
    tokens: NDArray[np.int32]
    split: dataset.Split
    spans: list[dataset.Span]
    t2d: NDArray[np.int32]
    output: torch.Tensor
    last: FileRows
    teacher: tuple[FileRows, FileRows]

    def judge(self, drafting: Drafting, source: TextRows) -> tuple[dict[int, float], list[float]]:
        """Tokens per step by nodes, on one half of the held-out text with the tree of the other; how often each level's
        first draft is right."""
        split = self.split
        build, score = (
            rank_texts(drafting, source, self.tokens, part, self.t2d, self.output)
            for part in (split.build, split.score)
        )
        accuracy = accuracy_table(build)
        found = {nodes: simulate(score, greedy_tree(accuracy, nodes))[0] for nodes in SIZES}
        return found, [float(row[0]) for row in accuracy_table(score)]

    def embeddings(self) -> TokenEmbeddings:
        """As large as the states."""
        drafted = np.flatnonzero(self.t2d >= 0)
        states = self.last.gather(torch.arange(TYPICAL))
        return embeddings(self.base, self.tokens, matching_scale(embedding_rows(self.base, drafted), states))


def read_material(arguments: Namespace) -> Material:
    base = read_base(references.resolve(arguments.model, Console(stderr=True)).path)
    arguments.work.mkdir(parents=True, exist_ok=True)
    corpus = Corpus(arguments.text, base.n_embd)
    tokens, split = corpus.load_tokens(), dataset.split_texts(corpus.texts)
    d2t = dataset.draft_vocabulary(tokens, split.train, base.n_vocab, VOCABULARY)
    output = torch.from_numpy(output_rows(base, d2t)).to(matmul_dtype(CPU))
    last = FileRows(corpus.open_states(), CPU)
    spans = [*split.train, *{span.start: span for span in (*split.build, *split.score)}.values()]
    teacher = teacher_rows(arguments.work, last, max(span.start + span.length for span in spans), d2t, output)
    t2d = dataset.token_to_draft(d2t, base.n_vocab)
    return Material(base, corpus, tokens, split, spans, t2d, output, last, teacher)


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


class FreshFit(DraftsFit):
    """Weights decay towards those that the heads have now."""

    def __init__(self, plan: FitPlan, heads: Heads, in_pieces: bool) -> None:
        fresh = [weight.detach().clone() for weight in heads.parameters()]
        super().__init__(plan, heads, heads, CPU)
        self.start, self.whole_texts = fresh, in_pieces


def learned(
    name: str, material: Material, fit: DraftsFit, data: DraftRows, checkpoint: Path | None = None
) -> dict[str, Any]:
    """Trains what drafts to the end. Returns its row of the results."""
    begin, steps = time.process_time(), fit.plan.steps
    fit.run(data, checkpoint=checkpoint, on_step=lambda step, loss: told(step, steps, loss))
    seconds = time.process_time() - begin
    found, first = material.judge(fit.drafting, data.source)
    return {"name": name, "steps": steps, "seconds": seconds, "held_out": found, "first_right": first}


def inner_states(material: Material, layers: list[int], work: Path) -> LayerStates:
    """Of all texts, with their prompts; read when they are asked for."""
    whole = whole_texts(material.spans, material.corpus.prompts_by_row(), material.tokens)
    model = native.Model(str(material.base.path), n_gpu_layers=0)
    return LayerStates(work / "inner", whole, layers, material.base.n_embd, model, 1)


def wide_rows(material: Material, layers: list[int], work: Path) -> NDArray[np.float16]:
    """[rows of the corpus, h + layers * h]: the last state, and inner ones of about its size; rows of texts that are
    left out stay zero."""
    hidden, tokens, states = material.base.n_embd, material.tokens, inner_states(material, layers, work)
    whole = states.texts
    rows = np.lib.format.open_memmap(work / "wide.npy", "w+", np.float16, (len(tokens), (1 + len(layers)) * hidden))
    at = 0
    for shard in material.corpus.open_states():
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
    material = read_material(arguments)
    base, output, rows = material.base, material.output, material.last
    if layers:
        rows = FileRows([wide_rows(material, layers, arguments.work)], CPU)
    source = TextRows(rows, material.embeddings(), material.teacher)
    examples = dataset.examples_of(material.tokens, material.split.train, material.t2d, HEADS)
    if arguments.together:
        examples = examples.in_pieces(arguments.together)
    recipe = replace(RECIPES["hydra"], epochs=arguments.epochs)
    steps = int(arguments.epochs * len(examples.rows) / recipe.batch)
    plan = FitPlan("", "hydra", "teacher", HEADS, 0, steps, recipe.batch, "cpu", recipe, len(output))
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        heads = DeepHeads(plan.shape(base.n_embd), len(layers))
    fit = FreshFit(plan, heads, bool(arguments.together))
    add_row(arguments.results, learned(name, material, fit, DraftRows(source, examples, output)))


def options(description: str | None) -> ArgumentParser:
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--table", action="store_true")
    return parser


def show(results: Path, first: str) -> None:
    """first: title of the first column."""
    table = Table(first, "steps", "CPU s", *(f"{nodes} nodes" for nodes in SIZES), "first drafts right")
    for row in read_rows(results):
        figures = [f"{row['held_out'][str(nodes)]:.3f}" for nodes in SIZES]
        right = " / ".join(f"{share:.1%}" for share in row["first_right"])
        table.add_row(row["name"], str(row["steps"]), f"{row['seconds']:.0f}", *figures, right)
    Console(width=110).print(table)


def parser() -> ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--layers", type=int, nargs="*", default=[9, 19])
    parser.add_argument("--together", type=int, default=0)
    return parser


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    ending = f", {arguments.together} rows together" if arguments.together else ""
    wanted: dict[str, list[int]] = {f"last state{ending}": []}
    if arguments.layers:
        wanted[f"with layers {' '.join(map(str, arguments.layers))}{ending}"] = arguments.layers
    if not arguments.table:
        done = {row["name"] for row in read_rows(arguments.results)}
        for name, layers in wanted.items():
            if name not in done:
                train(name, arguments, layers)
    show(arguments.results, "heads see")


if __name__ == "__main__":
    main()
