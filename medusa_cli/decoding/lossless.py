"""Is speculative decoding saying what plain decoding says? Greedy texts compared."""

from __future__ import annotations

from collections.abc import Sequence


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first place where two sequences differ, their ends included; None: equal."""
    for at, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return at
    return None if len(a) == len(b) else min(len(a), len(b))
