"""How far a jointly trained model is from the one it was trained from, as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from ..backbone.quality import Distance


def distances(by_text: Mapping[str, Distance]) -> Table:
    """One row for each kind of text."""
    table = Table(title="New model against the old one", title_justify="left")
    for name in ("text", "tokens", "KL", "same top token", "perplexity", "before"):
        table.add_column(name, justify="left" if name == "text" else "right")
    for name, found in by_text.items():
        perplexities = (f"{found.perplexity:.3f}", f"{found.base_perplexity:.3f}")
        table.add_row(name, str(found.tokens), f"{found.kl:.4f}", f"{found.top1:.1%}", *perplexities)
    return table
