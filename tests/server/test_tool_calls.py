"""Calls of tools: what three families of models write, in one piece and in any pieces, and through the endpoint."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from server_fakes import FakeModel
from server_run import serving

from medusa_cli.server.tool_calls import Format, ToolReader, format_of, knows_tools

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
LLAMA = '{"name": "weather", "parameters": {"city": "Oslo"}}'
WRITTEN = [
    (Format.hermes, f"<tool_call>\n{CALL}\n</tool_call>", "", 1),
    (Format.hermes, f"Let me see.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{CALL}</tool_call>", "Let me see.\n", 2),  # noqa: E501
    (Format.hermes, f"<tool_call>\n{CALL}", "", 1),  # the end was not written
    (Format.hermes, f"```json\n{CALL}\n```", "", 1),  # as Qwen2.5-Coder writes it
    (Format.hermes, f"{CALL}\n```json\n{CALL}\n```\n", "", 2),
    (Format.llama, LLAMA, "", 1),
    (Format.llama, f"<|python_tag|>{LLAMA}; {LLAMA}", "", 2),
    (Format.mistral, f"[TOOL_CALLS] [{CALL}, {CALL}]", "", 2),
    (Format.mistral, f"[{CALL}]", "", 1),  # its special tokens have no text
    (Format.mistral, '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', "", 1),
]  # fmt: skip
TEXTS = [
    (Format.hermes, "a < b, <tool_box> and <tool_call"),
    (Format.hermes, "<tool_call> is how one calls a tool"),
    (Format.hermes, '<tool_call>{"name": "no such tool", "arguments": {}}</tool_call>'),
    (Format.hermes, '```json\n{"name": "no such tool", "arguments": {}}\n```'),
    (Format.hermes, '```json\n{"name": "weather", "arguments"'),
    (Format.hermes, '```json\n["name"]\n```'),
    (Format.llama, '{"city": "Oslo"}'),
    (Format.llama, "{ braces } in a text"),
    (Format.llama, "Hello {}"),
    (Format.mistral, "[1, 2] is a list"),
    (Format.mistral, "[{} is a beginning"),
    (Format.mistral, ""),
]


def read(form: Format, parts: list[str]) -> tuple[str, list[tuple[str, Any]]]:
    reader = ToolReader(form, {"weather"})
    shown = "".join(reader.feed(part) for part in parts)
    rest, calls = reader.finish()
    return shown + rest, [(call.name, json.loads(call.arguments)) for call in calls]


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[one:other] for one, other in pairwise(bounds)]


@given(which=st.sampled_from(WRITTEN), places=st.lists(st.integers(0, 500), max_size=8))
def test_calls_in_any_pieces(which: tuple[Format, str, str, int], places: list[int]) -> None:
    form, text, before, count = which
    assert read(form, cut(text, places)) == (before, [("weather", {"city": "Oslo"})] * count)


@given(which=st.sampled_from(TEXTS), places=st.lists(st.integers(0, 500), max_size=8))
def test_what_is_no_call_stays_text(which: tuple[Format, str], places: list[int]) -> None:
    form, text = which
    assert read(form, cut(text, places)) == (text, [])


@given(form=st.sampled_from(Format), parts=st.lists(st.text(alphabet='<tool_ca>{}[]"name:,ARGSTOOL'), max_size=6))
def test_nothing_gets_lost(form: Format, parts: list[str]) -> None:
    text, calls = read(form, parts)
    assert calls or text == "".join(parts)


def test_text_is_shown_as_soon_as_it_is_no_call() -> None:
    reader = ToolReader(Format.hermes, {"weather"})
    assert reader.feed("Well <to") == "Well "
    assert reader.feed("ad") == "<toad"
    assert ToolReader(Format.llama, {"weather"}).feed(" Hello") == " Hello"


def test_formats_of_templates() -> None:
    assert format_of("{{ tools }} <tool_call>") is Format.hermes
    assert format_of('{{ tools }} {"name": x, "parameters": y}') is Format.llama
    assert format_of("[AVAILABLE_TOOLS]{{ tools }} [TOOL_CALLS]") is Format.mistral
    assert knows_tools("{% if tools %}")
    assert not knows_tools("{{ messages }}")
    assert not knows_tools(None)


# --- through the endpoint --------------------------------------------------------------------------

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ASK: Any = [{"role": "user", "content": "Weather in Oslo?"}]


def test_a_call_and_its_result() -> None:
    model = FakeModel(lambda prompt, options: "It rains." if "<tool>" in prompt else f"<tool_call>{CALL}</tool_call>")
    with serving(model) as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client:
        answer = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS).choices[0]
        assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
        (call,) = answer.message.tool_calls or []
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
        assert model.tools[-1] == TOOLS
        messages = [*ASK, answer.message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        told = client.chat.completions.create(model="any", messages=messages, tools=TOOLS).choices[0]
        assert (told.finish_reason, told.message.content) == ("stop", "It rains.")

        chunks = list(client.chat.completions.create(model="any", messages=ASK, tools=TOOLS, stream=True))
        (streamed,) = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert streamed.index == 0
        assert streamed.function is not None
        assert (streamed.function.name, streamed.function.arguments) == ("weather", '{"city": "Oslo"}')
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert not any(chunk.choices[0].delta.content for chunk in chunks)

        plain = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS, tool_choice="none").choices[0]
        assert (plain.message.content, model.tools[-1]) == (f"<tool_call>{CALL}</tool_call>", None)


def test_a_template_without_tools() -> None:
    with (
        serving(FakeModel(chat_template="{{ messages }}")) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
        pytest.raises(openai.BadRequestError, match="does not support tools"),
    ):
        client.chat.completions.create(model="any", messages=ASK, tools=TOOLS)


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", r'{"city": "\ud800"}', '{"degrees": NaN}'])
def test_damaged_arguments_of_an_earlier_call(arguments: str) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": [call]}]
    with serving(FakeModel()) as running:
        response = running.http.post(f"{running.url}/v1/chat/completions", json={"messages": messages})
        assert response.status_code == 400
        assert "arguments" in response.json()["error"]["message"]


HALF_A_PAIR = r'{"name": "weather", "arguments": {"city": "\ud800"}}'
NO_NUMBER = '{"name": "weather", "arguments": {"degrees": NaN}}'
INFINITE = '{"name": "weather", "arguments": {"degrees": 1e999}}'
QUOTED_HALF = r'{"name": "weather", "arguments": "{\"city\": \"\\ud800\"}"}'
QUOTED_NO_JSON = '{"name": "weather", "arguments": "{city: Oslo}"}'


@pytest.mark.parametrize("written", [HALF_A_PAIR, NO_NUMBER, INFINITE, QUOTED_HALF, QUOTED_NO_JSON])
@pytest.mark.parametrize("stream", [True, False])
def test_what_json_or_utf_8_lacks_stays_text(written: str, stream: bool) -> None:
    with serving(FakeModel(lambda prompt, options: written)) as running:
        body = {"messages": ASK, "tools": TOOLS, "stream": stream}
        response = running.http.post(f"{running.url}/v1/chat/completions", json=body)
        assert response.status_code == 200
        if not stream:
            assert response.json()["choices"][0]["message"] == {"role": "assistant", "content": written}
            return
        *chunks, done, _ = response.text.split("\n\n")
        assert done == "data: [DONE]"
        deltas = [json.loads(chunk.removeprefix("data: "))["choices"][0]["delta"] for chunk in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == written
        assert not any("tool_calls" in delta for delta in deltas)


def test_arguments_may_be_quoted() -> None:
    quoted = r'{"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}'
    assert read(Format.hermes, [quoted]) == ("", [("weather", {"city": "Oslo"})])
