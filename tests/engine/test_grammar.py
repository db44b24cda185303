"""Grammars over bytes and over tokens, compared with a slow matcher and with llama.cpp's."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import random
import time
from pathlib import Path
from typing import Any

import _native_testing as testing
import pytest
from grammar_walks import matches, states_of
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native

JSON = r"""
root   ::= value
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ( pair ("," pair)* )? "}"
pair   ::= string ":" value
array  ::= "[" ( value ("," value)* )? "]"
string ::= "\"" ( [^"\\\x00-\x1f] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\""
number ::= "-"? ( "0" | [1-9] [0-9]* ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]+ )?
"""


# --- texts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gbnf", "right", "wrong"),
    [
        ('root ::= "a" | "bc"', ["a", "bc"], ["", "b", "ab", "abc"]),
        ("root ::= [a-c]+", ["a", "cab"], ["", "d", "ad"]),
        ("root ::= [^a-c]*", ["", "xyz", "ä€😀"], ["a", "xb"]),
        ('root ::= "x"{2,3}', ["xx", "xxx"], ["x", "xxxx"]),
        ('root ::= "x"{2}', ["xx"], ["x", "xxx"]),
        ('root ::= "x"{2,}', ["xx", "xxxxxx"], ["x"]),
        ('root ::= ("a" | "b")? "c"', ["c", "ac", "bc"], ["abc", "ab"]),
        ("root ::= .", ["a", "\n", "é", "€", "😀"], ["", "ab"]),
        ("root ::= [€-₿]", ["€", "₿"], ["₀", "é"]),
        ('root ::= "\\u20ac\\x41\\n"', ["€A\n"], ["€A"]),
        ('root ::= "("  root ")" | "x"', ["x", "((x))"], ["(x", "x)"]),
        ('root ::= a b\na ::= "x"*\nb ::= a "y"?', ["", "xx", "xxy"], ["yx"]),
        ('root ::= ("a"* "b"*)*  # of what may be empty', ["", "abba"], ["c"]),
        ('root ::= (\n "a" |\n "b"\n)\n', ["a", "b"], ["c"]),
        ("root ::= [-a]", ["-", "a"], ["b"]),
        ("root ::= [\\]x]", ["]", "x"], ["\\"]),
        ('root ::= "é" | "è"', ["é", "è"], ["e"]),
    ],
)
def test_texts(gbnf: str, right: list[str], wrong: list[str]) -> None:
    states = states_of(gbnf)
    assert [text for text in right if not matches(states, text)] == []
    assert [text for text in wrong if matches(states, text)] == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=20,
    ),
    st.booleans(),
)
@pytest.mark.hypothesis
def test_json_is_what_json_writes(value: object, ascii_only: bool) -> None:
    try:
        text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return
    states = states_of(JSON)
    assert matches(states, text)
    assert not any(
        states.accepts(states.after(states.start, text[:end])) for end in range(len(text)) if text[0] in b'{["'
    )


def test_states_do_not_grow_with_the_text() -> None:
    states = states_of(JSON)
    state = states.after(states.start, b'{"a":[' + b'1.5,"text \xc3\xa9",' * 10)
    count = states.count
    state = states.after(state, b'1.5,"text \xc3\xa9",' * 5000)
    assert state >= 0
    assert states.count == count


def test_characters_that_are_no_utf8_never_follow() -> None:
    states = states_of("root ::= .*")
    for wrong in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3a", b"\x80"):
        assert not matches(states, wrong)
    assert states.after(states.start, b"\xe2\x82") >= 0
    assert not matches(states, b"\xe2\x82")


def test_forced_bytes() -> None:
    states = states_of('root ::= "abc" [0-9] "x"')
    assert chr(states.forced(states.start)) == "a"
    assert states.forced(states.after(states.start, b"abc")) == -1
    end = states.after(states.start, b"abc1x")
    assert states.is_complete(end)
    assert states.forced(end) == -1


# --- a slow matcher --------------------------------------------------------------------------------

Node = tuple[Any, ...]


def gbnf_of(node: Node) -> str:
    kind, *rest = node
    if kind == "text":
        return f'"{rest[0]}"'
    if kind == "class":
        return f"[{''.join(rest[0])}]"
    if kind == "rule":
        return str(rest[0])
    if kind == "all":
        return "(" + " ".join(map(gbnf_of, rest[0])) + ")"
    if kind == "any":
        return "(" + " | ".join(map(gbnf_of, rest[0])) + ")"
    inner, least, most = rest
    return f"({gbnf_of(inner)}){{{least},{'' if most is None else most}}}"


def ends(node: Node, text: str, at: int, rules: dict[str, Node], depth: int = 0) -> frozenset[int]:
    """Where texts of a node that begin at a place may end."""
    kind, *rest = node
    if kind == "text":
        return frozenset({at + len(rest[0])} if text.startswith(rest[0], at) else ())
    if kind == "class":
        return frozenset({at + 1} if at < len(text) and text[at] in rest[0] else ())
    if kind == "rule":
        return ends(rules[rest[0]], text, at, rules, depth + 1) if depth < 12 else frozenset()
    if kind == "all":
        places = frozenset({at})
        for one in rest[0]:
            places = frozenset(end for place in places for end in ends(one, text, place, rules, depth))
        return places
    if kind == "any":
        return frozenset(end for one in rest[0] for end in ends(one, text, at, rules, depth))
    inner, least, most = rest
    found: set[int] = set()
    places = frozenset({at})
    if least == 0:
        found |= places
    for count in range(1, (len(text) + 2 if most is None else most) + 1):
        places = frozenset(end for place in places for end in ends(inner, text, place, rules, depth))
        if count >= least:
            found |= places
    return frozenset(found)


def nodes(names: list[str]) -> st.SearchStrategy[Node]:
    leaves = st.one_of(
        st.tuples(st.just("text"), st.sampled_from(["a", "b", "ab", "ba", ""])),
        st.tuples(st.just("class"), st.sampled_from([("a", "b"), ("b", "c"), ("c",)])),
        *([st.tuples(st.just("rule"), st.sampled_from(names))] if names else []),
    )
    counts = st.sampled_from([(0, 1), (0, None), (1, None), (2, 3), (0, 2), (1, 1)])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("all"), st.lists(inner, min_size=1, max_size=3).map(tuple)),
            st.tuples(st.just("any"), st.lists(inner, min_size=1, max_size=3).map(tuple)),
            st.tuples(inner, counts).map(lambda pair: ("times", pair[0], *pair[1])),
        ),
        max_leaves=6,
    )


@given(nodes([]), nodes(["r"]), nodes(["r", "s"]), nodes(["r", "s", "root"]), st.lists(st.text("abc", max_size=6)))
@pytest.mark.hypothesis
def test_a_slow_matcher_says_the_same(r: Node, s: Node, first: Node, rest: Node, texts: list[str]) -> None:
    # The root may call itself, behind a character.
    root: Node = ("any", (first, ("all", (("text", "a"), rest))))
    rules = {"r": r, "s": s, "root": root}
    states = states_of("\n".join(f"{name} ::= {gbnf_of(node)}" for name, node in rules.items()))
    for text in ["", "a", "ab", "aab", *texts]:
        assert matches(states, text) == (len(text) in ends(root, text, 0, rules)), text


# --- llama.cpp's -----------------------------------------------------------------------------------


@pytest.mark.model
def test_llama_cpp_allows_the_same_tokens(demo_model_path: Path) -> None:
    llama_cpp: Any = importlib.import_module("llama_cpp")
    model = native.Model(str(demo_model_path))
    texts = [model.token_piece(token) for token in range(model.n_vocab)]
    ours = testing.TokenGrammar(native.Grammar(JSON), texts, [model.tokenize("<|im_end|>")[0]])
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    theirs = llama_cpp.llama_model_load_from_file(str(demo_model_path).encode(), params)
    vocab = llama_cpp.llama_model_get_vocab(theirs)
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, JSON.encode(), b"root")
    try:
        state = ours.start
        text = '{"name":"Zoë \\u00e9","list":[1,-2.5e3,true,{"x":null}]}'
        for token in model.tokenize(text, add_special=False):
            data = (llama_cpp.llama_token_data * model.n_vocab)()
            for one in range(model.n_vocab):
                data[one].id = one
            array = llama_cpp.llama_token_data_array(data, model.n_vocab, -1, False)
            llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
            allowed = {data[i].id for i in range(array.size) if data[i].logit != float("-inf")}
            mine = set(ours.allowed(state))
            # Tokens for bytes that are not UTF-8 by themselves are checked more strictly here.
            differ = {t for t in allowed ^ mine if texts[t] and is_utf8(texts[t])}
            assert differ == set(), [texts[t] for t in differ]
            llama_cpp.llama_sampler_accept(sampler, token)
            state = ours.after(state, token)
        assert ours.accepts(state)
    finally:
        llama_cpp.llama_sampler_free(sampler)
        llama_cpp.llama_model_free(theirs)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- tokens ----------------------------------------------------------------------------------------

TOKENS = [b"</s>", b"a", b"b", b"ab", b"abc", b"c", b"", b"ab", b"\xc3", b"\xa9"]


def test_masks_are_the_tokens_that_may_follow() -> None:
    grammar = testing.TokenGrammar(native.Grammar('root ::= "ab" "c"? "é"?'), TOKENS, [0])
    assert grammar.allowed(grammar.start) == [1, 3, 4, 7]
    after = grammar.after(grammar.start, 3)
    assert grammar.allowed(after) == [0, 5, 8]
    assert grammar.accepts(after)
    assert grammar.after(after, 0) == -2
    assert grammar.after(grammar.start, 2) == -1
    assert grammar.after(grammar.start, 6) == -1  # without a text
    half = grammar.after(after, 8)
    assert grammar.allowed(half) == [9]
    assert not grammar.accepts(half)
    assert grammar.is_complete(grammar.after(half, 9))
    built = grammar.masks_built
    grammar.allowed(half)
    assert grammar.masks_built == built


def test_forced_text() -> None:
    grammar = testing.TokenGrammar(native.Grammar('root ::= "ab" "c"? "é"?'), TOKENS, [0])
    assert grammar.forced(grammar.start) == b"ab"
    assert grammar.forced(grammar.after(grammar.start, 3)) == b""


# --- what is wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gbnf", "says"),
    [
        ("", "no rule named root"),
        ('a ::= "x"', "no rule named root"),
        ("root ::= other", "uses rule other"),
        ('root ::= root "a" | "b"', "rule root of the grammar begins with itself"),
        ('root ::= a\na ::= b\nb ::= "x"? a "y" | "z"', "begins with itself"),
        ('root ::= "a" root', "no text matches"),
        ('root ::= "a', "line 1: a text or class does not end"),
        ("root ::= [a", "line 1: a text or class does not end"),
        ('root ::= "a"\nroot ::= "b"', "line 2: rule root is defined twice"),
        ('root ::= ("a"', 'line 1: ")" is missing before the end'),
        ('root ::= "a" )', 'line 1: ")" was not expected'),
        ('root := "a"', 'line 1: "::=" is missing'),
        ("root ::= [z-a]", "ends before it begins"),
        ('root ::= "a"{3,2}', "is impossible"),
        ('root ::= "a"{99999999999}', "too many"),
        ('root ::= "\\q"', "means nothing"),
        ('root ::= "\\ud800"', "names no character"),
        ("root ::= <think>", "tokens in grammars are not supported"),
        ('root ::= "a"**', "two repetitions in a row"),
        ("root ::= " + "(" * 300 + '"a"' + ")" * 300, "200 parentheses"),
        ('root ::= "a"{200000} "b"{200000} "c"{200000}', "too large"),
        ("root ::= [^\\x00-\\U0010ffff]", "no text matches"),
        ('root ::= ""\n\x00', "a name of a rule was expected"),
    ],
)
def test_errors_are_one_line(gbnf: str, says: str) -> None:
    with pytest.raises(native.NativeError) as error:
        native.Grammar(gbnf)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


HOSTILE = {
    "ambiguous": 'root ::= a a a a a a\na ::= b*\nb ::= "x"+',
    "nested repetitions": 'root ::= (((("x"{0,100}){0,100}){0,100}){0,100}){0,100}',
    "optional": "root ::= " + " ".join(['"x"?'] * 2000),
    "expressions": 'root ::= e\ne ::= t ("+" t)*\nt ::= "x" | "(" e ")" | "x" e "y" | "x" e',
    "twice": 'root ::= "x" root root | "x"',
    "many alternatives": "root ::= " + " | ".join(f'"{"x" * n}"' for n in range(1, 400)),
    "long": 'root ::= "x"{0,50000}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_end_soon(name: str) -> None:
    begun = time.monotonic()
    with contextlib.suppress(native.NativeError):
        states = states_of(HOSTILE[name])
        for _ in range(20):
            state = states.start
            for _ in range(50):
                if (state := states.after(state, b"x" * 10)) < 0:
                    break
        assert states.bytes < 64 << 20
    assert time.monotonic() - begun < 5


def test_a_broken_grammar_that_was_fuzzed_is_one_line() -> None:
    random.seed(7)
    pieces = [
        "root",
        "::=",
        "\n",
        '"',
        "a",
        "[",
        "]",
        "^",
        "-",
        "(",
        ")",
        "|",
        "*",
        "+",
        "?",
        "{",
        "2",
        ",",
        "}",
        "\\",
        "x",
    ]
    pieces += [".", "#", " ", "é", "\0", "b ::= ", "root ::= "]
    for _ in range(2000):
        text = "root ::= " * random.randrange(2) + "".join(random.choices(pieces, k=random.randrange(1, 30)))
        error = error_of(text)
        assert "\n" not in error
        assert not error or "grammar" in error


def error_of(gbnf: str) -> str:
    try:
        states = states_of(gbnf)
        states.after(states.start, b"aaaa")
    except native.NativeError as error:
        return str(error)
    return ""
