"""Which keywords of JSON schemas are known: what they say about which type, and how two of them are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from medusa_cli.grammars import patterns
from medusa_cli.grammars.rules import refused

Schema = Mapping[str, Any] | bool

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
OF_TYPE = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
"""Keywords that say something about values of one type."""
COMMON = ("type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref")
ANNOTATIONS = (
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment"),
    *("$defs", "definitions", "discriminator"),
)
"""Say nothing about what is valid."""
KNOWN = {*COMMON, *ANNOTATIONS, *(name for names in OF_TYPE.values() for name in names)}
COUNTS = ("minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength")
MOST_COUNT = 100_000


def check(schema: Any, at: str) -> None:
    """SchemaError for what is no schema, and for keywords that are not known or not of their form."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise refused(at, f"{_kind(schema)} is no schema")
    for name, value in schema.items():
        if name not in KNOWN and not (name == "$id" and at == "#"):
            raise refused(at, f"{str(name)[:60]!r} cannot be enforced: leave it out")
        if wanted := _wanted(name, value):
            shown = str(value)[:30] if _kind(value) == "a number" else _kind(value)
            raise refused(at, f"{name!r} takes {wanted}, not {shown}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _wanted(name: str, value: Any) -> str:
    """What a keyword takes, if it is not this; else ""."""
    is_texts = isinstance(value, list) and all(isinstance(one, str) for one in value)
    if name in COUNTS:
        fits = is_number(value) and value == int(value) and 0 <= value <= MOST_COUNT
        return "" if fits else f"a whole number from 0 to {MOST_COUNT}"
    checks: dict[str, tuple[bool, str]] = {
        "type": (isinstance(value, str) or (is_texts and bool(value)), "the name of a type, or several"),
        "enum": (isinstance(value, list) and bool(value), "a list of values"),
        "properties": (isinstance(value, dict), "an object of schemas"),
        "required": (is_texts, "a list of names"),
        "prefixItems": (isinstance(value, list), "a list of schemas"),
        "pattern": (isinstance(value, str), "a regular expression"),
        "format": (isinstance(value, str), "the name of a format"),
        "$ref": (isinstance(value, str), "a reference"),
        "uniqueItems": (isinstance(value, bool), "true or false"),
        "multipleOf": (is_number(value) and value > 0, "a number above 0"),
    }
    checks |= dict.fromkeys(("anyOf", "oneOf", "allOf"), (isinstance(value, list) and bool(value), "a list of schemas"))
    checks |= dict.fromkeys(OF_TYPE["number"][:4], (is_number(value), "a number of a size from 1e-15 to 1e15"))
    fits, wanted = checks.get(name, (True, ""))
    return "" if fits else wanted


def is_number(value: Any) -> bool:
    """Whether a value is a number that can be computed with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e15 and (value == 0 or abs(value) > 1e-15)


def types_of(schema: Mapping[str, Any], at: str) -> list[str]:
    """The types that values may have, as far as `type` says; SchemaError for unknown ones."""
    named = schema.get("type", list(TYPES))
    names = [named] if isinstance(named, str) else list(named)
    for name in names:
        if name not in TYPES:
            raise refused(at, f"there is no type {name[:40]!r}")
    if "number" in names and "integer" in names:
        names.remove("integer")
    return list(dict.fromkeys(names))


# --- two schemas at once ---------------------------------------------------------------------------


def _same_types(one: Any, other: Any) -> list[str]:
    first, second = ({names} if isinstance(names, str) else set(names) for names in (one, other))
    for names in (first, second):
        if "number" in names:
            names.add("integer")
    return [name for name in TYPES if name in first & second]


def _both(one: Schema, other: Schema) -> Schema:
    return one if other is True else other if one is True else {"allOf": [one, other]}


def _properties(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What additionalProperties of one says about properties of the other holds, too."""
    first, second = one.get("properties", {}), other.get("properties", {})
    rest_first, rest_second = one.get("additionalProperties", True), other.get("additionalProperties", True)
    return {
        name: _both(first.get(name, rest_first), second.get(name, rest_second))
        for name in dict.fromkeys([*first, *second])
    }


JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "type": _same_types,
    "enum": lambda one, other: [value for value in one if any(same(value, found) for found in other)],
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "additionalProperties": _both,
    "uniqueItems": lambda one, other: one or other,
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


def joined(one: Mapping[str, Any], other: Mapping[str, Any], at: str) -> dict[str, Any]:
    """A schema for what both admit. SchemaError where there is no such schema."""
    out = {name: value for name, value in one.items() if name not in ANNOTATIONS}
    if "properties" in one or "properties" in other:
        out["properties"] = _properties(one, other)
    for name, value in other.items():
        if name in ANNOTATIONS or name == "properties":
            continue
        if name in ("anyOf", "oneOf", "allOf") and name in out:
            out.setdefault("allOf", [])
            out["allOf"] = [*out["allOf"], *(value if name == "allOf" else [{name: value}])]
        elif name not in out or same(out[name], value):
            out[name] = value
        elif name == "const":
            out["enum"] = []
        elif name in ("items", "prefixItems") or name not in JOINED:
            raise refused(at, f"two different {name!r} at once cannot be enforced: leave one out")
        else:
            out[name] = JOINED[name](out[name], value)
    tuples = [one for one in (one, other) if "prefixItems" in one]
    if len(tuples) == 1 and ("items" in one) + ("items" in other) > ("items" in tuples[0]):
        raise refused(at, "'prefixItems' of one schema and 'items' of another cannot be enforced: leave one out")
    return out


# --- values ----------------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to JSON Schema: 1 is 1.0, and is not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def type_of(value: Any) -> str:
    """The most special type of a value."""
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def limits(schema: Mapping[str, Any]) -> tuple[tuple[Decimal, bool] | None, tuple[Decimal, bool] | None]:
    """The least and the greatest number, and whether each is itself left out; None: no limit."""

    def limit(name: str, exclusive: str, sign: int) -> tuple[Decimal, bool] | None:
        found = [(Decimal(str(schema[one])), one == exclusive) for one in (name, exclusive) if one in schema]
        return max(found, key=lambda one: (sign * one[0], one[1]), default=None)

    return limit("minimum", "exclusiveMinimum", 1), limit("maximum", "exclusiveMaximum", -1)


def admits_scalar(schema: Mapping[str, Any], value: Any, at: str) -> bool:
    """Whether limits of numbers and strings admit a value that `enum` or `const` gives. SchemaError: not known."""
    if is_number(value):
        low, high = limits(schema)
        number = Decimal(str(value))
        factor = schema.get("multipleOf")
        return (
            (low is None or number > low[0] or (number == low[0] and not low[1]))
            and (high is None or number < high[0] or (number == high[0] and not high[1]))
            and (factor is None or number % Decimal(str(factor)) == 0)
        )
    if isinstance(value, str):
        if "format" in schema and schema["format"] not in patterns.FORMATS:
            raise refused(at, f"the format {schema['format'][:40]!r} cannot be enforced: leave it out")
        found = [schema["pattern"]] if "pattern" in schema else []
        found += [f"^(?:{patterns.FORMATS[schema['format']]})$"] if "format" in schema else []
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
            return False
        try:
            return all(patterns.admits(one, value) for one in found)
        except ValueError as error:
            raise refused(at, f"'pattern' beside 'enum' or 'const' cannot be enforced: {error}") from error
    return True
