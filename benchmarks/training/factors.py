"""What makes Hydra heads learn more? One factor at a time, on the same text in the same order.

    medusa train MODEL --kind hydra -o any.gguf --sidecar --recipe RECIPE       # tokens, seed, work_dir = "WORK"
    python benchmarks/training/factors.py MODEL --text WORK/*/text --work FOLDER --results FILE
        [--factors NAME ...] [--epochs 2]
    python benchmarks/training/factors.py MODEL --results FILE --table

FACTORS says what each of them is. inner_states.py says how trees are judged. "overlap" is the sum of min(p, q) over the
tokens of a draft vocabulary, at temperature 1: how often rejection sampling would keep a draft of each level. A row
that FILE has is not trained again.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from inner_states import HEADS, FreshFit, Material, learned, options, read_material
from rich.console import Console
from rich.table import Table
from streams import SIZES, add_row, read_rows
from torch import Tensor, nn
from torch.nn import functional

from medusa_cli.training.heads.fit import FitPlan
from medusa_cli.training.heads.layers import HeadInputs, Heads, HeadShape
from medusa_cli.training.heads.loss import Likeliest
from medusa_cli.training.heads.rows import DraftRows, TextRows, teacher_rows
from medusa_cli.training.loop import BatchOrder, Picked, text_batches
from medusa_cli.training.recipes import RECIPES, TEACHER_TOP
from medusa_cli.training.text import dataset

STEEPNESS = 3.0
"""How fast the weight of the cross entropy falls as the overlap grows, in the mixture of 2602.23881."""
OVERLAP_ROWS, WRONG_ROWS = 4096, 1024


@dataclass(frozen=True)
class Factor:
    """One change. loss: the cross entropy of the teacher; "mixed": w of it and 1 - w of the total variation, where w is
    exp(-3 * overlap) of each level (LK, 2602.23881); "variation": 0.1 and 0.9 (2607.05147). all_rows: those whose token
    has no draft row learn, too. pairs: rank of a matrix from the last token's embedding to the logits. again: after the
    first round, rows whose first draft was wrong at the end of the round before come so many times as often."""

    loss: Literal["cross entropy", "mixed", "variation"] = "cross entropy"
    top: int = TEACHER_TOP
    all_rows: bool = False
    pairs: int = 0
    again: int = 1
    own: bool = False
    decay: float = 0.5
    depth_weight: float = 0.8


FACTORS = {
    "as usual": Factor(),
    "the teacher's 256 likeliest tokens": Factor(top=256),
    "all rows": Factor(all_rows=True),
    "no decay": Factor(decay=0.0),
    "levels weighed by reach": Factor(depth_weight=0.55),
    "cross entropy and total variation, mixed by overlap": Factor(loss="mixed"),
    "0.1 cross entropy, 0.9 total variation": Factor(loss="variation"),
    "pairs of tokens, rank 128": Factor(pairs=128),
    "own output rows": Factor(own=True),
    "wrong first drafts twice as often": Factor(again=2),
}


class PairedHeads(Heads):
    """Hydra heads whose logits also come straight from the embedding of the last token they see, through one matrix of
    low rank for all heads."""

    def __init__(self, shape: HeadShape, rank: int, rows: int) -> None:
        super().__init__(shape)
        self.down = nn.Parameter(torch.randn(rank, shape.hidden) * shape.hidden**-0.5)
        self.up = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, inputs: HeadInputs, dtype: torch.dtype = torch.float32) -> Tensor:
        assert inputs.embedded is not None
        last = functional.linear(inputs.embedded.transpose(0, 1).to(dtype), self.down.to(dtype))
        return torch.cat((super().forward(inputs, dtype), last.float()), dim=2)

    def output(self, shared: Tensor) -> Tensor:
        return torch.cat((shared, self.up.to(shared.dtype)), dim=1)


class Drawn(BatchOrder):
    """Rows drawn by their odds [N], with replacement."""

    def __init__(self, order: BatchOrder, odds: Tensor) -> None:
        super().__init__(order.examples, order.batch, order.seed, whole_texts=False)
        self.odds = odds

    def pick(self, step: int) -> Picked:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return Picked(torch.multinomial(self.odds, self.batch, replacement=True, generator=generator), None)


class FactorFit(FreshFit):
    def __init__(self, plan: FitPlan, heads: Heads, factor: Factor) -> None:
        super().__init__(plan, heads, in_pieces=False)
        self.factor = factor
        self.drawn: BatchOrder | None = None

    def _learn(self, data: DraftRows, order: BatchOrder) -> Tensor:
        if self.factor.again > 1 and self.step and self.step % order.per_epoch == 0:
            self.drawn = Drawn(order, 1 + (self.factor.again - 1) * self._is_wrong(data).float())
        return super()._learn(data, self.drawn or order)

    @torch.no_grad()
    def _is_wrong(self, data: DraftRows) -> Tensor:
        """[N] whether the first draft is another token than the text's."""
        found = []
        for index in torch.arange(len(data.examples.rows)).split(WRONG_ROWS):
            picked = Picked(index, None)
            z = self.drafting(data.source.inputs(data.rows(picked), HEADS), data.output.dtype)
            drafts = (z[0].to(data.output.dtype) @ data.output.T).argmax(dim=1)
            found.append(drafts != data.wanted(picked)[:, 0])
        return torch.cat(found)

    def _loss(self, data: DraftRows, picked: Picked) -> Tensor:
        if self.factor.loss == "cross entropy":
            return super()._loss(data, picked)
        rows = data.rows(picked)
        z = self.drafting(data.source.inputs(rows, HEADS), data.output.dtype)
        taught, wanted = data.source.taught(rows, HEADS), data.wanted(picked)
        assert isinstance(taught, Likeliest)
        total = torch.zeros(())
        for level in range(HEADS):
            present = (wanted[:, level] >= 0).float()
            share = present / present.sum().clamp(min=1)
            logq = torch.log_softmax((z[level].to(data.output.dtype) @ data.output.T).float(), dim=1)
            chosen, p = logq.gather(1, taught.ids[:, level]), taught.p[:, level]
            overlap = (torch.minimum(chosen.exp(), p).sum(dim=1) * share).sum()
            entropy = -((chosen * p).sum(dim=1) * share).sum()
            weight = 0.1 if self.factor.loss == "variation" else float(torch.exp(-STEEPNESS * overlap.detach()))
            total = total + self.factor.depth_weight ** (level + 1) * (weight * entropy - (1 - weight) * overlap)
        return total


@torch.no_grad()
def overlaps(material: Material, heads: Heads, source: TextRows) -> list[float]:
    """Of each level, over held-out rows; the teacher's tokens are as many as usual."""
    examples = dataset.examples_of(material.tokens, material.split.score, material.t2d, HEADS)
    data = DraftRows(replace(source, teacher=material.teacher), examples, material.output)
    sums, counts = np.zeros(HEADS), np.zeros(HEADS)
    for picked in text_batches(examples, 512):
        if counts[0] > OVERLAP_ROWS:
            break
        rows = data.rows(picked)
        z, taught = heads(source.inputs(rows, HEADS), material.output.dtype), data.source.taught(rows, HEADS)
        assert isinstance(taught, Likeliest)
        outputs, wanted = heads.output(material.output), data.wanted(picked)
        for level in range(HEADS):
            matrix = outputs[level] if outputs.ndim == 3 else outputs
            q = torch.softmax((z[level].to(matrix.dtype) @ matrix.T).float(), dim=1).gather(1, taught.ids[:, level])
            present = wanted[:, level] >= 0
            sums[level] += float(torch.minimum(q, taught.p[:, level]).sum(dim=1)[present].sum())
            counts[level] += int(present.sum())
    return [float(share) for share in sums / counts]


def train(name: str, arguments: Namespace) -> None:
    factor, material = FACTORS[name], read_material(arguments)
    base, output, teacher = material.base, material.output, material.teacher
    if factor.top != TEACHER_TOP:
        rows = int(teacher[0].ends[-1])
        d2t = dataset.draft_vocabulary(material.tokens, material.split.train, base.n_vocab, len(output))
        folder = arguments.work / f"top{factor.top}"
        folder.mkdir(exist_ok=True)
        teacher = teacher_rows(folder, material.last, rows, d2t, output, most=factor.top)
    source = TextRows(material.last, material.embeddings(), teacher)
    t2d = np.maximum(material.t2d, 0) if factor.all_rows else material.t2d
    examples = dataset.examples_of(material.tokens, material.split.train, t2d, HEADS)
    recipe = replace(
        RECIPES["hydra"],
        epochs=arguments.epochs,
        decay=factor.decay,
        depth_weight=factor.depth_weight,
        lm_head="own" if factor.own else "base",
    )
    steps = int(arguments.epochs * len(examples.rows) / recipe.batch)
    plan = FitPlan("", "hydra", "teacher", HEADS, 0, steps, recipe.batch, "cpu", recipe, len(output))
    with torch.random.fork_rng():
        torch.manual_seed(plan.seed)
        shape = plan.shape(base.n_embd)
        heads = PairedHeads(shape, factor.pairs, len(output)) if factor.pairs else Heads(shape)
    if heads.outputs is not None:
        with torch.no_grad():
            heads.outputs.copy_(output.expand_as(heads.outputs))
    made = learned(name, material, FactorFit(plan, heads, factor), DraftRows(source, examples, output))
    add_row(arguments.results, {**made, "overlap": overlaps(material, heads, source)})


def parser() -> ArgumentParser:
    parser = options(__doc__)
    parser.add_argument("--factors", nargs="+", choices=FACTORS, default=list(FACTORS))
    return parser


def main() -> None:
    arguments = parser().parse_args()
    torch.set_num_threads(1)
    if not arguments.table:
        done = {row["name"] for row in read_rows(arguments.results)}
        for name in arguments.factors:
            if name not in done:
                train(name, arguments)
    table = Table("Hydra heads", "CPU s", *(f"{nodes} nodes" for nodes in SIZES), "first drafts right", "overlap")
    for row in read_rows(arguments.results):
        figures = [f"{row['held_out'][str(nodes)]:.3f}" for nodes in SIZES]
        shares = [" / ".join(f"{share:.1%}" for share in row[key]) for key in ("first_right", "overlap")]
        table.add_row(row["name"], f"{row['seconds']:.0f}", *figures, *shares)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
