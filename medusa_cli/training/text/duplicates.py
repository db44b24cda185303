"""Texts that say what an earlier text said: found by sketches of their 8-gram sets, in little memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from medusa_cli.decoding.loops import GRAM

SKETCH = 128
"""Hashes kept of a text: the smallest ones, so that equal texts keep equal ones. With a quarter as many, a text of 300
tokens of which one differs was taken for another in 4 of 6000 tries."""
SIMILAR = 0.8
"""Share of common 8-grams from which on two texts count as one."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def gram_hashes(tokens: Sequence[int] | NDArray[np.integer], gram: int = GRAM) -> NDArray[np.uint64]:
    """[len(tokens) - gram + 1] one hash for each n-gram; of a shorter text one hash altogether."""
    values = np.asarray(tokens).astype(np.uint64)
    count = max(1, len(values) - gram + 1)
    hashes = np.zeros(count, np.uint64)
    for at in range(min(gram, len(values))):
        hashes = _mixed(hashes * _FACTOR + values[at : at + count] + np.uint64(1))
    return hashes


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads every bit over all: without it small numbers stay the smallest."""
    values = (values ^ (values >> np.uint64(31))) * _FACTOR
    return values ^ (values >> np.uint64(29))


def sketch(tokens: Sequence[int] | NDArray[np.integer]) -> list[int]:
    """The SKETCH smallest distinct hashes of a text's 8-grams (fewer for a short text)."""
    found: list[int] = np.unique(gram_hashes(tokens))[:SKETCH].tolist()
    return found


class KnownTexts:
    """Sketches of all texts so far."""

    def __init__(self, texts: Iterable[NDArray[np.integer]] = ()) -> None:
        self._sketches: list[frozenset[int]] = []
        self._holders: dict[int, list[int]] = {}
        for tokens in texts:
            self.add(tokens)

    def add(self, tokens: Sequence[int] | NDArray[np.integer]) -> bool:
        """True when an earlier text is (nearly) the same; else the text is known from now on."""
        mine = sketch(tokens)
        common = Counter(holder for value in mine for holder in self._holders.get(value, ()))
        for holder, _ in common.most_common(3):
            if _resemblance(mine, self._sketches[holder]) >= SIMILAR:
                return True
        for value in mine:
            self._holders.setdefault(value, []).append(len(self._sketches))
        self._sketches.append(frozenset(mine))
        return False


def _resemblance(mine: Sequence[int], theirs: frozenset[int]) -> float:
    """Estimated share of 8-grams in both texts among those in either (Broder's bottom-k estimate)."""
    smallest = sorted({*mine, *theirs})[: min(SKETCH, max(len(mine), len(theirs)))]
    own = set(mine)
    return sum(value in own and value in theirs for value in smallest) / len(smallest)
