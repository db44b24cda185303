"""Calls of tools through OpenAI's endpoint, as its own client sees them. What models write: tests/parts."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from server_fakes import FakeModel
from server_run import serving

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
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
        name, *pieces = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert name.id
        assert name.function is not None
        assert (name.index, name.type, name.function.name, name.function.arguments) == (0, "function", "weather", "")
        for piece in pieces:
            assert piece.function is not None
            assert (piece.index, piece.id, piece.function.name) == (0, None, None)
        arguments = [piece.function.arguments or "" for piece in pieces if piece.function]
        assert len(arguments) > 3
        assert "".join(arguments) == '{"city": "Oslo"}'
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
        assert not any(chunk.choices[0].delta.content for chunk in chunks)

        plain = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS, tool_choice="none").choices[0]
        assert (plain.message.content, model.tools[-1]) == (f"<tool_call>{CALL}</tool_call>", None)


def test_a_template_that_shows_calls_but_takes_no_tools() -> None:
    with (
        serving(FakeModel(chat_template="{{ messages }} {{ messages[0].tool_calls }}")) as running,
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


def test_several_calls_in_a_stream() -> None:
    two = f"Both.<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>"
    with (
        serving(FakeModel(lambda prompt, options: two)) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
        client.chat.completions.stream(model="any", messages=ASK, tools=TOOLS) as stream,
    ):
        message = stream.get_final_completion().choices[0].message
    assert message.content == "Both."
    assert [json.loads(call.function.arguments) for call in message.tool_calls or []] == [{"city": "Oslo"}] * 2
    assert len({call.id for call in message.tool_calls or []}) == 2
