"""Where generated text falls into a loop and is no longer worth training or measuring on.

Small models fall into loops. A loop is trivially predictable: in training it pulls the heads towards itself; in a
held-out set it flatters every number.
"""

from __future__ import annotations

from collections.abc import Sequence

GRAM = 8
REPEATS = 3
WINDOW = 64
WINDOW_GRAM = 4
MIN_DISTINCT = 0.5


def loop_start(tokens: Sequence[int]) -> int:
    """Length of the prefix of `tokens` that ends before a degenerate loop; len(tokens) if there is none.

    A loop is an 8-gram that occurs more than three times without overlap, or a window of 64 4-grams of which fewer
    than half are distinct. The first round of the loop is kept: it is ordinary text.
    """
    return min(_repeated_gram(tokens), _poor_window(tokens))


def is_degenerate(tokens: Sequence[int]) -> bool:
    """Whether a text too short for loop_start() to judge says the same few things over and over."""
    grams = len(tokens) - WINDOW_GRAM + 1
    if grams < GRAM:
        return False
    return len({tuple(tokens[at : at + WINDOW_GRAM]) for at in range(grams)}) < MIN_DISTINCT * grams


def _repeated_gram(tokens: Sequence[int]) -> int:
    """Cut at the second occurrence of the first 8-gram to occur REPEATS + 1 times."""
    second: dict[tuple[int, ...], int] = {}
    last: dict[tuple[int, ...], int] = {}
    count: dict[tuple[int, ...], int] = {}
    for at in range(len(tokens) - GRAM + 1):
        gram = tuple(tokens[at : at + GRAM])
        if gram not in last:
            last[gram], count[gram] = at, 1
            continue
        second.setdefault(gram, at)
        if at - last[gram] < GRAM:
            continue
        last[gram] = at
        count[gram] += 1
        if count[gram] > REPEATS:
            return second[gram]
    return len(tokens)


def _poor_window(tokens: Sequence[int]) -> int:
    """Cut at the first repetition inside the first window with too few distinct 4-grams."""
    grams = [tuple(tokens[at : at + WINDOW_GRAM]) for at in range(len(tokens) - WINDOW_GRAM + 1)]
    inside: dict[tuple[int, ...], int] = {}
    for at, gram in enumerate(grams):
        inside[gram] = inside.get(gram, 0) + 1
        first = at - WINDOW + 1
        if first > 0:
            gone = grams[first - 1]
            inside[gone] -= 1
            if not inside[gone]:
                del inside[gone]
        if first >= 0 and len(inside) < MIN_DISTINCT * WINDOW:
            seen: set[tuple[int, ...]] = set()
            for position in range(first, at + 1):
                if grams[position] in seen:
                    return position
                seen.add(grams[position])
    return len(tokens)
