"""Fields that this server does not have: ignored where they change nothing, else refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.server import messages_request, responses_request
from medusa_cli.server.known_fields import IGNORED, LACKING
from medusa_cli.server.messages_request import CountRequest, MessagesRequest
from medusa_cli.server.responses_request import ResponsesRequest
from medusa_cli.server.schemas import Body, ChatRequest, TextRequest

ASK = [{"role": "user", "content": "Hi"}]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
BODIES: dict[str, Any] = {
    CHAT: {"messages": ASK},
    TEXT: {"prompt": "Hi"},
    RESPONSES: {"input": "Hi"},
    MESSAGES: {"messages": ASK, "max_tokens": 9},
    COUNT: {"messages": ASK},
}
KINDS: dict[str, type[Body]] = {
    CHAT: ChatRequest, TEXT: TextRequest, RESPONSES: ResponsesRequest, MESSAGES: MessagesRequest, COUNT: CountRequest,
}  # fmt: skip
THEIR_OWN = {RESPONSES: responses_request.LACKING, MESSAGES: messages_request.LACKING, COUNT: messages_request.LACKING}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(FakeModel(lambda prompt, options: "ok")) as found:
        yield found


def post(running: Running, path: str, **fields: Any) -> httpx.Response:
    return running.http.post(running.url + path, json={**BODIES[path], **fields})


def refused(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    return str(response.json()["error"]["message"])


@pytest.mark.parametrize("path", BODIES)
def test_what_changes_nothing_is_accepted(running: Running, path: str) -> None:
    spare = IGNORED - KINDS[path].model_fields.keys()
    assert post(running, path, **{name: ["any"] for name in spare}).status_code == 200
    assert post(running, path, **{"speculative.n_max": 4}).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_what_would_change_an_answer_is_refused_by_name(running: Running, path: str) -> None:
    lacking = THEIR_OWN.get(path, LACKING)
    for name in lacking.keys() - KINDS[path].model_fields.keys():
        assert refused(post(running, path, **{name: "something else"})).startswith(f"{name} is not supported")
        for value in (*lacking[name], None, [], {}):
            assert post(running, path, **{name: value}).status_code == 200, (name, value)


@pytest.mark.parametrize("path", BODIES)
def test_what_nobody_knows_is_refused_by_name(running: Running, path: str) -> None:
    response = post(running, path, temperture=0)
    assert refused(response) == "temperture is not known here: leave it out"
    if "messages" not in path:
        assert {key: response.json()["error"][key] for key in ("param", "code")} == {
            "param": "temperture",
            "code": "unknown_parameter",
        }
    assert post(running, path, temperture=None).status_code == 200


@pytest.mark.parametrize(
    ("name", "instead"),
    [("n_predict", "max_tokens"), ("repetition_penalty", "repeat_penalty"), ("enable_thinking", "thinking")],
)
def test_another_name_is_told(running: Running, name: str, instead: str) -> None:
    assert refused(post(running, CHAT, **{name: 5})) == f"{name} is not supported: use {instead}"


def test_objects_within_may_have_further_fields(running: Running) -> None:
    said: Any = {"role": "assistant", "content": "Hello", "refusal": None, "annotations": [], "audio": None}
    call = {"type": "function", "function": {"name": "f", "cached": True}, "cache_control": {"type": "ephemeral"}}
    assert post(running, CHAT, messages=[*ASK, said, *ASK], tools=[call]).status_code == 200


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_messages_that_would_be_gone_on_with(running: Running, name: str) -> None:
    begun = {"role": "assistant", "content": "I", name: True}
    assert name in refused(post(running, CHAT, messages=[*ASK, begun]))
    assert post(running, CHAT, messages=[*ASK, {**begun, name: False}]).status_code == 200


def test_what_responses_cannot_include(running: Running) -> None:
    assert post(running, RESPONSES, include=["reasoning.encrypted_content"]).status_code == 200
    assert "include" in refused(post(running, RESPONSES, include=["message.output_text.logprobs"]))


def test_budgets_of_tasks(running: Running) -> None:
    assert "task_budget" in refused(post(running, MESSAGES, output_config={"task_budget": {"total": 9}}))


def test_bodies_that_are_no_objects(running: Running) -> None:
    bodies: list[Any] = [[], "text", 3, None]
    for body in bodies:
        response = running.http.post(
            running.url + CHAT, content=json.dumps(body), headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
