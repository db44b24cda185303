"""Calls of tools: what the families of models write, in one piece and in any pieces; what is no call stays text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli.parts.call_formats import (
    DEEPSEEK_CALLS,
    FENCED_PYTHON,
    FORMATS,
    HERMES,
    INVOKED,
    KIMI_CALLS,
    LISTED,
    LLAMA,
    MISTRAL,
    PYTHON,
    Format,
    format_of,
    may_call,
)
from medusa_cli.parts.marks import FAMILIES
from medusa_cli.parts.records import Parts
from medusa_cli.parts.splitter import Grammar, Splitter

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "units": {"type": "object"},
    },
}
TOOLS = {"weather": SCHEMA, "now": {}}
ARGUMENTS = {"city": "Oslo", "days": 3}
CALL = '{"name": "weather", "arguments": {"city": "Oslo", "days": 3}}'
LLAMA_CALL = '{"name": "weather", "parameters": {"city": "Oslo", "days": 3}}'
XML = "<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
GLM = (
    "weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
)
DEEPSEEK = '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo", "days": 3}<｜tool▁call▁end｜>'
DEEPSEEK_R1 = (
    '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Oslo", "days": 3}\n```<｜tool▁call▁end｜>'
)
GEMMA = 'call:weather{city:<|"|>Oslo<|"|>,days:3}'
COMMAND = '{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo", "days": 3}}'
DSML = (
    '<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>'
)
MINIMAX = (
    '<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n<parameter name="days">3</parameter>\n</invoke>'
)
KIMI = '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Oslo", "days": 3}<|tool_call_end|>'
PY = 'weather(city="Oslo", days=3)'
GEMMA_4, FUNCTION_GEMMA = FORMATS[0], FORMATS[1]
WRITTEN = [
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", 1),
    (HERMES, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>", "Let me see.\n", 2),
    (HERMES, f"<tool_call>\n{CALL}", "", 1),  # the end was not written
    (HERMES, f"<tool_call>{{{CALL}}}</tool_call>", "", 1),  # brackets twice, as in the template's example
    (HERMES, f"```json\n{CALL}\n```", "", 1),  # as Qwen2.5-Coder writes it
    (HERMES, f"{CALL}\n```json\n{CALL}\n```\n", "", 2),
    (HERMES, f"<tool_call>{CALL}</tool_call> That was it.", "That was it.", 1),
    (HERMES, f"<tool_call>\n{XML}\n</tool_call>\n<tool_call>\n{XML}\n</tool_call>", "", 2),  # Qwen3-Coder
    (HERMES, f"I look.\n{XML}\n</tool_call>", "I look.\n", 1),  # it often leaves out the first mark
    (HERMES, f"<tool_call>{GLM}</tool_call>\n<tool_call>{GLM}</tool_call>", "", 2),
    (HERMES, '<function=weather>{"city": "Oslo", "days": 3}</function>', "", 1),
    (LLAMA, LLAMA_CALL, "", 1),
    (LLAMA, f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", "", 2),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}, {CALL}]", "", 2),
    (MISTRAL, f"[{CALL}]", "", 1),
    (MISTRAL, 'Well.[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 3}', "Well.", 1),
    (MISTRAL, '[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo", "days": 3}', "", 1),
    (LISTED, f"<|tool_call|>[{CALL}, {CALL}]", "", 2),
    (LISTED, f"[{CALL}]", "", 1),
    (LISTED, f"<TOOLCALL>[{CALL}]</TOOLCALL>", "", 1),
    (LISTED, f"Look.<tool_calls>\n{CALL}\n{CALL}\n</tool_calls>", "Look.", 2),
    (LISTED, f"<|START_ACTION|>[{COMMAND}]<|END_ACTION|>", "", 1),
    (INVOKED, f"<｜DSML｜function_calls>\n{DSML}\n{DSML}\n</｜DSML｜function_calls>", "", 2),
    (INVOKED, f"<minimax:tool_call>\n{MINIMAX}\n</minimax:tool_call>", "", 1),
    (DEEPSEEK_CALLS, f"<｜tool▁calls▁begin｜>{DEEPSEEK}{DEEPSEEK}<｜tool▁calls▁end｜>", "", 2),
    (DEEPSEEK_CALLS, f"Hm.<｜tool▁calls▁begin｜>{DEEPSEEK_R1}\n{DEEPSEEK_R1}<｜tool▁calls▁end｜>", "Hm.", 2),
    (GEMMA_4, f"<|tool_call>{GEMMA}<tool_call|><|tool_call>{GEMMA}<tool_call|>", "", 2),
    (KIMI_CALLS, f"Hm.<|tool_calls_section_begin|>{KIMI}{KIMI}<|tool_calls_section_end|>", "Hm.", 2),
    (KIMI_CALLS, f"<|tool_calls_section_begin|>\n{KIMI}\n<|tool_calls_section_end|>\nDone.", "Done.", 1),
    (PYTHON, f"<|tool_call_start|>[{PY}]<|tool_call_end|>", "", 1),
    (PYTHON, f"Look.<|tool_call_start|>[{PY}, {PY}]<|tool_call_end|>Done.", "Look.Done.", 2),
    (PYTHON, f"<|tool_call_start|>[{PY}]", "", 1),
    (FENCED_PYTHON, f"Look.\n```tool_code\n{PY}\n```", "Look.\n", 1),
    (FENCED_PYTHON, f"```tool_code\nprint({PY})\n{PY}\n```\n```py\nx = 1\n```", "```py\nx = 1\n```", 2),
    (FENCED_PYTHON, f"```tool_code\n{PY}\n```\n```tool_code\n{PY}\n```", "", 2),
    (FUNCTION_GEMMA, "<start_function_call>call:weather{city:<escape>Oslo<escape>,days:3}<end_function_call>", "", 1),
]
TEXTS = [
    (HERMES, "a < b, <tool_box> and <tool_call"),
    (HERMES, "<tool_call> is how one calls a tool"),
    (HERMES, '<tool_call>{"name": "no such tool", "arguments": {}}</tool_call>, or not'),
    (HERMES, "<tool_call>\n<function=nothing>\n</function>\n</tool_call>"),
    (HERMES, "<tool_call>nothing\n<arg_key>a</arg_key>\n<arg_value>b</arg_value></tool_call>"),
    (HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "Os'),
    (HERMES, "<tool_call>\n<function=weather>\n<parameter=city>\nOs"),
    (HERMES, "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>"),
    (HERMES, "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>da"),
    (HERMES, '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    (HERMES, '```json\n{"name": "no such tool", "arguments": {}}\n```'),
    (HERMES, '```json\n{"name": "weather", "arguments"'),
    (HERMES, '```json\n["name"]\n```'),
    (LLAMA, '{"city": "Oslo"}'),
    (LLAMA, "{ braces } in a text"),
    (LLAMA, "Hello {}"),
    (MISTRAL, "[1, 2] is a list"),
    (MISTRAL, "[{} is a beginning"),
    (MISTRAL, ""),
    (LISTED, "<|tool_call|> nothing"),
    (INVOKED, "<minimax:tool_call>nothing</minimax:tool_call>"),
    (DEEPSEEK_CALLS, "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"),
    (GEMMA_4, '<|tool_call>call:weather{city:<|"|>Oslo<tool_call|>'),
    (KIMI_CALLS, "<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>"),
    (KIMI_CALLS, f"<|tool_calls_section_begin|>{KIMI[:70]}"),
    (PYTHON, "<|tool_call_start|>[]<|tool_call_end|>"),
    (PYTHON, '<|tool_call_start|>[weather(city="Os'),
    (PYTHON, "<|tool_call_start|>[weather(city=Oslo)]<|tool_call_end|>"),
    (PYTHON, "<|tool_call_start|>[weather(city='Oslo')] and<|tool_call_end|>"),
    (FENCED_PYTHON, "```tool_code\nx = 1\n```"),
    (FENCED_PYTHON, "```py\nweather()\n```"),
]


def read(form: Format, pieces: Sequence[str]) -> Parts:
    splitter, parts = Splitter(Grammar(None, form), "", (), TOOLS), Parts()
    for piece in pieces:
        parts += splitter.feed(piece)
    return parts + splitter.finish()


def called(parts: Parts) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in parts.calls]


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[one:other] for one, other in pairwise(bounds)]


@given(which=st.integers(0, len(WRITTEN) - 1), places=st.lists(st.integers(0, 500), max_size=8))
def test_calls_in_any_pieces(which: int, places: list[int]) -> None:
    form, text, shown, count = WRITTEN[which]
    parts = read(form, cut(text, places))
    assert (parts.text, called(parts)) == (shown, [("weather", ARGUMENTS)] * count)
    assert len({call.id for call in parts.calls}) == count


@given(which=st.integers(0, len(TEXTS) - 1), places=st.lists(st.integers(0, 500), max_size=8))
def test_what_is_no_call_stays_text(which: int, places: list[int]) -> None:
    form, text = TEXTS[which]
    found = read(form, cut(text, places))
    assert (found.text, found.thinking, found.calls) == (text, "", ())


@given(
    which=st.integers(0, len(FORMATS) - 1),
    parts=st.lists(st.text(alphabet='<tool_ca>{}[]"name:,ARGSTOOL|=/\n'), max_size=6),
)
def test_nothing_gets_lost(which: int, parts: list[str]) -> None:
    found = read(FORMATS[which], parts)
    assert found.calls or found.text == "".join(parts)


@given(which=st.integers(0, len(WRITTEN) - 1), length=st.integers(0, 400))
def test_a_call_that_is_cut_off_is_whole_or_text(which: int, length: int) -> None:
    form, text, _, _ = WRITTEN[which]
    parts = read(form, list(text[:length]))
    for name, arguments in called(parts):
        assert name == "weather"
        assert set(arguments) <= set(ARGUMENTS)
    assert parts.calls or parts.text == text[:length]


def test_a_call_is_told_as_soon_as_it_is_whole() -> None:
    splitter = Splitter(Grammar(), "", (), TOOLS)
    assert splitter.feed("Well <to").text == "Well "
    assert splitter.feed("ad").text == "<toad"
    assert splitter.feed(f"<tool_call>{CALL}").calls == ()
    assert len(splitter.feed("</tool_call>").calls) == 1


def test_an_end_within_a_text_is_none() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"city": "</tool_call>"}}</tool_call>'
    assert called(read(HERMES, list(text))) == [("weather", {"city": "</tool_call>"})]


def test_line_ends_in_texts() -> None:
    assert called(read(HERMES, ['<tool_call>{"name": "weather", "arguments": {"city": "a\nb"}}</tool_call>'])) == [
        ("weather", {"city": "a\nb"})
    ]
    code = "def f():\n    return 1\n"
    text = f"<tool_call>\n<function=weather>\n<parameter=city>\n{code}\n</parameter>\n</function>\n</tool_call>"
    assert called(read(HERMES, [text])) == [("weather", {"city": code})]


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("city", "3", "3"),
        ("city", '"quoted"', '"quoted"'),
        ("days", "3", 3),
        ("days", "three", "three"),
        ("units", '{"a": [1, null]}', {"a": [1, None]}),
        ("other", "true", True),
        ("other", "True", True),
        ("other", "plain", "plain"),
    ],
)
def test_values_without_quotes_follow_the_schema(key: str, text: str, value: Any) -> None:
    written = f"<tool_call>weather<arg_key>{key}</arg_key><arg_value>{text}</arg_value></tool_call>"
    assert called(read(HERMES, [written])) == [("weather", {key: value})]


def test_gemma_s_values() -> None:
    inner = 'call:weather{city:<|"|>a, {b}: "c"<|"|>,units:{of:[1,true,<|"|>x<|"|>],<|"|>k y<|"|>:null}}'
    assert called(read(GEMMA_4, [f"<|tool_call>{inner}<tool_call|>"])) == [
        ("weather", {"city": 'a, {b}: "c"', "units": {"of": [1, True, "x"], "k y": None}})
    ]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'it''s'", "its"),
        (r"'a\n\'b\' \\ \d \x41\u00e9'", "a\n'b' \\ \\d Aé"),
        (r'"\ud83d\ude00"', "😀"),
        ('"""two\nlines "so" """', 'two\nlines "so" '),
        ('"a line\nbreak"', "a line\nbreak"),
        ("[True, false, None, null, -1.5e3]", [True, False, None, None, -1500.0]),
        ("{'a': {\"b\": (1, 2,)}, 'c': []}", {"a": {"b": [1, 2]}, "c": []}),
    ],
)
def test_python_s_values(written: str, value: Any) -> None:
    text = f"<|tool_call_start|>[weather(units={written}, city = ']<|tool_call_end|>(')]<|tool_call_end|>"
    assert called(read(PYTHON, list(text))) == [("weather", {"units": value, "city": "]<|tool_call_end|>("})]


def test_arguments_of_python_without_names() -> None:
    assert called(read(PYTHON, ["<|tool_call_start|>[weather('Oslo', 3), now()]<|tool_call_end|>"])) == [
        ("weather", ARGUMENTS),
        ("now", {}),
    ]
    for wrong in ("now(1)", "weather('a', city='b')", "weather(city='a', city='b')", "weather(1 + 1)", "weather(f())"):
        assert read(PYTHON, [f"<|tool_call_start|>[{wrong}]<|tool_call_end|>"]).calls == ()


def test_nesting_without_end() -> None:
    assert read(PYTHON, ["<|tool_call_start|>[now(" + "[" * 5000 + "]<|tool_call_end|>"]).calls == ()


def test_calls_without_arguments() -> None:
    for text in ("<tool_call>now</tool_call>", "<tool_call>\n<function=now>\n</function>\n</tool_call>"):
        assert called(read(HERMES, [text])) == [("now", {})]
    assert called(read(GEMMA_4, ["<|tool_call>call:now{}<tool_call|>"])) == [("now", {})]


def test_harmony_s_calls() -> None:
    for header in (
        "<|channel|>commentary to=functions.weather <|constrain|>json",
        " to=functions.weather<|channel|>commentary json",
        "<|channel|>analysis to=functions.weather",
    ):
        text = (
            f'<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{header}<|message|>{{"city": "Oslo"}}<|call|>'
        )
        for pieces in ([text], list(text)):
            splitter, parts = Splitter(Grammar(FAMILIES[0]), "<|start|>assistant", (), TOOLS), Parts()
            for piece in pieces:
                parts += splitter.feed(piece)
            parts += splitter.finish()
            assert (parts.thinking, parts.text, called(parts)) == ("Hm.", "", [("weather", {"city": "Oslo"})])


def test_a_call_after_a_thinking() -> None:
    splitter = Splitter(Grammar(FAMILIES[-1]), "", (), TOOLS)
    parts = splitter.feed(f"<think><tool_call>{CALL}</tool_call>?</think>\n<tool_call>{CALL}</tool_call>")
    assert parts.thinking == f"<tool_call>{CALL}</tool_call>?"
    assert len(parts.calls) == 1


def test_marks_without_a_text_of_their_own() -> None:
    ids = {"[TOOL_CALLS]": 5, "[ARGS]": 6}
    grammar = Grammar.of("[TOOL_CALLS]{{ tools }}", lambda text: [ids[text]] if text in ids else [0, 0])
    splitter = Splitter(grammar, "", (), TOOLS)
    parts = splitter.feed("", 5) + splitter.feed("weather") + splitter.feed("", 6) + splitter.feed('{"city": "Oslo"}')
    assert called(parts + splitter.finish()) == [("weather", {"city": "Oslo"})]


def test_formats_of_templates() -> None:
    assert format_of("{{ tools }} <tool_call>") is HERMES
    assert format_of('{{ tools }} {"name": x, "parameters": y}') is LLAMA
    assert format_of("[AVAILABLE_TOOLS]{{ tools }} [TOOL_CALLS]") is MISTRAL
    assert format_of("<|tool_call|> {{ tools }}") is LISTED
    assert format_of("<|tool_call> {{ tools }}") is GEMMA_4
    assert format_of("<｜tool▁calls▁begin｜> {{ tools }}") is DEEPSEEK_CALLS
    assert format_of("{{ tools }} {% set mark = '｜DSML｜' %}") is INVOKED
    assert format_of("{{ tools }}<|tool_calls_section_begin|>") is KIMI_CALLS
    assert format_of("List of tools: [{{ tools }}]") is PYTHON
    assert format_of("{{ tools }} Answer in ```tool_code") is FENCED_PYTHON
    assert may_call("{% if tools %}")
    assert may_call("{{ messages }}")
    assert not may_call("{{ messages }} {{ message.tool_calls }}")
    assert not may_call(None)


HALF_A_PAIR = r'{"name": "weather", "arguments": {"city": "\ud800"}}'
NO_NUMBER = '{"name": "weather", "arguments": {"degrees": NaN}}'
INFINITE = '{"name": "weather", "arguments": {"degrees": 1e999}}'
QUOTED_HALF = r'{"name": "weather", "arguments": "{\"city\": \"\\ud800\"}"}'
QUOTED_NO_JSON = '{"name": "weather", "arguments": "{city: Oslo}"}'


@pytest.mark.parametrize("written", [HALF_A_PAIR, NO_NUMBER, INFINITE, QUOTED_HALF, QUOTED_NO_JSON])
def test_what_json_or_utf_8_lacks_stays_text(written: str) -> None:
    found = read(HERMES, [written])
    assert (found.text, found.calls) == (written, ())


def test_arguments_may_be_quoted() -> None:
    quoted = r'{"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}'
    assert called(read(HERMES, [quoted])) == [("weather", {"city": "Oslo"})]
