"""OpenAI's `/v1/responses`, as its own client sees it: text, thinking, tools, streams, limits, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forced_model as forced
import httpx
import openai
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.api.model import Model
from medusa_cli.decoding.thinking import Thinking

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
TOOLS: Any = [
    {
        "type": "function",
        "name": "weather",
        "description": "Of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]
TEMPLATE = "<think> <tool_call> {{ messages }} {{ tools }}"
KINDS = ["reasoning", "message", "function_call"]


def script(prompt: str, options: Any) -> str:
    return "It rains." if "<tool>" in prompt else f"<think>Where?</think>I look.<tool_call>{CALL}</tool_call>"


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel(script, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def running(model: FakeModel) -> Iterator[Running]:
    with serving(model) as found:
        yield found


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def post(running: Running, body: Any) -> httpx.Response:
    return running.http.post(running.url + "/v1/responses", json={"input": "Weather?", **body})


def test_thinking_text_a_call_and_its_result(client: openai.OpenAI, model: FakeModel) -> None:
    answer = client.responses.create(model="any", input="Weather?", instructions="Be brief.", tools=TOOLS)
    assert [item.type for item in answer.output] == KINDS
    thought, _, call = answer.output
    assert isinstance(thought, openai.types.responses.ResponseReasoningItem)
    assert isinstance(call, openai.types.responses.ResponseFunctionToolCall)
    assert [part.text for part in thought.content or []] == ["Where?"]
    assert (answer.output_text, answer.status) == ("I look.", "completed")
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    assert answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens == len("Where?</think>")
    assert model.asked[-1][0] == "<system>Be brief.<user>Weather?"
    assert model.tools[-1][0]["function"]["parameters"] == TOOLS[0]["parameters"]

    output: Any = [item.model_dump(exclude_none=True) for item in answer.output]
    returned: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    asked: Any = {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}
    told = client.responses.create(model="any", input=[asked, *output, returned], tools=TOOLS)
    assert told.output_text == "It rains."
    assert model.asked[-1][0] == "<user>Weather?<assistant>I look.<tool>rain"


def test_a_stream_is_the_same(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="any", input="Weather?", tools=TOOLS)
    with client.responses.stream(model="any", input="Weather?", tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    for one, other in zip(whole.output, final.output, strict=True):
        ids = {"id", "call_id", "parsed_arguments"}
        assert (
            one.model_dump(exclude=ids)
            == {key: value for key, value in other.model_dump(exclude=ids).items() if key in one.model_dump()}
            or one.type == "message"
        )
    assert final.output_text == whole.output_text
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    arguments = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert (text, thought, json.loads(arguments)) == ("I look.", "Where?", {"city": "Oslo"})


def test_items_become_messages() -> None:
    found: list[Any] = []

    class Noting(FakeModel):
        def tokens(self, prompt: Any, **named: Any) -> list[int]:
            found.append(prompt)
            return super().tokens(prompt, **named)

    def call(number: int) -> Any:
        return {"type": "function_call", "call_id": f"c{number}", "name": "weather", "arguments": "{}"}

    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Wait."}]},
        call(1),
        call(2),
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "one"}]},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "So."}]},
        call(3),
        {"type": "function_call_output", "call_id": "c3", "output": ""},
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": "And?"},
    ]
    with serving(Noting(script, chat_template=TEMPLATE)) as running:
        response = post(running, {"input": items, "instructions": "Be brief."})
    assert response.status_code == 200, response.text
    roles = [message["role"] for message in found[0]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool", "user"]
    assert found[0][0]["content"] == "Be brief.\n\nBe kind."
    assert (found[0][2]["content"], found[0][2]["reasoning_content"]) == ("Wait.", "Hm.")
    assert [one["id"] for one in found[0][2]["tool_calls"]] == ["c1", "c2"]
    assert (found[0][5]["content"], found[0][5]["reasoning_content"]) == ("", "So.")


def test_limits(client: openai.OpenAI, tmp_path: Path) -> None:
    answer = client.responses.create(model="any", input="Weather?", max_output_tokens=9)
    assert (answer.status, [item.type for item in answer.output]) == ("incomplete", ["reasoning"])
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    events = list(client.responses.create(model="any", input="Weather?", max_output_tokens=9, stream=True))
    assert events[-1].type == "response.incomplete"
    said = [forced.THINKING, forced.AFTER_A_LINE]
    path = forced.write_forced_model(tmp_path / "m.gguf", forced.SWITCHED, said, ["<|user|>", forced.ASSISTANT])
    with (
        Model(path, quiet=True) as real,
        serving(real, {"temperature": 0.0}) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none") as other,
    ):
        assert other.responses.create(model="any", input="Hi").output_text == "Hello to you!"
        off = other.responses.create(model="any", input="Hi", reasoning={"effort": "none"})
        assert [item.type for item in off.output] == ["message"]


@pytest.mark.parametrize("parallel", [True, False, None])
def test_one_call_alone(running: Running, model: FakeModel, parallel: bool | None) -> None:
    assert post(running, {"parallel_tool_calls": parallel}).status_code == 200
    assert model.one_call[-1] is (parallel is False)


def test_effort(running: Running, model: FakeModel) -> None:
    assert post(running, {"reasoning": {"effort": "high", "summary": "auto"}}).status_code == 200
    assert model.wanted[-1] == Thinking(True, "high")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "assistant", "content": ""}]}, "messages"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0]"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "no JSON"}]}, "arguments"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, "'not'"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)
def test_what_is_wrong_or_not_supported_gets_400(running: Running, fields: Any, place: str) -> None:
    response = post(running, fields)
    assert response.status_code == 400
    assert place in response.json()["error"]["message"]
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


def test_what_changes_nothing_is_ignored(running: Running) -> None:
    fields = {"store": True, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "x", "background": False}
    assert post(running, {**fields, "previous_response_id": None, "text": {"verbosity": "medium"}}).status_code == 200


def test_an_engine_that_fails_within_a_stream(capfd: pytest.CaptureFixture[str]) -> None:
    def broken(prompt: str, options: Any) -> str:
        raise RuntimeError("bits lost")

    with (
        serving(FakeModel(broken)) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.APIError, match="the engine failed"),
    ):
        list(client.responses.create(model="any", input="Hi", stream=True))
    assert "bits lost" in capfd.readouterr().err
