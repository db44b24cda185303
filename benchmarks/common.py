"""What the benchmark scripts share: a fixed text, models with our kernels and with stock ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from medusa_cli import native
from medusa_cli.decoding import prompts
from medusa_cli.models import references
from medusa_cli.prompts.seeds.passages import PASSAGES

OURS, STOCK = "ours", "stock"
DOCS = sorted((Path(__file__).parents[1] / "docs").rglob("*.md"))
"""More text than fixed_text() has by itself."""


def fixed_text(model: native.Model, count: int, more: Sequence[Path] = ()) -> list[int]:
    """The first `count` tokens of the project's own passages, followed by the files `more`."""
    texts = [*PASSAGES, *(path.read_text("utf-8") for path in more)]
    tokens = model.tokenize("\n\n".join(texts), add_special=True, parse_special=False)
    if len(tokens) < count:
        sys.exit(f"the fixed text has {len(tokens)} tokens, {count} were asked for")
    return tokens[:count]


def in_worker(kernels: str, script: str, *arguments: str) -> Any:
    """What `script` prints as JSON in a process with our kernels (MEDUSA_ISA as given) or the stock ones."""
    environment = {**os.environ, "MEDUSA_ISA": "off"} if kernels == STOCK else None
    result = subprocess.run([sys.executable, script, *arguments], env=environment, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"the process with {kernels} kernels failed")
    return json.loads(result.stdout)


class Bench:
    """`nodes`: the heads' own static tree is cut to this size, root included."""

    def __init__(self, model: str, heads: Path | None, nodes: int, n_ctx: int = 0) -> None:
        reference = references.resolve(model, Console(stderr=True))
        self.model = native.Model(str(reference.path))
        own = reference.heads.path if reference.heads else reference.path
        self.heads = native.Heads(self.model, str(heads or own))
        self.tree = native.Tree(self.heads.tree).clipped(self.heads.head_count, self.heads.output_rows, nodes)
        self.drafting = native.Session(self.model, self.heads, tree=self.tree, n_ctx=n_ctx)
        self.plain = native.Session(self.model, n_ctx=n_ctx)

    def reset(self) -> None:
        """Empties both caches, so that a prompt is decoded the same way whatever came before."""
        self.drafting.reset()
        self.plain.reset()

    def chat_tokens(self, text: str) -> list[int]:
        """The tokens of one user turn in the model's template."""
        return prompts.chat_tokens(self.model, [{"role": "user", "content": text}])
