"""What a training run came to, and what it says to the person who started it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from medusa_cli.models.base_file import BaseModel
from medusa_cli.support.errors import MedusaError

from ..heads.recipe import TEACHER_BYTES
from ..options import TrainOptions
from ..streams.recipe import STREAMS
from ..text.corpus import Corpus

if TYPE_CHECKING:
    from ..heads.fit import CurvePoint

GIB = 1 << 30
EVALUATION_NODES = 8
"""Size of the tree whose held-out tokens per step training maximises."""


@dataclass(frozen=True)
class TrainResult:
    """What came out. tokens: trained on. accuracy [head][rank] and tree (choice paths) as written to the file.

    predicted: tokens per step as the accuracies tell; measured: walked over held-out text that they were not taken
    from. acceptance: share of steps that accepted at least 1, 2, .. drafted tokens there. by_size: as measured, for the
    best trees of other sizes (root included).
    """

    output: Path
    tokens: int
    accuracy: list[list[float]]
    tree: list[tuple[int, ...]]
    predicted: float
    measured: float
    acceptance: list[float]
    by_size: dict[int, float]


def announce(options: TrainOptions, base: BaseModel, corpus: Corpus) -> None:
    """Says what will be used; MedusaError when a known need exceeds the free space."""
    console, free = options.console, shutil.disk_usage(corpus.folder).free
    teacher = TEACHER_BYTES * options.teacher_top if options.keeps_teacher else 0
    what = "Text, hidden states and teacher" if teacher else "Text and hidden states"
    drafts = STREAMS if options.kind == STREAMS else f"{options.kind} heads"
    say(console, f"Base: {base.name} ({base.fingerprint}), {options.heads} {drafts}")
    if corpus.tokens:
        say(console, f"Continuing with {corpus.tokens} tokens from an earlier run.")
    where = f"{corpus.folder} ({free / GIB:.1f} GiB free)"
    if options.tokens is None:
        million = (corpus.bytes_per_token + teacher) * 1e6
        say(console, f"{what}: {million / GIB:.2f} GiB per million tokens in {where}")
        return
    needed = max(0, options.tokens - corpus.tokens) * corpus.bytes_per_token + options.tokens * teacher
    say(console, f"{what}: {needed / GIB:.2f} GiB in {where}")
    if needed > free:
        raise MedusaError(
            f"{corpus.folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} GiB are free: use --work-dir"
        )


def say(console: Console, text: str) -> None:
    """One line as it is: paths are neither wrapped nor read as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def say_best(console: Console, best: CurvePoint, steps: int, planned: int) -> None:
    when = "" if steps == planned else f"; stopped after {steps} of {planned} steps without a better one"
    say(
        console,
        f"Best at step {best.step}: {best.tokens_per_step:.3f} tokens per step on held-out text "
        f"with {EVALUATION_NODES} nodes{when}",
    )


def report(console: Console, result: TrainResult, written: list[Path]) -> None:
    table = Table(
        "head", "rank 1", "rank 2", "rank 3", "first 10", title="Accuracy on held-out text", title_justify="left"
    )
    for head, row in enumerate(result.accuracy, 1):
        table.add_row(str(head), *(f"{value:.1%}" for value in row[:3]), f"{sum(row):.1%}")
    console.print(table)
    size = result.output.stat().st_size / (1 << 20)
    say(
        console,
        f"Tree: {len(result.tree) + 1} nodes; {result.predicted:.2f} tokens per step predicted, "
        f"{result.measured:.2f} measured on other held-out text",
    )
    sizes = ", ".join(f"{value:.2f} with {nodes}" for nodes, value in result.by_size.items())
    say(console, f"Tokens per step of the best trees by nodes: {sizes}")
    say(console, f"Wrote {result.output} ({size:.1f} MiB), trained on {result.tokens} tokens")
    say(console, f"Wrote {', '.join(map(str, written))}")
