"""What each source of prompts brought: measured on the text that is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from .corpus import Corpus
from .duplicates import gram_hashes


@dataclass(frozen=True)
class SourceShare:
    """One source. tokens: kept; share: of all kept tokens; texts: answers.

    greedy: share of its tokens decoded at temperature 0; kept: share of the generated tokens that is left after loops
    and duplicates were taken out; duplicates: share taken out as such; distinct: distinct 8-grams / 8-grams. None: not
    recorded (text of an older version).
    """

    source: str
    texts: int
    tokens: int
    share: float
    greedy: float | None
    kept: float | None
    duplicates: float | None
    distinct: float


def source_shares(corpus: Corpus) -> list[SourceShare]:
    """One entry for each source, most tokens first."""
    lengths: dict[str, list[int]] = {}
    greedy: dict[str, int] = {}
    sampled: dict[str, int] = {}
    grams: dict[str, list[NDArray[np.uint64]]] = {}
    for text, tokens in corpus.stored():
        lengths.setdefault(text.source, []).append(text.length)
        grams.setdefault(text.source, []).append(gram_hashes(tokens))
        if text.temperature is not None:
            side = sampled if text.temperature > 0 else greedy
            side[text.source] = side.get(text.source, 0) + text.length
    total = sum(map(sum, lengths.values()))
    generated, duplicates = corpus.state.get("generated", {}), corpus.state.get("duplicates", {})
    rows = []
    for source, parts in lengths.items():
        known, written = greedy.get(source, 0) + sampled.get(source, 0), generated.get(source, 0)
        hashes = np.concatenate(grams[source])
        rows.append(
            SourceShare(
                source,
                texts=len(parts),
                tokens=sum(parts),
                share=sum(parts) / total,
                greedy=greedy.get(source, 0) / known if known else None,
                kept=sum(parts) / written if written else None,
                duplicates=duplicates.get(source, 0) / written if written else None,
                distinct=len(np.unique(hashes)) / len(hashes),
            )
        )
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def as_json(rows: Sequence[SourceShare]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def as_table(rows: Sequence[SourceShare]) -> Table:
    """For people."""
    names = ("source", "answers", "tokens", "share", "greedy", "kept", "duplicates", "distinct 8-grams")
    table = Table(title="Text by source of its prompt", title_justify="left")
    for name in names:
        table.add_column(name, justify="left" if name == "source" else "right")
    for row in rows:
        shares = (row.share, row.greedy, row.kept, row.duplicates, row.distinct)
        shown = ("-" if share is None else f"{share:.1%}" for share in shares)
        table.add_row(row.source, str(row.texts), str(row.tokens), *shown)
    return table
