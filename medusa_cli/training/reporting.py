"""The results of a training run: told to the person who started it, and written as OUTPUT.train.json, with
OUTPUT.train.png if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from medusa_cli.models.base_file import BaseModel
from medusa_cli.support import plots
from medusa_cli.support.atomic import atomic_file
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.tables import Table, print_table

from .options import TrainOptions
from .recipes import MTP, STREAMS, TEACHER_BYTES
from .text.corpus import Corpus

if TYPE_CHECKING:
    from .backbone.quality import Distance

FORMAT = 1
GIB = 1 << 30
EVALUATION_NODES = 8
"""Size of the tree whose held-out tokens per step training maximises."""


@dataclass(frozen=True)
class TrainResult:
    """The result. tokens: trained on. accuracy [head][rank] and tree (choice paths) as written to the file.

    predicted: tokens per step by the accuracies; measured: walked over held-out text that they were not taken from.
    acceptance: share of steps that accepted at least 1, 2, .. drafted tokens there. by_size: like measured, for the
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
    drafts = {STREAMS: STREAMS, MTP: "tokens in a row from its MTP layer"}.get(options.kind, f"{options.kind} heads")
    say(console, f"Base: {base.name} ({base.fingerprint}), {options.heads} {drafts}")
    if options.answers == "given":
        say(console, f"Learning the answers in {options.data}, not the model's own")
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
            f"{corpus.folder}: {needed / GIB:.1f} GiB are needed, {free / GIB:.1f} are free: set work_dir in a recipe"
        )


def say(console: Console, text: str) -> None:
    """Prints one line as it is: paths are neither wrapped nor read as markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class TunedResult(TrainResult):
    """An MTP layer. before: by_size of the layer as it was; acceptance_before: the same; is_new: it was changed."""

    before: dict[int, float]
    acceptance_before: list[float]
    is_new: bool


def report_tuned(console: Console, result: TunedResult, written: list[Path]) -> None:
    """before and by_size have the chains of one draft, two, and so on, in this order."""
    accepted = zip(result.acceptance_before, result.acceptance, strict=True)
    steps = zip(result.before.values(), result.by_size.values(), strict=True)
    lines = [
        (str(depth), *(f"{share:.1%}" for share in shares), *(f"{value:.2f}" for value in tokens))
        for depth, (shares, tokens) in enumerate(zip(accepted, steps, strict=True), 1)
    ]
    headers = ("drafts", "all right before", "after", "tokens per step before", "after")
    print_table(Table("Held-out text, before tuning and after it", headers, lines), console)
    if not result.is_new:
        say(console, f"Nothing was better than the layer as it was: {result.output} has it unchanged")
    elif result.measured <= result.before[len(result.tree) + 1]:
        say(console, "On this text, which tuning did not see, nothing is better: keep the layer as it was")
    size = result.output.stat().st_size / (1 << 20)
    say(console, f"Wrote {result.output} ({size:.1f} MiB), trained on {result.tokens} tokens")
    say(console, f"Wrote {', '.join(map(str, written))}")


def report(console: Console, result: TrainResult, written: list[Path]) -> None:
    lines = [
        (str(head), *(f"{value:.1%}" for value in row[:3]), f"{sum(row):.1%}")
        for head, row in enumerate(result.accuracy, 1)
    ]
    print_table(Table("Accuracy on held-out text", ("head", "rank 1", "rank 2", "rank 3", "first 10"), lines), console)
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


def distances(by_text: Mapping[str, Distance]) -> Table:
    """How far a trained base is from what it was: one row for each kind of text."""
    lines = []
    for name, found in by_text.items():
        perplexities = (f"{found.perplexity:.3f}", f"{found.base_perplexity:.3f}")
        lines.append((name, f"{found.tokens:,}", f"{found.kl:.4f}", f"{found.top1:.1%}", *perplexities))
    headers = ("text", "tokens", "KL", "same top token", "perplexity", "before")
    return Table("New model against the old one", headers, lines)


# --- on paper --------------------------------------------------------------------------------------


def write_record(document: dict[str, Any], output: Path) -> list[Path]:
    """Writes the JSON file and, with matplotlib, the picture beside the output, each whole or not at all."""
    text, picture = output.with_suffix(".train.json"), output.with_suffix(".train.png")
    with atomic_file(text) as file:
        file.write((json.dumps({"format": FORMAT, **document}, indent=1, allow_nan=False) + "\n").encode())
    if importlib.util.find_spec("matplotlib") is None:
        return [text]
    sizes = ", ".join(f"{value:.2f} with {nodes}" for nodes, value in document["tokens_per_step"].items())
    kind = document["options"]["kind"]
    drafts = {STREAMS: STREAMS, MTP: "MTP layer"}.get(kind, f"{kind} heads")
    title = f"{document['model']['name']}, {drafts}: tokens per step {sizes} nodes"
    with plots.panels(picture, title, dpi=120) as (left, right):
        _draw(document, left, right)
    return [text, picture]


def _draw(document: dict[str, Any], left: Any, right: Any) -> None:
    """Draws loss and held-out tokens per step over positions, and accuracy by head and rank."""
    curve = document["training"]["curve"]
    left.plot([point["positions"] for point in curve], [point["loss"] for point in curve], color="tab:gray")
    left.set_xlabel("positions trained on")
    left.set_ylabel("loss (gray)")
    measured = [point for point in curve if point["tokens_per_step"] is not None]
    twin = left.twinx()
    twin.plot(
        [point["positions"] for point in measured],
        [point["tokens_per_step"] for point in measured],
        marker="o",
        color="tab:blue",
    )
    twin.set_ylabel(f"held-out tokens per step, {document['training']['evaluation_nodes']} nodes (blue)")
    for head, row in enumerate(document["accuracy"], 1):
        right.plot(range(1, len(row) + 1), row, marker=".", label=f"head {head}")
    right.set_xlabel("rank")
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_ylabel("accuracy on held-out text")
    right.set_ylim(bottom=0)
    right.legend()
