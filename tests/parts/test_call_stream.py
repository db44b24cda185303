"""Calls of tools before they are whole: names and pieces of arguments, whatever pieces the text comes in."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_calls import CALL, DEEPSEEK, DEEPSEEK_R1, GLM, KIMI, LLAMA_CALL, TEXTS, TOOLS, WRITTEN, XML, cut, read

from medusa_cli.parts.call_formats import DEEPSEEK_CALLS, HERMES, KIMI_CALLS, LISTED, LLAMA, MISTRAL, Format
from medusa_cli.parts.json_text import JsonObject
from medusa_cli.parts.marks import FAMILIES
from medusa_cli.parts.records import Parts
from medusa_cli.parts.splitter import Grammar, Splitter

PLACES = st.lists(st.integers(0, 500), max_size=8)
IN_JSON = [
    (HERMES, f"I look.<tool_call>\n{CALL}", 1),
    (HERMES, f"<tool_call>{{{CALL}", 1),
    (HERMES, f"```json\n{CALL}", 1),
    (HERMES, f"{CALL}\n```json\n{CALL}", 2),
    (HERMES, '<function=weather>{"city": "Oslo", "days": 3}', 1),
    (LLAMA, LLAMA_CALL, 1),
    (LLAMA, f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", 2),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}, {CALL}", 2),
    (MISTRAL, f'[TOOL_CALLS][{CALL[:-1]}, "id": "a1b2c3d4e"}}, {CALL}', 2),
    (
        MISTRAL,
        'Well.[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{"days": 3}',
        2,
    ),
    (LISTED, f"<|tool_call|>[{CALL}, {CALL}", 2),
    (LISTED, f"[{CALL}", 1),
    (LISTED, f"<tool_calls>\n{CALL}\n{CALL}", 2),
    (LISTED, '<|START_ACTION|>[\n{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}', 1),
    (DEEPSEEK_CALLS, f"<｜tool▁calls▁begin｜>{DEEPSEEK}{DEEPSEEK}", 2),
    (KIMI_CALLS, f"<|tool_calls_section_begin|>{KIMI}\n{KIMI}", 2),
    (DEEPSEEK_CALLS, f"Hm.<｜tool▁calls▁begin｜>{DEEPSEEK_R1}\n{DEEPSEEK_R1}", 2),
]
"""Texts without what ends them: so all that they tell is told before."""


def told(parts: Parts) -> dict[str, str]:
    """The arguments of calls by their ids, as pieces tell them."""
    found: dict[str, str] = {}
    for piece in parts.call_pieces:
        found[piece.id] = found.get(piece.id, "") + piece.arguments
    return found


def fed(form: Format, pieces: Sequence[str]) -> Parts:
    """Without the end."""
    splitter, parts = Splitter(Grammar(None, form), "", (), TOOLS), Parts()
    for piece in pieces:
        parts += splitter.feed(piece)
    return parts


@pytest.mark.parametrize(("form", "text", "count"), IN_JSON)
def test_arguments_come_as_they_are_written(form: Format, text: str, count: int) -> None:
    parts = fed(form, list(text))
    assert len(told(parts)) == count
    for arguments in told(parts).values():
        assert json.loads(arguments).items() <= {"city": "Oslo", "days": 3}.items()
    assert len(parts.call_pieces) > 5 * count
    assert {piece.name for piece in parts.call_pieces} == {"weather"}


@given(which=st.integers(0, len(WRITTEN) - 1), places=PLACES)
def test_pieces_make_the_same_calls_however_a_text_comes(which: int, places: list[int]) -> None:
    form, text, _, _ = WRITTEN[which]
    parts, whole = read(form, cut(text, places)), read(form, [text])
    assert told(parts) == {call.id: call.arguments for call in parts.calls}
    assert [call.arguments for call in parts.calls] == [call.arguments for call in whole.calls]
    assert parts.text == whole.text


@given(which=st.integers(0, len(WRITTEN) - 1), length=st.integers(0, 400), places=PLACES)
def test_a_call_that_is_cut_off_is_whole_or_begun(which: int, length: int, places: list[int]) -> None:
    form, text, _, _ = WRITTEN[which]
    parts, whole = read(form, cut(text[:length], places)), read(form, [text[:length]])
    assert parts.text == whole.text
    assert list(told(parts).values()) == list(told(whole).values())
    assert [call.arguments for call in parts.calls] == [call.arguments for call in whole.calls]
    assert all(told(parts)[call.id] == call.arguments for call in parts.calls)


@given(which=st.integers(0, len(TEXTS) - 1), places=PLACES)
def test_what_breaks_off_is_the_beginning_of_json(which: int, places: list[int]) -> None:
    form, text = TEXTS[which]
    parts = read(form, cut(text, places))
    assert list(told(parts).values()) == list(told(read(form, [text])).values())
    assert parts.text == text
    for arguments in told(parts).values():
        JsonObject().feed(arguments)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "no such tool", "arguments": {"city": "Oslo"}}</tool_call>',
        '<tool_call>{"arguments": {"city": "Oslo"}, "name": "weather"}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": "{}"}</tool_call>',
        "<tool_call><function=now>\n</function></tool_call>",
        "<tool_call>" + " " * 1000 + f"{CALL}</tool_call>",
    ],
)
def test_what_cannot_be_told_before_comes_whole_or_not_at_all(text: str) -> None:
    assert fed(HERMES, list(text.removesuffix("</tool_call>"))).call_pieces == ()
    parts = read(HERMES, list(text))
    assert told(parts) == {call.id: call.arguments for call in parts.calls}


@pytest.mark.parametrize("text", [f"<tool_call>{XML}", f"I look.\n{XML}", f"<tool_call>{GLM}"])
def test_arguments_without_quotes_come_one_by_one(text: str) -> None:
    parts = fed(HERMES, list(text.removesuffix("</function>")))
    assert [piece.arguments for piece in parts.call_pieces] == ["{", '"city": "Oslo"', ', "days": 3']
    assert len({piece.id for piece in parts.call_pieces}) == 1
    parts = read(HERMES, list(text + "</tool_call>"))
    assert told(parts) == {call.id: '{"city": "Oslo", "days": 3}' for call in parts.calls}
    assert len(parts.calls) == 1


def test_arguments_without_an_end_of_their_own() -> None:
    text = (
        "<tool_call><function=weather><parameter=city>Oslo<parameter=days>3</parameter><parameter=units>{}</function>"
    )
    parts = read(HERMES, list(text))
    assert list(told(parts).values()) == ['{"city": "Oslo", "days": 3, "units": {}}']
    assert len(parts.calls) == 1


def test_arguments_that_come_twice() -> None:
    one, other = "<parameter=days>1</parameter>", "<parameter=days>2</parameter>"
    parts = read(HERMES, list(f"<tool_call><function=weather>{one}{other}</function></tool_call>"))
    assert [json.loads(call.arguments) for call in parts.calls] == [{"days": 2}]
    assert told(parts)[parts.calls[0].id] == parts.calls[0].arguments


def test_a_call_within_a_value_is_none() -> None:
    text = f"<tool_call><function=weather><parameter=city>{CALL}</parameter></function></tool_call>"
    assert [json.loads(one) for one in told(read(HERMES, list(text))).values()] == [{"city": CALL}]


def test_a_name_that_comes_twice() -> None:
    parts = read(HERMES, ['<tool_call>{"name": "weather", "arguments": {}, "name": "now"}</tool_call>'])
    assert [call.name for call in parts.calls] == ["now"]
    assert [piece.name for piece in parts.call_pieces] == ["weather", "now"]
    assert parts.calls[0].id == parts.call_pieces[1].id


def test_after_a_call_that_broke_off_others_come_whole() -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {{"city": Oslo}}}}</tool_call><tool_call>{CALL}</tool_call>'
    parts = read(HERMES, list(text))
    first, second = told(parts).items()
    assert first[1] == '{"city": '
    assert second == (parts.calls[0].id, '{"city": "Oslo", "days": 3}')
    assert parts.call_pieces[-1].arguments == second[1]
    assert parts.text == text.removesuffix(f"<tool_call>{CALL}</tool_call>")


def test_harmony_s_arguments() -> None:
    text = '<|channel|>commentary to=functions.weather<|message|>{"city": "Oslo"}'
    splitter, parts = Splitter(Grammar(FAMILIES[0]), "<|start|>assistant", (), TOOLS), Parts()
    for piece in text:
        parts += splitter.feed(piece)
    assert list(told(parts).values()) == ['{"city": "Oslo"}']
    assert parts.calls == ()
    parts += splitter.feed("<|call|>") + splitter.finish()
    assert told(parts) == {call.id: call.arguments for call in parts.calls}
    assert parts.text == ""


def test_harmony_s_arguments_that_break_off() -> None:
    for text in ('{"city": "Os', '{"city": Oslo}', '{"city": "Oslo"} Done.'):
        splitter = Splitter(Grammar(FAMILIES[0]), "<|start|>assistant", (), TOOLS)
        parts = splitter.feed(f" to=functions.weather<|channel|>commentary json<|message|>{text}") + splitter.finish()
        assert (parts.text, parts.calls, len(told(parts))) == (text, (), 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    value=st.dictionaries(st.text(max_size=3), VALUES, max_size=4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 1]),
    places=PLACES,
)
def test_objects_in_any_pieces(value: object, ascii_only: bool, indent: int | None, places: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    reader = JsonObject()
    for piece in cut(text, places):
        assert reader.feed(piece)[1] == ""
    assert reader.done
    assert reader.text == text


@given(text=st.text(alphabet='{}[]:,"\\u0dDc8 n1-.e+tfalsru\n'), places=PLACES)
def test_what_is_accepted_is_json(text: str, places: list[int]) -> None:
    text = "{" + text
    readers = JsonObject(), JsonObject()
    for reader, pieces in zip(readers, ([text], cut(text, places)), strict=True):
        try:
            for piece in pieces:
                if not reader.done:
                    reader.feed(piece)
        except ValueError:
            pass
    assert readers[0].text == readers[1].text
    if readers[0].done:
        json.loads(readers[0].text).items()
        readers[0].text.encode()


@pytest.mark.parametrize(
    "text",
    ['{"a":}', '{"a" 1,', '{,', '{"a":1,}', '{"a":[1,]', '{"a":01 ', '{"a":nan ', '{"a":1e999 ', '{"a":[}', '{"a":{]',
     r'{"a":"\x', r'{"a":"\ud800"', r'{"a":"\udc00 ', r'{"a":"\ud800\n', "[", "x",
     '{"a":' + "[" * 300, '{"a"}', '{1', '{"a":1 2', '{"a":1:'],
)  # fmt: skip
def test_what_is_no_object(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        JsonObject().feed(text)


@pytest.mark.skipif(not hasattr(sys, "get_int_max_str_digits"), reason="this Python reads numbers of any length")
def test_numbers_have_an_end() -> None:
    with pytest.raises(ValueError, match="limit"):
        JsonObject().feed('{"a":' + "9" * 5000 + " ")


def test_line_ends_in_strings_are_escaped() -> None:
    reader = JsonObject()
    assert reader.feed('{"a": "x\ny\t') == (r'{"a": "x\ny\t', "")
    assert reader.feed('"} and') == ('"}', " and")
    assert json.loads(reader.text) == {"a": "x\ny\t"}
