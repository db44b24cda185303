"""Does speculative decoding say what plain decoding says? Compares greedy texts."""

from __future__ import annotations

from collections.abc import Sequence


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index at which two sequences first differ, their ends included; None: equal."""
    for at, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return at
    return None if len(a) == len(b) else min(len(a), len(b))
