"""Streams that learn a task with their base (Speculative Streaming 4), with and without equation 1, in one pass.

    python benchmarks/queries.py make FOLDER
    python benchmarks/training/stream_task.py MODEL --text WORK/*/text --data FOLDER/test.jsonl --work FOLDER
        --results FILE [--steps 450] [--layers 4] [--heads 4] [--questions 300] [--seed 0] [--only NAME ...]
    python benchmarks/training/stream_task.py MODEL --results FILE --table [--pass-ms 1:2.99 4:4.28 ...]

--text: of a training with `--answers given` from FOLDER/train.jsonl. Each row trains the same layers with the same
adapters, steps and texts. The new models' greedy answers come from one_pass.py, with trees of 8 nodes that held-out
text of the training chose; an answer is right as in queries.py.

--pass-ms: as of stream_mutual.py. Where all passes take the same time (1:1 99:1), as on a GPU in its limit, only their
number counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from one_pass import OnePass
from rich.console import Console
from rich.table import Table
from stream_mutual import MutualStreams, column_ms, row_options, shares, step_ms
from streams import (
    Material,
    Trained,
    add_row,
    fitted,
    options,
    read_data,
    read_material,
    read_rows,
    top_layers,
    trained_row,
    with_base,
)

from medusa_cli import native
from medusa_cli.decoding.tree_search import Choice, accuracy_table, greedy_tree
from medusa_cli.models import references
from medusa_cli.prompts.prompt_files import read_records
from medusa_cli.training.recipes import SHARED_RECIPES, SharedTask
from medusa_cli.training.streams.fit import StreamsPlan
from medusa_cli.training.streams.layers import Streams
from medusa_cli.training.text.given import rows_of

sys.path.append(str(Path(__file__).parents[1]))
from queries import mcnemar, normalized

NODES, LONGEST = 8, 80


@dataclass(frozen=True)
class Row:
    """One training. weight: of the streams' loss; mutual: the base reads its own streams."""

    name: str
    weight: float
    mutual: bool


ROWS = (
    Row("layers alone", 0.0, mutual=False),
    Row("streams", 0.1, mutual=False),
    Row("streams, equation 1", 0.1, mutual=True),
)
Asked = list[tuple[list[int], list[int], str]]
"""Questions: prompt, the given answer as tokens and as text."""


def read_questions(model: native.Model, path: Path, count: int) -> Asked:
    found: Asked = []
    for _, record in list(read_records(path))[:count]:
        prompt, answer = rows_of(model, [{"role": "user", "content": record["prompt"]}], record["completion"])
        found.append((prompt, answer, record["completion"]))
    return found


def train(row: Row, material: Material, arguments: argparse.Namespace) -> Trained:
    top = top_layers(material.base, arguments.layers)
    recipe = replace(SHARED_RECIPES["truth"], root_rank=0, shared=SharedTask(distils=False, weight=row.weight))
    seed, steps = arguments.seed, arguments.steps
    plan = StreamsPlan("", "truth", arguments.heads, top.first, seed, steps, recipe.batch, "cpu", recipe)
    data = read_data(material, arguments, top)
    kind = MutualStreams if row.mutual else Streams
    return fitted(material, data, with_base(data["train"], material), plan, top, kind)


def answers(row: Row, material: Material, trained: Trained, tree: Sequence[Choice], asked: Asked) -> dict[str, Any]:
    """What the new model says."""
    whole, d2t = top_layers(material.base), torch.from_numpy(material.d2t).long()
    texts, tokens, steps, begin = list[str](), 0, 0, time.process_time()
    for prompt, _, _ in asked:
        one = OnePass(whole, trained.top.first, trained.streams, d2t, row.mutual)
        said = one.answer(prompt, tree, LONGEST, material.model.is_eog)
        tokens, steps = tokens + len(said.tokens) - 1, steps + said.steps
        texts.append(material.model.detokenize([token for token in said.tokens if not material.model.is_eog(token)]))
    right = [normalized(text) == normalized(wanted) for text, (_, _, wanted) in zip(texts, asked, strict=True)]
    return {
        "right": right,
        "texts": texts,
        "tokens_per_step": tokens / max(1, steps),
        "answer_seconds": time.process_time() - begin,
    }


def parser() -> argparse.ArgumentParser:
    parser = row_options(options(__doc__, seconds=0, tokens=60000), [row.name for row in ROWS])
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main() -> None:
    arguments = parser().parse_args()
    done = {row["name"]: row for row in read_rows(arguments.results)}
    if arguments.table:
        show(list(done.values()))
        show_speeds(list(done.values()), dict(arguments.pass_ms))
        return
    torch.set_num_threads(1)
    path = references.resolve(arguments.model, Console(stderr=True)).path
    arguments.work.mkdir(parents=True, exist_ok=True)
    asked = read_questions(native.Model(str(path), n_gpu_layers=0), arguments.data, arguments.questions)
    material = read_material(path, arguments, [(prompt, answer) for prompt, answer, _ in asked], taught=False)
    for row in ROWS:
        if row.name in arguments.only and row.name not in done:
            trained = train(row, material, arguments)
            torch.save(trained.streams.state_dict(), arguments.work / f"{row.name}.pt")
            ranks = trained.ranks()
            made = trained_row(row.name, arguments, trained, ranks)
            made |= answers(row, material, trained, greedy_tree(accuracy_table(ranks[0]), NODES), asked)
            made["shares"] = shares(material, trained.top)
            add_row(arguments.results, made)
            show([made])


def show(rows: list[dict[str, Any]]) -> None:
    """Compared with the first row by McNemar's test."""
    names = ("positions", "CPU s", "held-out text, 4 / 8 / 16", "right", "gained / lost", "p", "tokens per step")
    table = Table("", *names)
    first = rows[0]["right"]
    for row in rows:
        gained, lost = (
            sum(a is which and b is not which for a, b in zip(row["right"], first, strict=True))
            for which in (True, False)
        )
        walked = " / ".join(f"{value:.2f}" for value in row["held_out"].values())
        share = f"{sum(row['right'])} of {len(row['right'])}"
        found = (f"{gained} / {lost}", f"{mcnemar(gained, lost):.2f}", f"{row['tokens_per_step']:.2f}")
        table.add_row(row["name"], f"{row['positions']:,}", f"{row['train_seconds']:.0f}", walked, share, *found)
    Console(width=130).print(table)


def show_speeds(rows: list[dict[str, Any]], pass_ms: dict[int, float]) -> None:
    """Predicted, as multiples of plain decoding. Under equation 1 the streams are always in the same pass."""
    table = Table("times plain", "streams in the same pass", "in a second one")
    whole = {"nodes": NODES, "cut": 0.0, "threshold": 0.0}
    drafting = {row.name: row for row in ROWS if row.weight}
    for row in rows if pass_ms else ():
        if row["name"] in drafting:
            passes = (row["heads"], 0)[: 1 if drafting[row["name"]].mutual else 2]
            steps = (step_ms(row["shares"], pass_ms, whole, beside, row["heads"]) for beside in passes)
            speeds = (row["tokens_per_step"] * column_ms(pass_ms, 1) / step for step in steps)
            table.add_row(row["name"], *(f"{speed:.2f}" for speed in speeds))
    if table.row_count:
        Console(width=80).print(table)


if __name__ == "__main__":
    main()
