"""Medusa-2 beside Medusa-1: model and heads trained together, and heads alone on as many positions of the same text.

    python benchmarks/training/both.py MODEL --recipe docs/measurements/medusa-2.toml --data question.jsonl

--data: questions that compare the two, as in tokens_per_step.py. --n-gpu-layers -1: on a GPU. --folder keeps what is
done; the same command again goes on from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))
import common
from tokens_per_step import Heads

from medusa_cli.support.children import child
from medusa_cli.training.options import read_recipe


@dataclass
class Both:
    model: str
    _: KW_ONLY
    recipe: Path
    data: Path
    folder: Path = Path("both")
    kind: str = "medusa"
    n_gpu_layers: int = 0
    threads: int = 1
    nodes: tuple[int, ...] = (4, 8, 16)
    max_tokens: int = 256
    limit: int | None = None

    def run(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        keys = read_recipe(self.recipe).values
        record = self._trained("together", "--joint", keys)
        of_heads, plan = record["training"]["positions"], record["joint"]["plan"]
        of_both = plan["steps"] * plan["recipe"]["batch"]
        alone = {key: value for key, value in keys.items() if not key.startswith("joint_")}
        self._trained("alone", "--sidecar", {**alone, "epochs": (of_heads + of_both) / record["text"]["trained_on"]})
        common.show(f"{of_heads:,} positions for the heads, then {of_both:,} for both; heads alone: as many in all")
        self._measure(str(self.folder / "together.gguf"), ())
        self._measure(self.model, (self.folder / "alone.gguf",))

    def _trained(self, name: str, how: str, keys: dict[str, Any]) -> dict[str, Any]:
        """The record of a training, which is done if there is none."""
        output, recipe = self.folder / f"{name}.gguf", self.folder / f"{name}.json"
        if not output.exists():
            recipe.write_text(json.dumps({**keys, "work_dir": str(self.folder / "work")}), "utf-8")
            options = ["--kind", self.kind, how, "--recipe", recipe, "-o", output]
            options += ["-t", self.threads, "-ngl", self.n_gpu_layers]
            subprocess.run(child("medusa_cli.cli", "train", self.model, *map(str, options)), check=True)
        record: dict[str, Any] = json.loads(output.with_suffix(".train.json").read_text("utf-8"))
        return record

    def _measure(self, model: str, heads: tuple[Path, ...]) -> None:
        Heads(
            data=self.data, heads=heads, model=model, nodes=self.nodes, rules="greedy", max_tokens=self.max_tokens,
            limit=self.limit,
        ).run()  # fmt: skip


def parser() -> ArgumentParser:
    return common.parser(__doc__, Both)


if __name__ == "__main__":
    common.main(parser())
