"""What the benchmark scripts share: prompts, and one model with a drafting and a plain session."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from medusa_cli import models, native, template


def read_prompts(path: Path) -> list[tuple[str, str]]:
    """(category, first user turn) of each line: {"turns": [...]} as in MT-Bench, or {"prompt": ...}."""
    prompts = []
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        prompts.append((row.get("category", "all"), row["turns"][0] if "turns" in row else row["prompt"]))
    return prompts


class Bench:
    """`nodes`: the heads' own static tree is cut to this size, root included."""

    def __init__(self, model: str, heads: Path | None, nodes: int, n_ctx: int = 0) -> None:
        reference = models.resolve(model, Console(stderr=True))
        self.model = native.Model(str(reference.path))
        self.heads = native.Heads(self.model, str(heads or reference.heads or reference.path))
        self.tree = native.Tree(self.heads.tree).clipped(self.heads.head_count, self.heads.output_rows, nodes)
        self.drafting = native.Session(self.model, self.heads, tree=self.tree, n_ctx=n_ctx)
        self.plain = native.Session(self.model, n_ctx=n_ctx)

    def reset(self) -> None:
        """Empties both caches, so that a prompt is decoded the same way whatever came before."""
        self.drafting.reset()
        self.plain.reset()

    def chat_tokens(self, text: str) -> list[int]:
        """The tokens of one user turn in the model's template."""
        rendered = template.render(
            self.model.chat_template,
            [{"role": "user", "content": text}],
            bos_text=self.model.bos_text,
            eos_text=self.model.eos_text,
        )
        return self.model.tokenize(rendered, add_special=False)
