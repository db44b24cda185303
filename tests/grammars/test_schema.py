"""JSON schemas as grammars: every text of a grammar is valid by its schema, as the jsonschema package sees it."""

from __future__ import annotations

import json
import random
import time
from contextlib import suppress
from typing import Any

import pytest
from grammar_walks import matches, random_text, states_of
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native
from medusa_cli.decoding import structure
from medusa_cli.grammars import keywords, patterns
from medusa_cli.grammars.rules import SchemaError, dumped
from medusa_cli.grammars.schema import any_object, grammar_of
from medusa_cli.support.errors import MedusaError

jsonschema = pytest.importorskip("jsonschema")

NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["v", "next"],
}
A = {"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, "required": ["kind", "x"]}
B = {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "boolean"}}, "required": ["kind"]}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
}
SCHEMAS: dict[str, Any] = {
    "anything": True,
    "person": PERSON,
    "free object": {"type": "object"},
    "numbers by name": {"type": "object", "additionalProperties": {"type": "number"}},
    "one or two": {"type": "object", "minProperties": 1, "maxProperties": 2},
    "required alone": {"type": "object", "required": ["x"]},
    "no others": {"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False},
    "others": {
        "type": "object",
        "properties": {"a": {"type": "null"}, "ab": {"type": "null"}, "": {"type": "null"}, 'q"': {"type": "null"}},
        "required": ["ab"],
        "additionalProperties": {"type": "boolean"},
    },
    "list": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
    "tuple and more": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": {"type": "null"},
        "minItems": 1,
        "maxItems": 4,
    },
    "exact tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
        "minItems": 2,
    },
    "recursion": {"$defs": {"node": NODE}, "$ref": "#/$defs/node"},
    "tree": {"type": "object", "properties": {"sub": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}},
    "allOf": {"allOf": [PERSON, {"properties": {"name": {"minLength": 3}, "age": {"maximum": 17}}}]},
    "closed allOf": {"allOf": [{**B, "additionalProperties": False}, {"properties": {"z": {"type": "null"}}}]},
    "types": {"type": ["string", "null", "integer"]},
    "enum": {"enum": ["a", 1, 2.5, None, True, {"x": [1]}, 'q"\\\n']},
    "enum within limits": {"type": "integer", "enum": [1, "1", 5, 9], "minimum": 2, "maximum": 8},
    "const": {"const": {"b": 1, "a": [None]}},
    "anyOf": {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 4}]},
    "oneOf by a tag": {"oneOf": [A, B]},
    "oneOf by type": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "required by anyOf": {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "reference and more": {"$defs": {"s": {"type": "string"}}, "$ref": "#/$defs/s", "maxLength": 3},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 3},
    "without a type": {"properties": {"a": {"type": "null"}}, "minLength": 2},
    "multiple of 7": {"type": "integer", "multipleOf": 7},
    "multiple of 12 from 0": {"type": "integer", "multipleOf": 12, "minimum": 0},
    "multiple of 5": {"type": "number", "multipleOf": 5},
    "multiple of 0.5": {"type": "integer", "multipleOf": 0.5},
    **{f"format {name}": {"type": "string", "format": name} for name in patterns.FORMATS},
    **{
        f"pattern {one}": {"type": "string", "pattern": one}
        for one in (
            r"^[A-Z]{3}-\d{2,4}$", r"^a|b$", r"^(\+\d{1,3} )?[0-9 ]+$", r'^"q"\\$', r"^[^a-z]{2}$", r"^\w+@\w+\.com$",
            r"^.{2,5}$", r"^(?:a|bc)*?d?$", "^é+$", "", r"^\S\s$", r"^[\]\-x]+$",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_text_is_valid(name: str) -> None:
    check(SCHEMAS[name], seed=len(name))


def check(schema: Any, seed: int, count: int = 80, fewest: int = 20) -> None:
    rng, states = random.Random(seed), states_of(grammar_of(schema))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    texts = [text for _ in range(count) if (text := random_text(states, rng)) is not None]
    for text in texts:
        assert [error.message for error in validator.iter_errors(json.loads(text))] == [], text
    assert len(texts) >= fewest


BOUNDS = (0, 1, -1, 0.5, -0.5, 10, 99.95, 12345.678, -77.7, 0.001, 0.00101, -1000)


@given(
    st.sampled_from(["integer", "number"]),
    st.sampled_from([None, "minimum", "exclusiveMinimum"]),
    st.sampled_from([None, "maximum", "exclusiveMaximum"]),
    st.sampled_from(BOUNDS) | st.decimals(-2000, 2000, places=2).map(float),
    st.sampled_from(BOUNDS) | st.decimals(-2000, 2000, places=2).map(float),
    st.lists(st.decimals(-2000, 2000, places=3).map(float) | st.sampled_from(BOUNDS), min_size=10, max_size=10),
)
@pytest.mark.hypothesis
def test_limits_of_numbers(
    kind: str, low: str | None, high: str | None, first: float, second: float, tried: list[float]
) -> None:
    schema: dict[str, Any] = {"type": kind}
    if low is not None:
        schema[low] = min(first, second)
    if high is not None:
        schema[high] = max(first, second)
    validator = jsonschema.Draft202012Validator(schema)
    try:
        states = states_of(grammar_of(schema))
    except native.NativeError:  # no number is valid
        assert not any(map(validator.is_valid, tried))
        return
    rng = random.Random(1)
    for _ in range(20):
        text = random_text(states, rng)
        assert text is not None
        assert validator.is_valid(json.loads(text)), text
    for number in tried:
        value = int(number) if number == int(number) else number
        assert matches(states, repr(value)) == validator.is_valid(value), value


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (PERSON, ['{"name":"é😀","age":0}', '{"name":"a","age":150,"tags":[]}'],
         ['{"name":"","age":1}', '{"age":1,"name":"a"}', '{"name":"a"}', '{"name": "a","age":1}',
          '{"name":"a","age":01}',
          '{"name":"a","age":1,"tags":["z"]}', '{"name":"a","age":1,"b":2}']),
        (SCHEMAS["others"], ['{"ab":null,"x":true}', '{"a":null,"ab":null,"":null,"abc":false,"b":true}'],
         ['{"ab":null,"a":true}', '{"ab":null,"\\u0061":true}', '{"x":true}', '{"ab":null,"":true}']),
        ({"type": "number"}, ["0", "-0.5", "1e5", "1.25E-7", "-0"], ["01", ".5", "1.", "+1", "NaN", "--1"]),
        ({"type": "number", "multipleOf": 0.01, "minimum": 0}, ["0", "3.1", "3.14"], ["3.141", "-1"]),
        ({"type": "string", "pattern": "^[a-c]+$"}, ['"abc"'], ['""', '"d"', "abc"]),
        ({"type": "string", "pattern": r"^(?<year>\d{4})\D\W$"},
         ['"2024a-"', '"2024éé"'], ['"2024aa"']),
        ({"type": "string", "pattern": "b"}, ['"abc"', '"b"', '"\\nb"'], ['"ac"']),
        ({"type": "string", "format": "date"}, ['"2024-02-28"', '"2023-12-31"'],
         ['"2024-02-30"', '"0000-01-01"', '"2024-13-01"']),
        ({"type": "string"}, ['"\\u00e9\\n"', '"/"'], ['"\\ud800"', '"\n"', '"\\x"', '"a']),
        ({"enum": [True, 1]}, ["true", "1"], ["1.0", "false"]),
    ],
)  # fmt: skip
def test_texts(schema: Any, right: list[str], wrong: list[str]) -> None:
    states = states_of(grammar_of(schema))
    assert [text for text in right if not matches(states, text)] == []
    assert [text for text in wrong if matches(states, text)] == []


def test_any_object() -> None:
    states = states_of(any_object())
    assert matches(states, '{"a":[1,{"b":null}]}')
    assert not matches(states, "[1]")


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (3, "at #: a number is no schema"),
        ({"type": "thing"}, "there is no type 'thing'"),
        ({"not": {"type": "string"}}, "'not' cannot be enforced"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems' cannot be enforced"),
        ({"properties": {"a": {"x-unknown": 1}}}, "at #/properties/a: 'x-unknown' cannot be enforced"),
        ({"$ref": "https://example.com/s.json"}, "only those within the schema are followed"),
        ({"$ref": "#/$defs/none"}, "which is not there"),
        ({"$ref": "#"}, "leads to itself"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "leads to itself"),
        ({"allOf": [{"$ref": "#"}, {"type": "string"}]}, "leads to itself"),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "'oneOf' with alternatives that may both hold"),
        ({"type": "string", "format": "iri"}, "the format 'iri' cannot be enforced"),
        ({"type": "string", "pattern": "(?=a)"}, "cannot be enforced: (?="),
        ({"type": "string", "pattern": "a(b"}, "a parenthesis is not closed"),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "lengths beside 'pattern'"),
        ({"type": "string", "maxLength": -1}, "'maxLength' takes a whole number from 0 to 100000, not -1"),
        ({"type": "integer", "minimum": -(10**400)}, "a size from 1e-15 to 1e15, not -1000"),
        ({"type": "number", "maximum": float("inf")}, "'maximum' takes a number of a size from 1e-15 to 1e15, not inf"),
        ({"type": "number", "maximum": float("nan")}, "'maximum' takes a number of a size from 1e-15 to 1e15, not nan"),
        ({"type": "array", "minItems": 10**400}, "'minItems' takes a whole number from 0 to 100000, not 1000"),
        ({"type": "number", "minimum": "1"}, "'minimum' takes a number of a size from 1e-15 to 1e15, not text"),
        ({"type": "number", "multipleOf": 0.3}, "'multipleOf' 0.3 cannot be enforced"),
        ({"enum": []}, "'enum' takes a list of values"),
        ({"type": "object", "minProperties": 3}, "'minProperties' above 1"),
        ({"required": "a"}, "'required' takes a list of names"),
        ({"patternProperties": {}}, "'patternProperties' cannot be enforced"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, says: str) -> None:
    with pytest.raises(SchemaError) as error:
        grammar_of(schema)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_what_contradicts_itself_matches_nothing() -> None:
    for schema in (
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"enum": ["a"], "type": "integer"},
        NODE | {"properties": {"v": {}, "next": {"$ref": "#"}}},
        False,
    ):
        with pytest.raises(native.NativeError, match="no text matches"):
            native.Grammar(grammar_of(schema))


def test_a_hundred_fields_compile_within_50_ms() -> None:
    properties = {
        f"field_{i}": {"type": ["string", "integer"], "maxLength": 50} if i % 2 else {"type": "number", "maximum": i}
        for i in range(100)
    }
    schema = {"type": "object", "properties": properties, "required": [f"field_{i}" for i in range(0, 100, 3)]}
    took = [1.0]
    while min(took) >= 0.05 and len(took) < 20:  # other programs slow it down, but not every time
        begun = time.process_time()
        states_of(grammar_of(schema))
        took.append(time.process_time() - begun)
    assert min(took) < 0.05


# --- hostile ---------------------------------------------------------------------------------------


ODD: list[Any] = [
    0, -1, 1, 0.5, 5e-324, 1e15, 2**63, 10**400, float("inf"), float("nan"), True, None, "", "a", "\ud800",
    "#", "#/$defs/a", "string", "^a$", "[", "(a|b)*", "uuid", [1], ["a"], [[]], {}, {"a": 1}, 99_999, 100_001,
]  # fmt: skip


def odd_schema(source: random.Random, depth: int = 0) -> Any:
    if depth > 3 or source.random() < 0.1:
        return source.choice([True, False, {"type": "string"}, {"type": "integer"}, *ODD])
    found: dict[str, Any] = {}
    for name in source.sample(sorted(keywords.KNOWN), 3):
        one = odd_schema(source, depth + 1)
        found[name] = source.choice([source.choice(ODD), one, [one], {"a": one}, ["string", "b"]])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_anything_gives_a_grammar_or_one_line(seed: int) -> None:
    for number in range(250):
        schema = odd_schema(random.Random(1000 * seed + number))
        with suppress(MedusaError, native.NativeError):  # as a person sees them: anything else would be a traceback
            structure.compiled(grammar_of(schema))


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(a*)*$", "^([ab]*a){12}$"])
def test_patterns_beside_values_take_no_exponential_time(pattern: str) -> None:
    """Python's own expressions would try all ways to divide the text."""
    begun = time.monotonic()
    states = states_of(grammar_of({"enum": ["a" * 5000 + "b", "a" * 24], "pattern": pattern}))
    assert time.monotonic() - begun < 10
    assert matches(states, dumped("a" * 24))
    assert not matches(states, dumped("a" * 5000 + "b"))


@pytest.mark.parametrize(
    ("pattern", "value", "admitted"),
    [
        ("b", "abc", True), ("^b", "abc", False), ("^.$", "\x01", True), ('^"\\\\/$', '"\\/', True),
        ("^\\n$", "\n", True), ("^\\u0041$", "A", True), ("^.$", "\U0001f600", True), ("^\\w+$", "\u00e4", False),
    ],
)  # fmt: skip
def test_patterns_beside_values(pattern: str, value: str, admitted: bool) -> None:
    assert patterns.admits(pattern, value) == admitted


@pytest.mark.parametrize("schema", [{"pattern": "[", "const": "a"}, {"pattern": "(?=a)", "enum": ["a"]}])
def test_unknown_patterns_beside_values(schema: Any) -> None:
    with pytest.raises(SchemaError, match="'pattern' beside 'enum' or 'const' cannot be enforced"):
        grammar_of(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"const": "\ud800"},
        {"enum": [["\udfff"]]},
        {"const": "\ud800", "pattern": "a"},
        {"properties": {"\ud800": True}},
    ],
)
def test_halves_of_surrogate_pairs(schema: Any) -> None:
    with pytest.raises(SchemaError, match=r"written as JSON|beside|no text"):
        grammar_of(schema)


def test_halves_of_surrogate_pairs_in_a_grammar() -> None:
    with pytest.raises(MedusaError, match="half of a surrogate pair"):
        structure.compiled('root ::= "\ud800"')


def deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE: dict[str, Any] = {
    "deep": deep(150),
    "very deep": deep(900),
    "exponential": {
        "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"anyOf": [{"minLength": i}, {"maxLength": i}]}]}
                  for i in range(30)} | {"d30": {"type": "string"}},
        "$ref": "#/$defs/d0",
    },
    "doubling": {
        "$defs": {f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "minItems": 2}
                  for i in range(40)} | {"d40": {"type": "null"}},
        "$ref": "#/$defs/d0",
    },
    "wide": {"anyOf": [{"type": "object", "properties": {f"p{i}": {}}, "required": [f"p{i}"]} for i in range(3000)]},
    "many values": {"enum": list(range(30000))},
    "long strings": {"type": "string", "minLength": 90000, "maxLength": 100000},
    "long lists": {"type": "array", "items": {"type": "array", "maxItems": 50000}, "maxItems": 50000},
    "pattern": {"type": "string", "pattern": "^((((a{1,99}){1,99}){1,99}){1,99})*$"},
    "ambiguous pattern": {"type": "string", "pattern": "^(a*)*(a|a)*(.*)*$"},
    "parentheses": {"type": "string", "pattern": "(" * 3000},
    "names": {"type": "object", "properties": {"x" * i: {} for i in range(400)}, "additionalProperties": True},
    "numbers": {"type": "number", "minimum": 1e-15, "maximum": 1e14},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_end_within_a_second(name: str) -> None:
    begun = time.perf_counter()
    try:
        states = states_of(grammar_of(HOSTILE[name]))
        random_text(states, random.Random(1), most=300)
    except (SchemaError, native.NativeError) as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    assert time.perf_counter() - begun < 1.5


WORDS = [
    *(
        "type",
        "properties",
        "required",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "enum",
        "const",
        "minimum",
        "pattern",
    ),
    *(
        "maxLength",
        "minItems",
        "maxItems",
        "additionalProperties",
        "prefixItems",
        "format",
        "not",
        "multipleOf",
        "$defs",
    ),
]
VALUES = [
    "string",
    "object",
    "array",
    "integer",
    "a",
    "#",
    "#/properties/a",
    "date",
    "[a-z]+",
    0,
    1,
    -3,
    2.5,
    1e300,
    None,
]


def fuzzed(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 3)
    if kind < 3:
        return rng.choice([*VALUES, True, False])
    if kind == 3:
        return [fuzzed(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 4:
        return {rng.choice("ab"): fuzzed(rng, depth + 1) for _ in range(rng.randrange(3))}
    return {rng.choice(WORDS): fuzzed(rng, depth + 1) for _ in range(rng.randrange(1, 4))}


def test_fuzzed_schemas_are_refused_in_one_line_or_enforced() -> None:
    rng, enforced = random.Random(3), 0
    for _ in range(2000):
        schema = {"type": rng.choice(["object", "array", "string"]), **fuzzed_object(rng)}
        try:
            states = states_of(grammar_of(schema))
        except (SchemaError, native.NativeError) as error:
            message = str(error)
        else:
            message = ""
            enforced += 1
            text = random_text(states, rng, most=300)
            assert text is None or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), (schema, text)
        assert "\n" not in message
        assert len(message) < 400
    assert enforced > 100


def fuzzed_object(rng: random.Random) -> dict[str, Any]:
    found = fuzzed(rng)
    return found if isinstance(found, dict) else {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
@pytest.mark.hypothesis
def test_const_is_that_value(value: Any) -> None:
    try:
        text = dumped(value)
        text.encode()
    except UnicodeEncodeError:
        return
    states = states_of(grammar_of({"const": value}))
    assert matches(states, text)
    assert not matches(states, text + " ")
