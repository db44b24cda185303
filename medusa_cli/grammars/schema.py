"""From a JSON schema to a grammar of texts that are valid by it: compact, with properties in the schema's order.

What a grammar cannot enforce exactly is refused by name. It admits fewer texts than the schema may (one order, no white
space, no properties that the schema does not name unless `additionalProperties` is there), and none that are invalid.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from medusa_cli.grammars import keywords, numbers, patterns
from medusa_cli.grammars.keywords import OF_TYPE, Schema, refused
from medusa_cli.grammars.rules import NOTHING, Rules, SchemaError, any_of, literal, of_json, times

DEEPEST = 60
"""Schemas in schemas."""
MOST_SCHEMAS = 20_000
MOST_OPTIONS = 500
"""Alternatives of one place, with those of anyOf in allOf multiplied."""
MOST_FACTOR = 200


@functools.lru_cache(maxsize=32)
def _any_object() -> str:
    rules = Rules()
    return rules.text(rules.any_object)


def any_object() -> str:
    """The grammar of any JSON object, as GBNF."""
    return _any_object()


def grammar_of(schema: Schema) -> str:
    """A grammar as GBNF. SchemaError, one line, for what cannot be enforced or is no schema."""
    rules = Rules()
    return rules.text(expression_of(rules, schema))


def expression_of(rules: Rules, schema: Schema) -> str:
    """The expression of the values of a whole schema, with the rules that it needs."""
    try:
        return _Converter(rules, schema).of(schema, "#")
    except RecursionError as error:
        raise SchemaError("the JSON schema is nested too deeply") from error


class _Converter:
    def __init__(self, rules: Rules, whole: Schema) -> None:
        self._rules, self._whole = rules, whole
        self._references: dict[str, str] = {}  # rules, by where they point
        self._count = 0

    def of(self, schema: Schema, at: str, depth: int = 0) -> str:
        """The expression of a schema's values. at: its JSON pointer."""
        self._count += 1
        if self._count > MOST_SCHEMAS:
            raise SchemaError(f"the JSON schema is too large: it comes to more than {MOST_SCHEMAS} schemas")
        if depth > DEEPEST:
            raise refused(at, f"more than {DEEPEST} schemas in each other")
        keywords.check(schema, at)
        if isinstance(schema, bool):
            return self._rules.value if schema else NOTHING
        if (alone := _alone(schema)) is not None:
            return self._one_combination(schema, alone, at, depth)
        options = self._flat(schema, at, ())
        return any_of([self._plain(one, at, depth) for one in options])

    # --- references and combinations ---

    def _one_combination(self, schema: Mapping[str, Any], name: str, at: str, depth: int) -> str:
        """Of a schema that says nothing else: what it refers to may refer to itself, so it has a rule of its own."""
        if name == "$ref":
            return self._reference(schema["$ref"], at)
        if name == "oneOf":
            self._check_apart(self._options(schema[name], f"{at}/{name}", ()), {}, at)
        return any_of([self.of(one, f"{at}/{name}/{i}", depth + 1) for i, one in enumerate(schema[name])])

    def _target(self, pointer: str, at: str) -> Schema:
        if not pointer.startswith("#"):
            raise refused(at, f"'$ref' to {pointer[:60]!r}: only those within the schema are followed (#/$defs/...)")
        found: Any = self._whole
        for part in pointer[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and name in found:
                found = found[name]
            elif isinstance(found, list) and re.fullmatch(r"\d{1,6}", name) and int(name) < len(found):
                found = found[int(name)]
            else:
                raise refused(at, f"'$ref' to {pointer[:60]!r}, which is not there")
        if pointer != "#" and not pointer.startswith("#/"):
            raise refused(at, f"'$ref' to {pointer[:60]!r}: only pointers are followed (#/$defs/...)")
        keywords.check(found, pointer)
        target: Schema = found
        return target

    def _reference(self, pointer: str, at: str) -> str:
        """The rule of what it points to, which may point to itself."""
        seen = [pointer]
        while True:
            target = self._target(seen[-1], at)
            if isinstance(target, bool) or _alone(target) != "$ref":
                break
            if target["$ref"] in seen:
                raise refused(at, f"'$ref' to {pointer[:60]!r} leads to itself")
            seen.append(target["$ref"])
        if seen[-1] not in self._references:
            name = self._references[seen[-1]] = self._rules.reserve()
            self._rules.define(name, self.of(target, seen[-1]))
        return self._references[seen[-1]]

    def _flat(self, schema: Mapping[str, Any], at: str, seen: tuple[str, ...]) -> list[Mapping[str, Any]]:
        """Schemas without $ref, allOf, anyOf and oneOf, one of which holds."""
        self._count += 1
        if self._count > MOST_SCHEMAS:
            raise SchemaError(f"the JSON schema is too large: it comes to more than {MOST_SCHEMAS} schemas")
        keywords.check(schema, at)
        parts: list[list[Mapping[str, Any]]] = []
        if "$ref" in schema:
            pointer = schema["$ref"]
            if pointer in seen:
                raise refused(at, f"'$ref' to {pointer[:60]!r} leads to itself")
            parts.append(self._options([self._target(pointer, at)], pointer, (*seen, pointer)))
        for i, one in enumerate(schema.get("allOf", [])):
            parts.append(self._options([one], f"{at}/allOf/{i}", seen))
        for name in ("anyOf", "oneOf"):
            if name in schema:
                options = self._options(schema[name], f"{at}/{name}", seen)
                if name == "oneOf":
                    self._check_apart(options, schema, at)
                parts.append(options)
        rest = {name: value for name, value in schema.items() if name not in ("$ref", "allOf", "anyOf", "oneOf")}
        found: list[Mapping[str, Any]] = [rest]
        for options in parts:
            if len(found) * len(options) > MOST_OPTIONS:
                raise refused(at, f"it comes to more than {MOST_OPTIONS} alternatives")
            found = [
                flat
                for one in found
                for other in options
                for flat in self._joined(keywords.joined(one, other, at), at, seen)
            ]
        return found

    def _joined(self, schema: dict[str, Any], at: str, seen: tuple[str, ...]) -> list[Mapping[str, Any]]:
        combined = any(name in schema for name in ("$ref", "allOf", "anyOf", "oneOf"))
        return self._flat(schema, at, seen) if combined else [schema]

    def _options(self, schemas: list[Schema], at: str, seen: tuple[str, ...]) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = []
        for one in schemas:
            keywords.check(one, at)
            if isinstance(one, bool):
                found += [{}] if one else []
            else:
                found += self._flat(one, at, seen)
        return found

    def _check_apart(self, options: list[Mapping[str, Any]], around: Mapping[str, Any], at: str) -> None:
        """SchemaError unless no value can be valid by two of them: `oneOf` then is `anyOf`."""
        if len(options) > MOST_OPTIONS // 5:
            raise refused(at, f"'oneOf' of more than {MOST_OPTIONS // 5} alternatives")
        joined = [keywords.joined({k: v for k, v in around.items() if k == "type"}, one, at) for one in options]
        for i, one in enumerate(joined):
            if not all(_apart(one, other) for other in joined[i + 1 :]):
                text = "'oneOf' with alternatives that may both hold cannot be enforced: use 'anyOf', or give each a "
                raise refused(at, text + "type or a required property with a 'const' of its own")

    # --- values ---

    def _plain(self, schema: Mapping[str, Any], at: str, depth: int) -> str:
        """Of a schema without combinations."""
        types = keywords.types_of(schema, at)
        if "const" in schema or "enum" in schema:
            return self._values(schema, types, at, depth)
        if "type" not in schema:  # those that the other keywords are about, or any
            types = [name for name, of in OF_TYPE.items() if any(one in schema for one in of)]
            if not types:
                return self._rules.value
        found = []
        for name in types:
            if name == "null":
                found.append('"null"')
            elif name == "boolean":
                found.append('("true" | "false")')
            else:
                write = {"object": self._object, "array": self._array, "string": self._string}.get(name)
                found.append(self._number(schema, name, at) if write is None else write(schema, at, depth))
        return any_of(found)

    def _values(self, schema: Mapping[str, Any], types: list[str], at: str, depth: int) -> str:
        values = schema.get("enum", [schema.get("const")])
        if "const" in schema:
            values = [value for value in values if keywords.same(value, schema["const"])]
        if "number" in types:
            types = [*types, "integer"]
        found = []
        for value in values:
            kind = keywords.type_of(value)
            if kind not in types:
                continue
            if kind in ("object", "array") and any(name in schema for name in OF_TYPE[kind]):
                raise refused(at, f"'enum' of {kind}s beside other keywords cannot be enforced: leave those out")
            if keywords.admits_scalar(schema, value, at):
                try:
                    found.append(of_json(value))
                except (ValueError, RecursionError, TypeError) as error:
                    raise refused(at, "a value of 'enum' or 'const' cannot be written as JSON") from error
        return any_of(found)

    def _number(self, schema: Mapping[str, Any], name: str, at: str) -> str:
        low, high = keywords.limits(schema)
        factor = Decimal(str(schema.get("multipleOf", 1 if name == "integer" else 0)))
        decimals = None
        if factor:
            exact = factor.normalize()
            if name == "integer" and exact < 1 and 1 % exact == 0:
                exact = Decimal(1)
            decimals = _places(exact)
            if decimals is None or (name == "integer" and exact < 1):
                return self._multiple(exact, low, high, at)
        if decimals == 0:
            whole_low = None if low is None else int(low[0].to_integral_value("ROUND_CEILING"))
            whole_high = None if high is None else int(high[0].to_integral_value("ROUND_FLOOR"))
            if low is not None and whole_low == low[0] and low[1] and whole_low is not None:
                whole_low += 1
            if high is not None and whole_high == high[0] and high[1] and whole_high is not None:
                whole_high -= 1
            return self._rules.of(numbers.integer(whole_low, whole_high))
        return self._rules.of(numbers.number(low, high, decimals))

    def _multiple(self, factor: Decimal, low: Any, high: Any, at: str) -> str:
        whole = int(factor)
        signed = low is None
        if factor != whole or whole > MOST_FACTOR or high is not None or not (signed or low[0] == 0):
            text = f"'multipleOf' {factor} cannot be enforced: there are 0.1, 0.01, ... with limits, and whole numbers "
            raise refused(at, text + f"up to {MOST_FACTOR} without a limit, or from 0 on")
        if low is not None and low[1]:
            raise refused(at, "'multipleOf' with 'exclusiveMinimum' cannot be enforced: use 'minimum'")
        return self._rules.of(numbers.multiple(self._rules, whole, signed))

    def _string(self, schema: Mapping[str, Any], at: str, depth: int) -> str:
        least, most = int(schema.get("minLength", 0)), schema.get("maxLength")
        most = None if most is None else int(most)
        if most is not None and most < least:
            return NOTHING
        if "pattern" not in schema and "format" not in schema:
            return self._rules.of(rf'"\"" {times(self._rules.character, least, most)} "\""')
        if "pattern" in schema and "format" in schema:
            raise refused(at, "'pattern' and 'format' at once cannot be enforced: leave one out")
        try:
            if "pattern" in schema:
                found = patterns.matched(self._rules, schema["pattern"])
            else:
                found = patterns.of_format(self._rules, schema["format"])
        except patterns.Unsupported as error:
            raise refused(at, f"'pattern' {schema['pattern'][:60]!r} cannot be enforced: {error}") from error
        except KeyError as error:
            known = ", ".join(sorted(patterns.FORMATS))
            raise refused(at, f"the format {schema['format'][:40]!r} cannot be enforced: there are {known}") from error
        if least > found.least or (most is not None and (found.most is None or found.most > most)):
            raise refused(at, "lengths beside 'pattern' or 'format' cannot be enforced: write them into the pattern")
        return patterns.strings(self._rules, found)

    def _array(self, schema: Mapping[str, Any], at: str, depth: int) -> str:
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        most = None if most is None else int(most)
        if isinstance(schema.get("items"), list):
            raise refused(at, "'items' as a list is of older drafts: use 'prefixItems'")
        if schema.get("uniqueItems") and (most is None or most > 1):
            raise refused(at, "'uniqueItems' cannot be enforced: leave it out")
        prefix = [
            self._rules.of(self.of(one, f"{at}/prefixItems/{i}", depth + 1))
            for i, one in enumerate(schema.get("prefixItems", []))
        ]
        # Beyond a prefix, others come only if the schema says something about them.
        rest = schema.get("items", not prefix or least > len(prefix))
        item = None if rest is False else self._rules.of(self.of(rest, f"{at}/items", depth + 1))
        if item is None:
            most = min(len(prefix), len(prefix) if most is None else most)
        if most is not None and most < least:
            return NOTHING
        if not prefix:
            return self._rules.of(f'"[" {_listed(item or NOTHING, least, most)} "]"')
        after = ""
        if item is not None and (most is None or most > len(prefix)):
            more = None if most is None else most - len(prefix)
            after = times(f'"," {item}', max(least - len(prefix), 0), more)
        for i in range(min(len(prefix), len(prefix) if most is None else most) - 1, -1, -1):
            comma = '"," ' if i else ""
            after = f"{comma}{prefix[i]} {after}".strip()
            after = after if i < least else f"({after})?"
        return self._rules.of(f'"[" {after} "]"')

    # --- objects ---

    def _object(self, schema: Mapping[str, Any], at: str, depth: int) -> str:
        named: Mapping[str, Schema] = schema.get("properties", {})
        required = list(dict.fromkeys(schema.get("required", [])))
        others = schema.get("additionalProperties", not named and not required)
        fewest, most = int(schema.get("minProperties", 0)), schema.get("maxProperties")
        if not named and not required and others is not False:
            return self._free_object(others, fewest, most, at, depth)
        rest = schema.get("additionalProperties", True)
        whole: dict[str, Schema] = {**named, **{name: rest for name in required if name not in named}}
        if fewest > len(required) or (most is not None and (others is not False or int(most) < len(whole))):
            raise refused(
                at, "'minProperties' and 'maxProperties' beside properties cannot be enforced: use 'required'"
            )
        pairs = []
        for name, one in whole.items():
            value = self.of(one, f"{at}/properties/{name}", depth + 1)
            if value != NOTHING or name in required:
                pairs.append((self._rules.of(f"{_key(name)} {value}"), name in required))
        extra = None
        if others is not False:
            value = self._rules.of(self.of(others, f"{at}/additionalProperties", depth + 1))
            extra = self._rules.of(f'{self._other_key(whole)} ":" {value}')
        return self._rules.of(f'"{{" {self._pairs(pairs, extra)} "}}"')

    def _free_object(self, others: Schema, fewest: int, most: Any, at: str, depth: int) -> str:
        if fewest > 1:
            raise refused(at, "'minProperties' above 1 cannot be enforced: use 'required'")
        value = self._rules.of(self.of(others, f"{at}/additionalProperties", depth + 1))
        pair = self._rules.of(f'{self._rules.string} ":" {value}')
        end = None if most is None else int(most)
        return self._rules.of(f'"{{" {_listed(pair, fewest, end)} "}}"')

    def _pairs(self, pairs: list[tuple[str, bool]], extra: str | None) -> str:
        """Pairs in their order, with commas between those that are there."""
        more = f'("," {extra})*' if extra else '""'
        after, first = self._rules.of(more), self._rules.of(f"({extra} {more})?" if extra else '""')
        for pair, is_required in reversed(pairs):
            first = self._rules.of(f"{pair} {after}" + ("" if is_required else f" | {first}"))
            after = self._rules.of(f'"," {pair} {after}' + ("" if is_required else f" | {after}"))
        return first

    def _other_key(self, names: Mapping[str, Any]) -> str:
        """A name that is none of these. Names without escapes alone: each is written in one way."""
        plain = self._rules.of(r'[^"\\\x00-\x1f]')
        any_more = self._rules.of(f"{plain}*")
        tree: dict[str, Any] = {}
        for name in names:
            if re.search(r'["\\\x00-\x1f]', name):
                continue
            node = tree
            for one in name:
                node = node.setdefault(one, {})
            node[""] = {}

        def differs(node: dict[str, Any]) -> str:
            here = [one for one in node if one]
            other = "".join(f"\\U{ord(one):08x}" for one in here)
            options = [f'[^"\\\\\\x00-\\x1f{other}] {any_more}']
            options += [f"{literal(one)} {self._rules.of(differs(node[one]))}" for one in here]
            return " | ".join(options if "" in node else [*options, '""'])

        return rf'"\"" {self._rules.of(differs(tree))} "\""'


def _alone(schema: Mapping[str, Any]) -> str | None:
    """The keyword that says all there is to say, if it combines schemas."""
    names = [name for name in schema if name not in keywords.ANNOTATIONS]
    if len(names) != 1 or names[0] not in ("$ref", "anyOf", "oneOf", "allOf"):
        return None
    return None if names[0] == "allOf" and len(schema["allOf"]) > 1 else names[0]


def _key(name: str) -> str:
    try:
        return of_json(name)[:-1] + ':"'
    except UnicodeEncodeError as error:
        raise SchemaError("the JSON schema has a name that is no text") from error


def _listed(one: str, least: int, most: int | None) -> str:
    """So many, with commas between them."""
    if most == 0:
        return '""'
    inner = f"{one} {times(chr(34) + ',' + chr(34) + ' ' + one, max(least - 1, 0), None if most is None else most - 1)}"
    return inner if least else f"({inner})?"


def _places(factor: Decimal) -> int | None:
    """For 1, 0.1, 0.01 and so on: the digits after the point of its multiples."""
    _, digits, exponent = factor.as_tuple()
    return -exponent if digits == (1,) and isinstance(exponent, int) and exponent <= 0 else None


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether no value is valid by both, as far as one sees."""
    values = [_values_of(schema) for schema in (one, other)]
    if values[0] is not None and values[1] is not None:
        return not any(keywords.same(a, b) for a in values[0] for b in values[1])
    types = [set(keywords.types_of(schema, "#")) for schema in (one, other)]
    for kinds in types:
        if "number" in kinds:
            kinds.add("integer")
    for found, kinds in zip(values, types[::-1], strict=True):
        if found is not None:
            return not any(keywords.type_of(value) in kinds for value in found)
    if not types[0] & types[1]:
        return True
    if types[0] & types[1] != {"object"}:
        return False
    shared = set(one.get("required", [])) & set(other.get("required", []))
    told = [schema.get("properties", {}) for schema in (one, other)]
    return any(
        isinstance(a := told[0].get(name), Mapping)
        and isinstance(b := told[1].get(name), Mapping)
        and _apart_values(a, b)
        for name in shared
    )


def _apart_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    first, second = _values_of(one), _values_of(other)
    return first is not None and second is not None and not any(keywords.same(a, b) for a in first for b in second)


def _values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    found: list[Any] | None = schema.get("enum")
    return found
