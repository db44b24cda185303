"""Anthropic's `/v1/messages`, as its own client sees it: text, thinking, tools, streams, counts, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import forced_model as forced
import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.api.model import Model
from medusa_cli.decoding.thinking import Thinking

CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'
TOOLS: Any = [
    {
        "name": "weather",
        "description": "Of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
ASK: Any = [{"role": "user", "content": "Weather in Oslo?"}]
TEMPLATE = "<think> <tool_call> {{ messages }} {{ tools }}"
KINDS = ["thinking", "text", "tool_use"]


def script(prompt: str, options: Any) -> str:
    if "<tool>" in prompt:
        return "It rains."
    return f"<think>Where?</think>I look.<tool_call>{CALL}</tool_call>"


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel(script, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def running(model: FakeModel) -> Iterator[Running]:
    with serving(model) as found:
        yield found


@pytest.fixture
def client(running: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as found:
        yield found


def post(running: Running, body: Any, path: str = "/v1/messages") -> httpx.Response:
    return running.http.post(running.url + path, json={"max_tokens": 99, "messages": ASK, **body})


def test_thinking_text_a_call_and_its_result(client: anthropic.Anthropic, model: FakeModel) -> None:
    answer = client.messages.create(model="any", max_tokens=999, messages=ASK, tools=TOOLS, system="Be brief.")
    assert [block.type for block in answer.content] == KINDS
    thought, text, call = answer.content
    assert isinstance(thought, anthropic.types.ThinkingBlock)
    assert isinstance(text, anthropic.types.TextBlock)
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (thought.thinking, text.text, call.name, call.input) == ("Where?", "I look.", "weather", {"city": "Oslo"})
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == ("assistant", "tool_use", None)
    assert model.asked[-1][0] == "<system>Be brief.<user>Weather in Oslo?"
    assert model.tools[-1][0]["function"]["parameters"] == TOOLS[0]["input_schema"]

    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "rain"}]}
    said: Any = [block.model_dump(exclude_none=True) for block in answer.content]
    more = [*ASK, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
    told = client.messages.create(model="any", max_tokens=999, messages=more, tools=TOOLS)
    assert [block.type for block in told.content] == ["text"]
    assert told.stop_reason == "end_turn"
    assert model.asked[-1][0] == "<user>Weather in Oslo?<assistant>I look.<tool>rain"


def test_a_stream_is_the_same(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="any", max_tokens=999, messages=ASK, tools=TOOLS)
    with client.messages.stream(model="any", max_tokens=999, messages=ASK, tools=TOOLS) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert [block.type for block in final.content] == KINDS
    for one, other in zip(whole.content, final.content, strict=True):
        left, right = one.model_dump(), other.model_dump()
        assert {key: left[key] for key in left if key != "id"} == {key: right.get(key) for key in left if key != "id"}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert (events[0].type, events[-1].type) == ("message_start", "message_stop")
    assert "".join(event.partial_json for event in events if event.type == "input_json") == '{"city": "Oslo"}'


def test_events_have_names(running: Running) -> None:
    text = post(running, {"stream": True}).text
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in text


def test_counts(client: anthropic.Anthropic, running: Running) -> None:
    counted = client.messages.count_tokens(model="any", messages=ASK, system="Be brief.", tools=TOOLS).input_tokens
    usage = client.messages.create(model="any", max_tokens=9, messages=ASK, system="Be brief.", tools=TOOLS).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert usage.output_tokens == 9
    assert post(running, {"messages": []}, "/v1/messages/count_tokens").status_code == 400


def test_limits_and_texts_that_stop(client: anthropic.Anthropic, tmp_path: Path) -> None:
    answer = client.messages.create(model="any", max_tokens=9, messages=ASK)
    assert (answer.stop_reason, [block.type for block in answer.content]) == ("max_tokens", ["thinking"])
    said = [forced.THINKING, forced.AFTER_A_LINE]
    path = forced.write_forced_model(tmp_path / "m.gguf", forced.SWITCHED, said, ["<|user|>", forced.ASSISTANT])
    with (
        Model(path, quiet=True) as real,
        serving(real, {"temperature": 0.0}) as running,
        anthropic.Anthropic(base_url=running.url, api_key="none") as other,
    ):
        answer = other.messages.create(model="any", max_tokens=99, messages=ASK, stop_sequences=["user", " to", "!"])
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", " to")
        assert answer.content[-1].model_dump()["text"] == "Hello"
        off = other.messages.create(model="any", max_tokens=99, messages=ASK, thinking={"type": "disabled"})
        assert [block.type for block in off.content] == ["text"]
        brief = other.messages.create(
            model="any", max_tokens=99, messages=ASK, thinking={"type": "enabled", "budget_tokens": 3}
        )
        assert brief.content[0].model_dump()["thinking"] == "So the"


@pytest.mark.parametrize(
    ("fields", "wanted", "budget"),
    [
        ({}, Thinking(), -1),
        ({"thinking": {"type": "disabled"}}, Thinking(False), -1),
        ({"thinking": {"type": "adaptive"}}, Thinking(), -1),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, Thinking(True), 2048),
        ({"output_config": {"effort": "low"}}, Thinking(True, "low"), -1),
    ],
)
def test_thinking(running: Running, model: FakeModel, fields: Any, wanted: Thinking, budget: int) -> None:
    assert post(running, fields).status_code == 200
    assert model.wanted[-1] == wanted
    assert model.asked[-1][1].get("think", -1) == budget


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"thinking": {"type": "enabled"}}, "budget_tokens"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"system": "\ud800"}, "surrogate"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages"])
def test_errors_have_anthropic_s_form(running: Running, path: str, fields: Any, place: str) -> None:
    body = json.dumps({"max_tokens": 99, "messages": ASK, **fields})
    headers = {"content-type": "application/json"}
    response = running.http.post(running.url + path, content=body, headers=headers)
    assert response.status_code == 400
    found = response.json()
    assert (found["type"], found["error"]["type"]) == ("error", "invalid_request_error")
    assert place in found["error"]["message"]


def test_what_changes_nothing_is_ignored(running: Running) -> None:
    edits = [{"type": "clear_thinking_20251015", "keep": "all"}]
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    fields = {"system": [cached], "metadata": {"user_id": "me"}, "context_management": {"edits": edits}}
    assert post(running, {**fields, "mcp_servers": []}, "/v1/messages?beta=true").status_code == 200


def test_the_client_raises_its_own_errors(client: anthropic.Anthropic, model: FakeModel) -> None:
    with pytest.raises(anthropic.BadRequestError, match="tokens, the context holds"):
        client.messages.create(model="any", max_tokens=9, messages=[{"role": "user", "content": "x" * model.n_ctx}])
    with pytest.raises(anthropic.BadRequestError, match="image"):
        client.messages.create(
            model="any", max_tokens=9,
            messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}],
        )  # fmt: skip
    plain = FakeModel(script, chat_template="{{ messages }} {{ messages[0].tool_calls }}")
    with (
        serving(plain) as running,
        anthropic.Anthropic(base_url=running.url, api_key="x") as other,
        pytest.raises(anthropic.BadRequestError, match="does not support tools"),
    ):
        other.messages.create(model="any", max_tokens=9, messages=ASK, tools=TOOLS)


def test_keys() -> None:
    with serving(FakeModel(), api_key="secret") as running:
        for key, fine in (("secret", True), ("wrong", False)):
            with anthropic.Anthropic(base_url=running.url, api_key=key, max_retries=0) as client:
                if fine:
                    assert client.messages.create(model="any", max_tokens=9, messages=ASK).content
                    continue
                with pytest.raises(anthropic.AuthenticationError, match="API key"):
                    client.messages.create(model="any", max_tokens=9, messages=ASK)


def test_an_engine_that_fails_within_a_stream(capfd: pytest.CaptureFixture[str]) -> None:
    def broken(prompt: str, options: Any) -> str:
        raise RuntimeError("bits lost")

    with serving(FakeModel(broken)) as running:
        last = post(running, {"stream": True}).text.strip().split("\n\n")[-1]
    assert last.startswith("event: error\n")
    assert json.loads(last.split("data: ")[1])["error"]["type"] == "api_error"
    assert "bits lost" in capfd.readouterr().err
