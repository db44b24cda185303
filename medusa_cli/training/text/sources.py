"""What training text repeats: finds texts that say what an earlier one said by sketches of their 8-gram sets, in
little memory. And what each source of prompts brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medusa_cli.decoding.loops import GRAM
from medusa_cli.support.tables import MISSING, Table

from .corpus import Corpus, Text

SKETCH = 128
"""Hashes kept of a text: the smallest ones, so that equal texts keep equal ones. With a quarter as many, a text of 300
tokens with one changed was taken for a different one in 4 of 6000 tries."""
SIMILAR = 0.8
"""Two texts count as one from this share of common 8-grams on."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def gram_hashes(tokens: Sequence[int] | NDArray[np.integer], gram: int = GRAM) -> NDArray[np.uint64]:
    """[len(tokens) - gram + 1]: one hash per n-gram; a shorter text has a single hash."""
    values = np.asarray(tokens).astype(np.uint64)
    count = max(1, len(values) - gram + 1)
    hashes = np.zeros(count, np.uint64)
    for at in range(min(gram, len(values))):
        hashes = hashes * _FACTOR + values[at : at + count] + np.uint64(1)
        # Spreads every bit over all of them: otherwise small numbers would stay the smallest.
        hashes = (hashes ^ (hashes >> np.uint64(31))) * _FACTOR
        hashes ^= hashes >> np.uint64(29)
    return hashes


def sketch(tokens: Sequence[int] | NDArray[np.integer]) -> list[int]:
    """The SKETCH smallest distinct hashes of a text's 8-grams (fewer for a short text)."""
    return np.unique(gram_hashes(tokens))[:SKETCH].tolist()


class KnownTexts:
    """Sketches of all texts so far."""

    def __init__(self, texts: Iterable[NDArray[np.integer]] = ()) -> None:
        self._sketches: list[frozenset[int]] = []
        self._holders: dict[int, list[int]] = {}
        for tokens in texts:
            self.add(tokens)

    def add(self, tokens: Sequence[int] | NDArray[np.integer]) -> bool:
        """True if an earlier text is (nearly) the same; else the text is known from now on."""
        ordered = sketch(tokens)
        mine = frozenset(ordered)
        common = Counter(holder for value in ordered for holder in self._holders.get(value, ()))
        for holder, _ in common.most_common(3):
            theirs = self._sketches[holder]
            # Broder's bottom-k estimate of the share of 8-grams in both texts among those in either.
            smallest = sorted(mine | theirs)[: min(SKETCH, max(len(mine), len(theirs)))]
            if sum(value in mine and value in theirs for value in smallest) / len(smallest) >= SIMILAR:
                return True
        for value in mine:
            self._holders.setdefault(value, []).append(len(self._sketches))
        self._sketches.append(mine)
        return False


# --- by source -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SourceShare:
    """One source. tokens: kept; share: of all kept tokens; texts: answers.

    greedy: share of its tokens decoded at temperature 0; kept: share of the generated tokens left after loops and
    duplicates were removed; duplicates: share removed as such; distinct: distinct 8-grams / 8-grams. None: not recorded
    (text from an older version).
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
    texts: dict[str, list[Text]] = {}
    grams: dict[str, list[NDArray[np.uint64]]] = {}
    for text, tokens in corpus.stored():
        texts.setdefault(text.source, []).append(text)
        grams.setdefault(text.source, []).append(gram_hashes(tokens))
    generated, duplicates = corpus.state.get("generated", {}), corpus.state.get("duplicates", {})
    total, rows = sum(text.length for text in corpus.texts), []
    for source, mine in texts.items():
        left, written = sum(text.length for text in mine), generated.get(source, 0)
        known = sum(text.length for text in mine if text.temperature is not None)
        greedy = sum(text.length for text in mine if text.temperature is not None and text.temperature <= 0)
        hashes = np.concatenate(grams[source])
        rows.append(
            SourceShare(
                source,
                texts=len(mine),
                tokens=left,
                share=left / total,
                greedy=greedy / known if known else None,
                kept=left / written if written else None,
                duplicates=duplicates.get(source, 0) / written if written else None,
                distinct=len(np.unique(hashes)) / len(hashes),
            )
        )
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def as_json(rows: Sequence[SourceShare]) -> list[dict[str, Any]]:
    return [asdict(row) for row in rows]


def as_table(rows: Sequence[SourceShare]) -> Table:
    """A table for people."""
    headers = ("source", "tokens", "share", "greedy", "kept", "duplicates", "distinct")
    lines = []
    for row in rows:
        of_these = (row.greedy, row.kept, row.duplicates, row.distinct)
        shown = (MISSING if share is None else f"{share:.0%}" for share in of_these)
        lines.append((row.source, f"{row.tokens:,}", f"{row.share:.1%}", *shown))
    return Table("Text by source of its prompt", headers, lines)
