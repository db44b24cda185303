"""Thinking through OpenAI's endpoint: apart from the answer, counted, switched by the fields that clients have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forced_model as forced
import openai
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.api.model import Model
from medusa_cli.decoding.thinking import Thinking

ASK: Any = [{"role": "user", "content": "Hi"}]
TEMPLATE = "<think> {{ messages }} {{ tools }}"


def thinking_aloud(prompt: str, options: Any) -> str:
    return "<think>\nWhy?\n</think>\n\nBecause."


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel(thinking_aloud, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def running(model: FakeModel) -> Iterator[Running]:
    with serving(model) as found:
        yield found


def post(running: Running, body: Any, path: str = "/v1/chat/completions") -> Any:
    return running.http.post(running.url + path, json=body)


def test_whole_and_streamed(running: Running) -> None:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client:
        answer = client.chat.completions.create(model="any", messages=ASK)
        message: Any = answer.choices[0].message
        assert (message.content, message.reasoning_content) == ("Because.", "Why?")
        assert answer.usage is not None
        assert answer.usage.completion_tokens_details is not None
        assert answer.usage.completion_tokens_details.reasoning_tokens == len("\nWhy?\n</think>")
        chunks = list(client.chat.completions.create(model="any", messages=ASK, stream=True))
    deltas: list[Any] = [chunk.choices[0].delta for chunk in chunks]
    thought = [at for at, delta in enumerate(deltas) if getattr(delta, "reasoning_content", None)]
    said = [at for at, delta in enumerate(deltas) if delta.content]
    assert max(thought) < min(said)
    assert "".join(deltas[at].reasoning_content for at in thought) == "Why?"
    assert "".join(deltas[at].content for at in said) == "Because."


def test_log_probabilities_are_those_of_the_answer(running: Running) -> None:
    body = {"messages": ASK, "logprobs": True}
    entries = post(running, body).json()["choices"][0]["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries).endswith("Because.")
    assert "?" not in "".join(entry["token"] for entry in entries)


def test_a_plain_completion_has_no_parts(running: Running) -> None:
    choice = post(running, {"prompt": "Hi", "max_tokens": 99}, "/v1/completions").json()["choices"][0]
    assert choice["text"] == thinking_aloud("", {})


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, Thinking()),
        ({"thinking": False}, Thinking(False)),
        ({"thinking": True}, Thinking(True)),
        ({"thinking": {"type": "disabled"}}, Thinking(False)),
        ({"thinking": {"type": "enabled"}}, Thinking(True)),
        ({"think": 0}, Thinking(False)),
        ({"think": 9}, Thinking()),
        ({"chat_template_kwargs": {"enable_thinking": False}}, Thinking(False)),
        ({"chat_template_kwargs": {"thinking": True}}, Thinking(True)),
        ({"reasoning_effort": "none"}, Thinking(False)),
        ({"reasoning_effort": "high"}, Thinking(True, "high")),
        ({"reasoning_effort": "minimal"}, Thinking(True, "low")),
        ({"chat_template_kwargs": {"reasoning_effort": "medium"}}, Thinking(True, "medium")),
    ],
)
def test_the_fields_of_clients(running: Running, model: FakeModel, fields: Any, wanted: Thinking) -> None:
    assert post(running, {"messages": ASK, **fields}).status_code == 200
    assert model.wanted[-1] == wanted
    assert model.asked[-1][1].get("think", -1) == fields.get("think", -1)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"thinking": "yes"}, "thinking"),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"think": -2}, "think"),
        ({"thinking": False, "think": 5}, "think"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"date": "today"}}, "chat_template_kwargs.date"),
        ({"thinking_budget": 100}, "thinking_budget"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
    ],
)
def test_what_is_wrong_or_not_supported_gets_400(running: Running, fields: Any, place: str) -> None:
    response = post(running, {"messages": ASK, **fields})
    assert response.status_code == 400
    assert place in response.json()["error"]["message"]


def test_what_changes_nothing_is_ignored(running: Running) -> None:
    fields = {"modalities": ["text"], "functions": None, "repetition_penalty": 1, "mirostat": 0, "store": True}
    assert post(running, {"messages": ASK, **fields}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions"])
@pytest.mark.parametrize("fields", [{"thinking": False}, {"think": 3}])
def test_a_text_has_no_thinking_to_switch(running: Running, path: str, fields: Any) -> None:
    assert post(running, {"prompt": "Hi", **fields}, path).status_code == 400


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_earlier_thinking_reaches_the_template(key: str) -> None:
    found: list[Any] = []

    class Noting(FakeModel):
        def tokens(self, prompt: Any, **named: Any) -> list[int]:
            found.append(prompt)
            return super().tokens(prompt, **named)

    with serving(Noting(thinking_aloud, chat_template=TEMPLATE)) as running:
        said = {"role": "assistant", "content": "Because.", key: "Why?"}
        assert post(running, {"messages": [*ASK, said, *ASK]}).status_code == 200
    assert found[0][1] == {"role": "assistant", "content": "Because.", "reasoning_content": "Why?"}


def test_the_servers_default_and_a_request_s_own_wish(tmp_path: Path) -> None:
    said = [forced.THINKING, forced.AFTER_A_LINE]
    path = forced.write_forced_model(tmp_path / "m.gguf", forced.SWITCHED, said, ["<|user|>", forced.ASSISTANT])
    for defaults, body, thinking in (
        ({}, {}, "So the user says hello"),
        ({"thinking": False}, {}, None),
        ({"thinking": False}, {"think": 3}, "So the"),
        ({"thinking": False}, {"thinking": True}, "So the user says hello"),
        ({"think": 3}, {}, "So the"),
        ({"think": 3}, {"thinking": False}, None),
        ({"think": 3}, {"think": -1}, "So the user says hello"),
        ({"think": 3}, {"max_tokens": 2}, "So"),
    ):
        with Model(path, quiet=True) as model, serving(model, {"temperature": 0.0, **defaults}) as running:
            choice = post(running, {"messages": ASK, **body}).json()["choices"][0]
            assert choice["message"].get("reasoning_content") == thinking
            cut = "max_tokens" in body
            assert choice["message"]["content"] == ("" if cut else "Hello to you!")
            assert choice["finish_reason"] == ("length" if cut else "stop")


def test_a_stop_text_ends_the_answer_and_not_the_thinking(tmp_path: Path) -> None:
    said = [forced.THINKING, forced.AFTER_A_LINE]
    path = forced.write_forced_model(tmp_path / "m.gguf", forced.SWITCHED, said, ["<|user|>", forced.ASSISTANT])
    with Model(path, quiet=True) as model, serving(model, {"temperature": 0.0}) as running:
        body = {"messages": ASK, "stop": ["user", " you"], "stream": True}
        lines = post(running, body).text.split("\n\n")[:-2]
        choices = [json.loads(line[6:])["choices"][0] for line in lines]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello to"
        assert choices[-1]["finish_reason"] == "stop"
