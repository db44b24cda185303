"""The rules of a grammar in GBNF while they are being written, and the parts of JSON that all schemas share."""

from __future__ import annotations

import json
from typing import Any

from medusa_cli.support.errors import MedusaError

MOST_RULES = 20_000

CHARACTER = r'[^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" ([0-9a-cefA-CEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2}))'
"""One character of a string in JSON. Halves of surrogate pairs are none, and whole pairs are written as they are."""
INTEGER = '"0" | "-"? [1-9] [0-9]{0,15}'
NUMBER = '("0" | "-"? [1-9] [0-9]{0,15} | "-0") ("." [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?'
"""Digits have an end: a small model that has begun to write thirds would go on."""
NOTHING = "[]"
"""Matches no text."""


class SchemaError(MedusaError):
    """A JSON schema that cannot be enforced exactly: one line that names the keyword and its place."""


def refused(at: str, what: str) -> SchemaError:
    """at: the JSON pointer of the schema."""
    return SchemaError(f"the JSON schema, at {at[:80]}: {what}")


def literal(text: str) -> str:
    """A text as GBNF writes it."""
    pieces = []
    for one in text:
        if one in '"\\':
            pieces.append("\\" + one)
        elif one < " " or one == "\x7f":
            pieces.append(f"\\x{ord(one):02x}")
        else:
            pieces.append(one)
    return '"' + "".join(pieces) + '"'


def dumped(value: Any) -> str:
    """A value as compact JSON. ValueError for what JSON lacks (NaN), and for halves of surrogate pairs."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text.encode()
    return text


def of_json(value: Any) -> str:
    """The expression of one value."""
    return literal(dumped(value))


def any_of(options: list[str]) -> str:
    """An expression for one of several."""
    options = list(dict.fromkeys(options))
    return options[0] if len(options) == 1 else "(" + " | ".join(options) + ")" if options else NOTHING


def times(one: str, least: int, most: int | None) -> str:
    """An expression, repeated."""
    if (least, most) == (1, 1):
        return one
    if most == 0:
        return '""'
    counts = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return f"({one})" + (counts or f"{{{least},{'' if most is None else most}}}")


class Rules:
    """Rules by name. Expressions of equal text share one."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def reserve(self) -> str:
        """A name whose rule follows."""
        if len(self._bodies) >= MOST_RULES:
            raise SchemaError(f"the JSON schema is too large: more than {MOST_RULES} rules of a grammar")
        name = f"r{len(self._bodies)}"
        self._bodies[name] = NOTHING
        return name

    def define(self, name: str, body: str) -> None:
        """The rule of a name."""
        self._bodies[name] = body

    def of(self, body: str) -> str:
        """The name of a rule with that body."""
        if body not in self._names:
            name = self.reserve()
            self._names[body] = name
            self._bodies[name] = body
        return self._names[body]

    @property
    def character(self) -> str:
        """One character of a string."""
        return self.of(CHARACTER)

    @property
    def string(self) -> str:
        """Any string."""
        return self.of(rf'"\"" {self.character}* "\""')

    @property
    def value(self) -> str:
        """Any value."""
        if "value" not in self._bodies:
            self._bodies["value"] = NOTHING
            pair = self.of(f'{self.string} ":" value')
            listed = self.of('"[" (value ("," value)*)? "]"')
            options = [self.string, self.of(NUMBER), self.object_of(pair), listed, '"true"', '"false"', '"null"']
            self._bodies["value"] = " | ".join(options)
        return "value"

    def object_of(self, pair: str) -> str:
        """An object of any number of such pairs."""
        return self.of(f'"{{" ({pair} ("," {pair})*)? "}}"')

    @property
    def any_object(self) -> str:
        """Any object."""
        return self.object_of(self.of(f'{self.string} ":" {self.value}'))

    def text(self, root: str) -> str:
        """The whole grammar, which begins with that expression."""
        return "\n".join([f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())])
