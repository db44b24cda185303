"""Regular expressions as expressions of a grammar over JSON strings; those that have an equal there."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medusa_cli.grammars.rules import NOTHING, Rules, any_of, dumped, times

if TYPE_CHECKING:
    from medusa_cli import native

LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
SPACES = "\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000"
DISPUTED: list[tuple[int, int]] = [(0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)]
"""White space to some validators alone: neither \\s nor \\S."""
Ranges = list[tuple[int, int]]
"""Characters, by code points, in order and apart."""
MOST_REPEATS = 10_000
DEEPEST = 50


class Unsupported(ValueError):
    """A pattern without an equal: what about it."""


def joined(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """In order, without overlaps."""
    found: Ranges = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


def others(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, start = [], 0
    for low, high in joined([*ranges, SURROGATES]):
        if low > start:
            found.append((start, low - 1))
        start = high + 1
    return [*found, (start, LAST)] if start <= LAST else found


DIGITS: Ranges = [(48, 57)]
WORDS = joined([(48, 57), (65, 90), (95, 95), (97, 122)])
WHITE = joined([*((ord(one), ord(one)) for one in SPACES), (0x2000, 0x200A)])
CLASSES = {
    "d": DIGITS,
    "D": others(DIGITS),
    "w": WORDS,
    "W": others(WORDS),
    "s": WHITE,
    "S": others(joined([*WHITE, *DISPUTED])),
}
ANY = others([(10, 10), (13, 13), (0x2028, 0x2029)])
ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
SHORT = {'"': '"', "\\": "\\", "\n": "n", "\r": "r", "\t": "t", "\f": "f", "\b": "b"}
"""How JSON writes characters that do not stand for themselves in strings."""


def characters(ranges: Ranges) -> str:
    """The expression of one of these characters within a JSON string."""
    plain = joined([piece for one in ranges for piece in _without_escaped(one)])
    inside = [(low, high) for low, high in plain if low >= 32]
    options = []
    if inside:
        options.append("[" + "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in inside) + "]")
    for code in (*range(32), 34, 92):
        if any(low <= code <= high for low, high in ranges):
            short = SHORT.get(chr(code))
            options.append(
                rf'"\\u{code:04x}"' if short is None else '"\\\\' + ("\\" + short if short in '"\\' else short) + '"'
            )
    return any_of(options)


def _without_escaped(one: tuple[int, int]) -> Ranges:
    """A range without quotes, backslashes and halves of surrogate pairs."""
    found, (start, last) = [], one
    for low, high in ((34, 34), (92, 92), SURROGATES):
        if start < low <= last:
            found.append((start, low - 1))
        if low <= last:
            start = max(start, high + 1)
    return [*found, (start, last)] if start <= last else found


@dataclass(frozen=True)
class Matched:
    """An expression, and how many characters its texts have (None: without end)."""

    body: str
    least: int
    most: int | None


class _Reader:
    def __init__(self, rules: Rules, pattern: str) -> None:
        self._rules, self._text, self._at = rules, pattern, 0

    def whole(self) -> Matched:
        """ECMAScript looks anywhere in a text unless anchors say otherwise."""
        found = [self._anchored(self._branch(0))]
        while self._take("|"):
            found.append(self._anchored(self._branch(0)))
        if self._at < len(self._text):
            raise Unsupported(f"{self._text[self._at]!r} is not expected there")
        return self._either(found)

    def _anchored(self, items: list[Matched | str]) -> Matched:
        begins, ends = items[:1] == ["^"], items[-1:] == ["$"]
        items = items[1 if begins else 0 : len(items) - 1 if ends else None]
        if any(isinstance(one, str) for one in items):
            raise Unsupported("^ and $ are supported at its ends only")
        more = Matched(f"{self._rules.character}*", 0, None)
        inner = [one for one in items if isinstance(one, Matched)]
        return self._all([*([] if begins else [more]), *inner, *([] if ends else [more])])

    def _peek(self, size: int = 1) -> str:
        return self._text[self._at : self._at + size]

    def _take(self, token: str) -> bool:
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def _branch(self, depth: int) -> list[Matched | str]:
        found: list[Matched | str] = []
        while (one := self._peek()) and one not in "|)":
            if one in "^$":
                self._at += 1
                found.append(one)
                continue
            found.append(self._repeated(self._atom(depth)))
        return found

    def _atom(self, depth: int) -> Matched:
        if self._take("("):
            return self._group(depth + 1)
        if self._take("["):
            return Matched(characters(self._class()), 1, 1)
        if self._take("."):
            return Matched(characters(ANY), 1, 1)
        if self._take("\\"):
            return Matched(characters(self._escape()), 1, 1)
        if self._peek() in "*+?{":
            raise Unsupported(f"{self._peek()!r} has nothing to repeat")
        code = ord(self._peek())
        self._at += 1
        return Matched(characters([(code, code)]), 1, 1)

    def _group(self, depth: int) -> Matched:
        if depth > DEEPEST:
            raise Unsupported(f"more than {DEEPEST} parentheses in each other")
        if self._take("?"):
            named = re.compile(r"P?<[A-Za-z_]\w*>").match(self._text, self._at)
            if named is not None:
                self._at = named.end()
            elif not self._take(":"):
                raise Unsupported(f"(?{self._peek()} is not supported")
        found = [self._inner(depth)]
        while self._take("|"):
            found.append(self._inner(depth))
        if not self._take(")"):
            raise Unsupported("a parenthesis is not closed")
        return self._either(found)

    def _inner(self, depth: int) -> Matched:
        items = self._branch(depth)
        if any(isinstance(one, str) for one in items):
            raise Unsupported("^ and $ are supported at its ends only")
        return self._all([one for one in items if isinstance(one, Matched)])

    def _repeated(self, one: Matched) -> Matched:
        counts = re.compile(r"([*+?])|\{(\d{1,6})(?:(,)(\d{0,6}))?\}").match(self._text, self._at)
        if counts is None:
            return one
        self._at = counts.end()
        self._take("?")  # lazy: the same texts
        if self._peek() and self._peek() in "*+?":
            raise Unsupported("two repetitions in a row")
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(counts[1] or "", (0, None))
        if counts[1] is None:
            least = int(counts[2])
            most = least if counts[3] is None else int(counts[4]) if counts[4] else None
        if most is not None and most < least:
            raise Unsupported("a repetition ends before it begins")
        if max(least, most or 0) > MOST_REPEATS:
            raise Unsupported(f"more than {MOST_REPEATS} repetitions")
        end = None if most is None or one.most is None else most * one.most
        return Matched(times(self._rules.of(one.body), least, most), least * one.least, end)

    def _all(self, items: list[Matched]) -> Matched:
        most = None if any(one.most is None for one in items) else sum(one.most or 0 for one in items)
        return Matched(" ".join(one.body for one in items) or '""', sum(one.least for one in items), most)

    def _either(self, items: list[Matched]) -> Matched:
        if len(items) == 1:
            return items[0]
        most = None if any(one.most is None for one in items) else max(one.most or 0 for one in items)
        return Matched(any_of([f"({one.body})" for one in items]), min(one.least for one in items), most)

    def _class(self) -> Ranges:
        negated = self._take("^")
        found: Ranges = []
        while not self._take("]"):
            low = self._member()
            if self._peek(2)[:1] == "-" and self._peek(2) not in ("-", "-]"):
                self._at += 1
                high = self._member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or high[0][1] < low[0][0]:
                    raise Unsupported("a range of characters is none")
                low = [(low[0][0], high[0][1])]
            found += low
        return others(joined(found)) if negated else joined(found)

    def _member(self) -> Ranges:
        if not (one := self._peek()):
            raise Unsupported("a class is not closed")
        self._at += 1
        return self._escape() if one == "\\" else [(ord(one), ord(one))]

    def _escape(self) -> Ranges:
        one = self._peek()
        self._at += 1
        if one in CLASSES:
            return CLASSES[one]
        code: int | None = None
        if one in ("x", "u"):
            digits = self._peek(2 if one == "x" else 4)
            if re.fullmatch(r"[0-9a-fA-F]{2}|[0-9a-fA-F]{4}", digits):
                self._at += len(digits)
                code = int(digits, 16)
        elif one in ESCAPED:
            code = ord(ESCAPED[one])
        elif one and not one.isalnum():
            code = ord(one)
        if code is None or SURROGATES[0] <= code <= SURROGATES[1]:
            raise Unsupported(f"\\{one} is not supported")
        return [(code, code)]


def matched(rules: Rules, pattern: str) -> Matched:
    """The strings in which ECMAScript finds a pattern, without quotes. Unsupported: not as a grammar."""
    found = _Reader(rules, pattern).whole()
    return found if found.body else Matched(NOTHING, 0, 0)


FORMATS: dict[str, str] = {}
"""The texts of formats of JSON Schema, each as a pattern that matches nothing else."""
_DATE = (
    r"\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|1\d|2[0-8]))"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,6}}"
_ATOM = r"[A-Za-z0-9_+-]{1,20}"
FORMATS.update(
    {
        "date": _DATE.replace(r"\d{4}", r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})"),
        "time": _TIME,
        "duration": r"P(?:\d{1,4}W|\d{1,4}Y(?:\d{1,4}M(?:\d{1,4}D)?)?|\d{1,4}M(?:\d{1,4}D)?|\d{1,4}D"
        r"|(?:\d{1,4}D)?T(?:\d{1,4}H(?:\d{1,4}M(?:\d{1,4}S)?)?|\d{1,4}M(?:\d{1,4}S)?|\d{1,4}S))",
        "uuid": r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "email": rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_LABEL}(?:\.{_LABEL}){{0,3}}\.[A-Za-z]{{2,10}}",
        "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
        "ipv6": r"(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
        "hostname": _HOST,
        "uri": rf"https?://{_HOST}(?::[1-9]\d{{0,3}})?(?:/[A-Za-z0-9._~-]{{1,60}}){{0,10}}/?"
        r"(?:\?[A-Za-z0-9._~=&-]{1,100})?",
    }
)
FORMATS["date-time"] = FORMATS["date"] + "T" + _TIME
FORMATS["uri-reference"] = FORMATS["uri"]


def of_format(rules: Rules, name: str) -> Matched:
    """The strings of a format. KeyError for one that is not known."""
    return matched(rules, f"^(?:{FORMATS[name]})$")


def strings(rules: Rules, one: Matched) -> str:
    """The expression of such strings with their quotes."""
    return rf'"\"" {rules.of(one.body)} "\""'


@functools.lru_cache(maxsize=32)
def _compiled(pattern: str) -> native.Grammar:
    from medusa_cli import native

    rules = Rules()
    return native.Grammar(rules.text(strings(rules, matched(rules, pattern))))


def admits(pattern: str, text: str) -> bool:
    """Whether a text matches; never in exponential time, as Python's own expressions may take. ValueError: a pattern
    that is not supported, or no text; NativeError: one that is too large."""
    return _compiled(pattern).matches(dumped(text))
