"""`"truncation": "auto"`: what leaves a prompt, what stays, what is told, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
TURN: list[dict[str, Any]] = [
    {"role": "user", "content": "What do you see? " * 3},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "the sea " * 10},
    {"role": "assistant", "content": "I see the sea. " * 3},
]
INSTRUCTIONS = [{"role": "developer", "content": "Be brief."}, {"role": "system", "content": "You are a keeper."}]


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(lambda prompt, options: "abc", n_ctx=1000)


@pytest.fixture
def running(model: FakeModel) -> Iterator[Running]:
    with serving(model) as found:
        yield found


def post(running: Running, messages: list[dict[str, Any]], **more: Any) -> httpx.Response:
    return running.http.post(running.url + CHAT, json={"messages": messages, **more})


def refused(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert "\n" not in error["message"]
    return str(error["message"])


@pytest.mark.parametrize("truncation", [None, "disabled"])
def test_programs_expect_an_error(running: Running, truncation: str | None) -> None:
    assert "the context holds 1000" in refused(post(running, TURN * 9, truncation=truncation))


def test_the_oldest_turns_leave_with_their_calls_and_results(running: Running, model: FakeModel) -> None:
    messages = [*INSTRUCTIONS, *TURN * 9, TURN[0]]
    answer = post(running, messages, truncation="auto", tools=[TOOL]).json()
    left_out = answer["medusa"]["left_out"]
    assert left_out > 0
    assert left_out % len(TURN) == 0
    rest = [*INSTRUCTIONS, *messages[2 + left_out :]]
    assert answer["usage"]["prompt_tokens"] == post(running, rest, tools=[TOOL]).json()["usage"]["prompt_tokens"]
    asked = [prompt for prompt, _ in model.asked]
    assert asked[0] == asked[1]
    assert asked[0].startswith("<system>Be brief.<system>You are a keeper.<user>What do you see?")
    assert model.tools[-1][0]["function"]["name"] == "look"
    # While the turn goes on, and at the next one.
    for more in (TURN[1:3], TURN[1:4] + TURN[:1]):
        answer = post(running, [*messages, *more], truncation="auto", tools=[TOOL]).json()
        assert answer["medusa"]["left_out"] == left_out


def test_what_fits_is_left_alone(running: Running) -> None:
    assert post(running, TURN[:1], truncation="auto").json()["medusa"]["left_out"] == 0
    assert post(running, TURN[:1]).json()["medusa"]["left_out"] == 0


def test_a_stream_tells_it(running: Running) -> None:
    text = post(running, [*TURN * 9, TURN[0]], truncation="auto", stream=True).text
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert [chunk["medusa"]["left_out"] > 0 for chunk in told if "medusa" in chunk] == [True]


def test_messages_that_are_too_long(running: Running) -> None:
    long = {"role": "user", "content": "x" * 600}
    said = refused(post(running, [*TURN * 2, long], truncation="auto"))
    assert said.startswith("the message has 606 tokens, more than half of the context of 1000, and older messages")
    assert said.endswith("shorten it, or give a larger -c")
    assert post(running, [long], truncation="auto").status_code == 200
    assert "the context holds 1000" in refused(post(running, [{**long, "content": "x" * 999}], truncation="auto"))
    # Not even looked at: what was asked before is no matter, what is asked now is.
    huge = {"role": "user", "content": "x" * 100_000}
    assert "far more than" in refused(post(running, [*TURN, huge], truncation="auto"))
    answer = post(running, [huge, *TURN[1:], TURN[0]], truncation="auto").json()
    assert answer["medusa"]["left_out"] == 4


def test_words_that_are_none_and_prompts_without_turns(running: Running) -> None:
    error = post(running, TURN, truncation="middle").json()["error"]
    assert error["param"] == "truncation"
    body = {"prompt": "x", "truncation": "auto"}
    error = running.http.post(f"{running.url}/v1/completions", json=body).json()["error"]
    assert error["param"] == "truncation"
    body["truncation"] = "disabled"
    assert running.http.post(f"{running.url}/v1/completions", json=body).status_code == 200
