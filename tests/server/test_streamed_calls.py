"""Calls of tools in streams, by pieces, as the clients of OpenAI and Anthropic see them; and those that break off."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from server_fakes import FakeModel
from server_run import serving

PARAMETERS: Any = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION: Any = {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
FLAT: Any = [{"type": "function", "strict": False, **FUNCTION}]
THEIRS: Any = [{"name": "weather", "description": "Of a city.", "input_schema": PARAMETERS}]
ASK: Any = [{"role": "user", "content": "Weather in Oslo?"}]
CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
ANSWERS = {
    "hermes": ("<tool_call>", f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>"),
    "coder": (
        "<tool_call>",
        "<tool_call><function=weather><parameter=city>Oslo</parameter></function></tool_call>" * 2,
    ),
    "mistral": ("[TOOL_CALLS]", f"[TOOL_CALLS][{CALL}, {CALL}]"),
    "llama": ('"parameters"', f"{CALL}; {CALL}"),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜>"
        + '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>' * 2
        + "<｜tool▁calls▁end｜>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|>"
        + '<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|>' * 2
        + "<|tool_calls_section_end|>",
    ),
    "lfm2": (
        "<|tool_call_start|>",
        "<|tool_call_start|>[weather(city='Oslo'), weather(city=\"Oslo\")]<|tool_call_end|>",
    ),
    "harmony": (
        "<|channel|><|message|>",
        '<|start|>assistant<|channel|>commentary to=functions.weather<|message|>{"city": "Oslo"}<|call|>' * 2,
    ),
}
BROKEN = '<tool_call>{"name": "weather", "arguments": {"city": Oslo}}</tool_call> Well.'
CUT = f"<tool_call>{CALL}"[:56]


def fake(text: str, mark: str = "<tool_call>") -> FakeModel:
    return FakeModel(lambda prompt, options: text, chat_template=mark + " {{ tools }} {{ messages }}")


@pytest.mark.parametrize("family", ANSWERS)
def test_streams_are_as_whole_answers(family: str) -> None:
    mark, text = ANSWERS[family]
    with serving(fake(text, mark)) as running:
        url = f"{running.url}/v1"
        with openai.OpenAI(base_url=url, api_key="x") as client:
            with client.chat.completions.stream(model="any", messages=ASK, tools=TOOLS) as stream:
                chat = stream.get_final_completion().choices[0]
            assert chat.finish_reason == "tool_calls"
            found = [call.function.arguments for call in chat.message.tool_calls or []]
            whole = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS).choices[0].message
            assert found == ['{"city": "Oslo"}'] * 2
            assert [getattr(call, "function").arguments for call in whole.tool_calls or []] == found  # noqa: B009
            with client.responses.stream(model="any", input="Weather?", tools=FLAT) as events:
                list(events)
                items: Any = events.get_final_response().output
            assert [(item.type, item.status, item.arguments) for item in items] == [
                ("function_call", "completed", '{"city": "Oslo"}')
            ] * 2
        with anthropic.Anthropic(base_url=running.url, api_key="x") as other:
            with other.messages.stream(model="any", max_tokens=999, messages=ASK, tools=THEIRS) as told:
                message = told.get_final_message()
            once = other.messages.create(model="any", max_tokens=999, messages=ASK, tools=THEIRS)
            for answer in (message, once):
                assert answer.stop_reason == "tool_use"
                blocks: Any = answer.content
                assert [block.input for block in blocks] == [{"city": "Oslo"}] * 2


@pytest.mark.parametrize(("text", "begun"), [(BROKEN, '{"city": '), (CUT, '{"city": "Os')])
def test_a_call_that_breaks_off_ends_a_stream_as_a_limit_does(text: str, begun: str) -> None:
    with serving(fake(text)) as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client:
        chunks = list(client.chat.completions.create(model="any", messages=ASK, tools=TOOLS, stream=True))
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert "".join(call.function.arguments or "" for call in calls if call.function) == begun
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert chunks[-1].choices[0].finish_reason == "length"

        whole = client.chat.completions.create(model="any", messages=ASK, tools=TOOLS).choices[0]
        assert (whole.message.content, whole.message.tool_calls, whole.finish_reason) == (text, None, "stop")


@pytest.mark.parametrize(("text", "begun"), [(BROKEN, '{"city": '), (CUT, '{"city": "Os')])
def test_a_call_that_breaks_off_in_responses(text: str, begun: str) -> None:
    with serving(fake(text)) as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client:
        events = list(client.responses.create(model="any", input="Weather?", tools=FLAT, stream=True))
        assert not any(event.type == "response.function_call_arguments.done" for event in events)
        last: Any = events[-1]
        call, said = last.response.output
        assert (last.type, last.response.incomplete_details.reason) == ("response.incomplete", "max_output_tokens")
        assert (call.status, call.arguments) == ("incomplete", begun)
        assert said.content[0].text == text
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert {item.id for item in done} == {call.id, said.id}
        whole = client.responses.create(model="any", input="Weather?", tools=FLAT)
        assert (whole.status, [item.type for item in whole.output], whole.output_text) == (
            "completed",
            ["message"],
            text,
        )


@pytest.mark.parametrize(("text", "begun"), [(BROKEN, '{"city": '), (CUT, '{"city": "Os')])
def test_a_call_that_breaks_off_in_messages(text: str, begun: str) -> None:
    with serving(fake(text)) as running, anthropic.Anthropic(base_url=running.url, api_key="x") as client:
        with client.messages.stream(model="any", max_tokens=999, messages=ASK, tools=THEIRS) as stream:
            events = list(stream)
            message = stream.get_final_message()
        assert "".join(event.partial_json for event in events if event.type == "input_json") == begun
        assert (message.stop_reason, [block.type for block in message.content]) == ("max_tokens", ["tool_use", "text"])
        assert message.content[1].model_dump()["text"] == text
        whole = client.messages.create(model="any", max_tokens=999, messages=ASK, tools=THEIRS)
        assert (whole.stop_reason, [block.type for block in whole.content]) == ("end_turn", ["text"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_that_a_limit_cuts(stream: bool) -> None:
    with serving(fake(f"<tool_call>{CALL}</tool_call>")) as running:
        body = {"messages": ASK, "tools": TOOLS, "stream": stream, "max_tokens": 30}
        text = running.http.post(f"{running.url}/v1/chat/completions", json=body).text
        if not stream:
            choice = json.loads(text)["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (f"<tool_call>{CALL}"[:30], "length")
            assert "tool_calls" not in choice["message"]
            return
        choices = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n")[:-2]]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == f"<tool_call>{CALL}"[:30]
        assert choices[-1]["finish_reason"] == "length"
        assert not any("tool_calls" in choice["delta"] for choice in choices), "its arguments have not begun"
