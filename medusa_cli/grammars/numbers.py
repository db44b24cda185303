"""Numbers within limits, as expressions of digits."""

from __future__ import annotations

from decimal import Decimal

from medusa_cli.grammars.rules import INTEGER, NUMBER, Rules, any_of

MOST_DIGITS = 15
"""Of numbers with limits: all of them are told apart in 64 bits."""


def digit(low: int, high: int) -> str:
    """A digit in a range."""
    return f'"{low}"' if low == high else f"[{low}-{high}]"


def _any(count: int) -> list[str]:
    return [] if count == 0 else ["[0-9]" if count == 1 else f"[0-9]{{{count}}}"]


def _same_length(low: str, high: str) -> list[str]:
    """Digits of one length, from `low` to `high`."""
    if not low:
        return [""]
    if low == "0" * len(low) and high == "9" * len(high):
        return [" ".join(_any(len(low)))]
    if low[0] == high[0]:
        return [f'"{low[0]}" {rest}'.strip() for rest in _same_length(low[1:], high[1:])]
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    found = []
    if low[1:] != "0" * rest:
        found += [f'"{first}" {one}'.strip() for one in _same_length(low[1:], "9" * rest)]
        first += 1
    tail = []
    if high[1:] != "9" * rest:
        tail = [f'"{last}" {one}'.strip() for one in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        found.append(" ".join([digit(first, last), *_any(rest)]))
    return found + tail


def natural(low: int, high: int | None) -> list[str]:
    """Whole numbers from `low` (0 or more) to `high` (None: without end), without leading zeros."""
    last = 10**MOST_DIGITS - 1 if high is None else high
    found = []
    for length in range(len(str(low)), len(str(last)) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        if first <= (end := min(last, 10**length - 1)):
            found += _same_length(str(first), str(end))
    return found


def integer(low: int | None, high: int | None) -> str:
    """Whole numbers with limits, both included."""
    if low is None and high is None:
        return f"({INTEGER})"
    found = []
    if high is None or high >= 0:
        found += natural(max(low or 0, 0), high)
    if low is None or low < 0:
        least = 1 if high is None or high >= 0 else -high
        found += [f'"-" {one}' for one in natural(least, None if low is None else -low)]
    return any_of(found)


def multiple(rules: Rules, factor: int, signed: bool) -> str:
    """Whole multiples of a small number: a rule for each remainder of the digits so far."""
    names = [rules.reserve() for _ in range(factor)]
    for remainder, name in enumerate(names):
        steps = [f'"{d}" {names[(10 * remainder + d) % factor]}' for d in range(10)]
        rules.define(name, " | ".join([*steps, '""'] if remainder == 0 else steps))
    head = " | ".join(f'"{d}" {names[d % factor]}' for d in range(1, 10))
    return f'("0" | {chr(34) + "-" + chr(34) + "? " if signed else ""}({head}))'


# --- numbers with decimals -------------------------------------------------------------------------

Limit = tuple[Decimal, bool]
"""A number, and whether it is itself left out."""


class _Fractions:
    """Digits after the point. low, high: those that may not be passed, padded to `most` digits; exclusive: nor met."""

    def __init__(self, low: str, high: str, exclusive: tuple[bool, bool], most: int) -> None:
        self._low, self._high, self._most = low.ljust(most, "0"), high.ljust(most, "0"), most
        self._exclusive = exclusive

    def may_end(self, at: int, low: bool, high: bool) -> bool:
        """After so many digits. low, high: they are those of that limit."""
        above = not low or (not self._exclusive[0] and not self._low[at:].strip("0"))
        return above and (not high or not self._exclusive[1] or bool(self._high[at:].strip("0")))

    def digits(self, at: int, low: bool, high: bool) -> list[str]:
        """At least one more digit."""
        left = self._most - at
        if left <= 0:
            return []
        if not low and not high:
            return [f"[0-9]{{1,{left}}}"]
        first, last = int(self._low[at]) if low else 0, int(self._high[at]) if high else 9
        found, free = [], []
        for one in range(first, last + 1):
            tight = low and one == first, high and one == last
            if not any(tight):
                free.append(one)
                continue
            rest = ['""'] * self.may_end(at + 1, *tight) + self.digits(at + 1, *tight)
            if rest:
                found.append(f'"{one}" {any_of(rest)}')
        if free:
            found.append(f"{digit(free[0], free[-1])} [0-9]{{0,{left - 1}}}")
        return found

    def of(self, wholes: list[str], low: bool, high: bool) -> list[str]:
        """Numbers with such digits before the point."""
        if not wholes:
            return []
        whole, found = any_of(wholes), []
        if digits := self.digits(0, low, high):
            found.append(f'{whole} "." {any_of(digits)}')
        return [*found, whole] if self.may_end(0, low, high) else found


def _parts(value: Decimal) -> tuple[int, str]:
    """Before and after the point, without trailing zeros."""
    whole, _, after = f"{value:f}".partition(".")
    return int(whole), after.rstrip("0")


def _unsigned(low: Limit, high: Limit | None, decimals: int) -> list[str]:
    """Numbers from 0 on."""
    first, low_after = _parts(low[0])
    last, high_after = (None, "") if high is None else _parts(high[0])
    most = min(max(MOST_DIGITS - len(str(first if last is None else last)), 1), decimals)
    # A limit with more decimals than there may be: the next number within it.
    low_tail, high_tail = low_after[most:], high_after[most:]
    exclusive = low[1] or bool(low_tail), high is not None and high[1] and not high_tail
    fractions = _Fractions(low_after[:most], high_after[:most], exclusive, most)
    if last == first:
        return fractions.of([f'"{first}"'], True, True)
    found = fractions.of([f'"{first}"'], True, False)
    found += fractions.of(natural(first + 1, None if last is None else last - 1), False, False)
    return found + ([] if last is None else fractions.of([f'"{last}"'], False, True))


def number(low: Limit | None, high: Limit | None, decimals: int | None = None) -> str:
    """Numbers with limits. decimals: most digits after the point."""
    if low is None and high is None:
        if decimals is None:
            return f"({NUMBER})"
        return f'({INTEGER}) ("." [0-9]{{1,{decimals}}})?' if decimals else f"({INTEGER})"
    places = MOST_DIGITS if decimals is None else decimals
    zero = (Decimal(0), False)
    found = []
    if high is None or high[0] > 0 or high == zero:
        found += _unsigned(low if low is not None and low[0] >= 0 else zero, high, places)
    if low is None or low[0] < 0:
        least = (-high[0], high[1]) if high is not None and high[0] <= 0 else (Decimal(0), True)
        most = None if low is None else (-low[0], low[1])
        found += [f'"-" ({one})' for one in _unsigned(least, most, places)]
    return any_of(found)
