"""Kinds of heads that had the same text and the same CPU time to train: tokens per step on held-out text.

    python benchmarks/head_kinds.py [MODEL] --recipes A.toml B.toml ... [--cpu-minutes 2] [--tokens 148000] [--seed 1]
           [--draft-vocab 8192] --work-dir DIR --output DIR [--json FILE]

Each recipe (docs/recipes.md) is `medusa train MODEL --recipe FILE -t 1`, but for the number of steps: a few steps on
the real data say what one costs in CPU time, and as many are planned as the time allows. Text in --work-dir is used
again. Heads go to --output, by the recipes' names; benchmarks/tokens_per_step.py takes them from there.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from medusa_cli.models import references
from medusa_cli.support.progress import phase
from medusa_cli.training import train
from medusa_cli.training.heads.fit import Fit, FitPlan
from medusa_cli.training.options import TrainOptions
from medusa_cli.training.phases import fitting
from medusa_cli.training.recipe_file import ALL, read_recipe

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
        run = {"source": source, "examples": examples, "output": vocabulary.fast_output}
        trial.run(**run, should_stop=lambda: trial.step >= 1)
        begin = time.process_time()
        trial.run(**run, should_stop=lambda: trial.step >= 1 + TRIAL_STEPS)
        step = (time.process_time() - begin) / TRIAL_STEPS
        self.steps = max(1, int(self.seconds / (step * EVALUATIONS)))
        self.positions = self.steps * plan.batch
        begin = time.process_time()
        fitted = self._fit_heads(setup, data, vocabulary, source, examples, replace(plan, steps=self.steps))
        self.spent = time.process_time() - begin
        return fitted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--recipes", type=Path, nargs="+", required=True)
    parser.add_argument("--cpu-minutes", type=float, default=2.0)
    parser.add_argument("--tokens", type=int, default=148000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draft-vocab", type=int, default=8192)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    model = references.resolve(arguments.model, console).path
    rows = []
    for recipe in arguments.recipes:
        file = read_recipe(recipe)
        budget = CpuBudget(60 * arguments.cpu_minutes)
        fitting.fit_heads = budget
        said = file.option("draft_vocab", arguments.draft_vocab)
        given = {key: file.values[key] for key in ("kind", "heads", "objective") if key in file.values}
        options = TrainOptions(
            model=model,
            output=arguments.output / f"{recipe.stem}.gguf",
            sidecar=True,
            tokens=arguments.tokens,
            seed=arguments.seed,
            threads=1,
            draft_vocab=None if said == ALL else said,
            whole_vocabulary=said == ALL,
            file=file,
            work_dir=arguments.work_dir,
            console=console,
            **given,
        )
        with phase(console, recipe.stem, "recipes"):
            result = train.run(options)
        fitting.fit_heads = budget._fit_heads
        rows.append(Row(recipe.stem, budget.steps, budget.positions, budget.spent / 60, result.by_size))
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    table = Table(
        "recipe", "steps", "positions", "CPU minutes", *(f"{nodes} nodes" for nodes in rows[0].tokens_per_step)
    )
    for row in rows:
        sizes = (f"{value:.3f}" for value in row.tokens_per_step.values())
        table.add_row(row.recipe, str(row.steps), f"{row.positions:,}", f"{row.cpu_minutes:.2f}", *sizes)
    Console().print(table)


if __name__ == "__main__":
    main()
