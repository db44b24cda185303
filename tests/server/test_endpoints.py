"""The endpoints as OpenAI's own client and plain HTTP see them, on a model that is none."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

HELLO: Any = [{"role": "user", "content": "Hello, how are you?"}]


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture(scope="module")
def running(model: FakeModel) -> Iterator[Running]:
    with serving(model) as found:
        yield found


@pytest.fixture
def client(running: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def post(running: Running, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    return running.http.post(running.url + path, json=body)


# --- answers ---------------------------------------------------------------------------------------


def test_chat(client: openai.OpenAI, model: FakeModel) -> None:
    answer = client.chat.completions.create(model="any", messages=HELLO, max_tokens=12, temperature=0, seed=5)
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", "You said: <u")
    assert (choice.finish_reason, answer.object, answer.model) == ("length", "chat.completion", "fake")
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.usage.prompt_tokens) == (12, len("<user>Hello, how are you?"))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert model.asked[-1][1] == {"temperature": 0, "max_tokens": 12, "seed": 5}
    counters = (answer.model_extra or {})["medusa"]
    assert (counters["tokens_per_step"], counters["stop_reason"], counters["seed"]) == (1.5, "length", 7)


def test_a_stream_is_the_same_text(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="any", messages=HELLO)
    stream = client.chat.completions.create(
        model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert (chunks[-2].model_extra or {})["medusa"]["tokens_per_second"] == 100.0


def test_a_stream_ends_with_done_and_has_usage_only_where_it_is_asked_for(running: Running) -> None:
    lines = post(running, {"messages": HELLO, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[:-1])
    assert not any("usage" in json.loads(line[6:]) for line in lines[:-2])


def test_drafted_tokens_are_told_only_where_they_are_asked_for(running: Running) -> None:
    for drafted in (True, False, None):
        response = post(running, {"messages": HELLO, "stream": True, "drafted": drafted})
        chunks = [json.loads(line[6:]) for line in response.text.split("\n\n")[1:-3]]
        if not drafted:
            assert not any("medusa" in chunk for chunk in chunks)
            continue
        assert chunks[0]["medusa"]["pieces"] == [
            {"text": "Y", "drafted": False}, {"text": "o", "drafted": True}, {"text": "u", "drafted": True},
        ]  # fmt: skip
        for chunk in chunks:
            text = "".join(piece["text"] for piece in chunk["medusa"]["pieces"])
            assert text == chunk["choices"][0]["delta"]["content"]


def test_embeddings_are_refused_with_the_reason(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="fake writes text and has no embeddings"):
        client.embeddings.create(model="any", input="Hello")


def test_plain_completions(client: openai.OpenAI, model: FakeModel) -> None:
    answer = client.completions.create(model="any", prompt="Once upon")
    assert answer.choices[0].text == "You said: Once u"  # 16 tokens, where nothing is said
    assert answer.choices[0].finish_reason == "length"
    stream = client.completions.create(model="any", prompt=[ord("h"), ord("i")], max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "You said: hi"
    assert model.asked[-1][0] == "hi"
    assert client.completions.create(model="any", prompt=["one"], max_tokens=99).choices[0].text == "You said: one"


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="any", messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [(one.token, one.logprob) for one in found.content] == [(one, -0.5) for one in "You "]
    assert [(top.token, top.logprob) for top in found.content[0].top_logprobs] == [("Y", -0.5), ("Z", -1.5)]
    assert found.content[0].bytes == [ord("Y")]
    stream = client.chat.completions.create(model="any", messages=HELLO, max_tokens=4, logprobs=True, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in stream]
    assert "".join(one.token for part in parts if part for one in part.content or []) == "You "
    text = client.completions.create(model="any", prompt="x", max_tokens=3, logprobs=1).choices[0].logprobs
    assert text is not None
    assert (text.tokens, text.text_offset, text.token_logprobs) == (["Y", "o", "u"], [0, 1, 2], [-0.5] * 3)
    assert text.top_logprobs == [{"Y": -0.5}, {"o": -0.5}, {"u": -0.5}]


def test_what_is_asked_reaches_the_engine(client: openai.OpenAI, model: FakeModel) -> None:
    client.chat.completions.create(
        model="any", messages=HELLO, temperature=0.5, top_p=0.8, seed=-7, stop=["said"], max_completion_tokens=3,
        max_tokens=9, logit_bias={"65": -100}, frequency_penalty=0.5, presence_penalty=-1,
        extra_body={"top_k": 5, "min_p": 0.1, "repeat_penalty": 1.2},
    )  # fmt: skip
    assert model.asked[-1][1] == {
        "temperature": 0.5, "top_p": 0.8, "seed": 2**32 - 7, "stop": ("said",), "max_tokens": 3, "top_k": 5,
        "logit_bias": {65: -100.0}, "min_p": 0.1, "repeat_penalty": 1.2, "frequency_penalty": 0.5,
        "presence_penalty": -1.0,
    }  # fmt: skip


def test_nulls_are_ignored(running: Running, model: FakeModel) -> None:
    nulls = dict.fromkeys(["max_tokens", "temperature", "top_p", "seed", "stop", "logit_bias", "n", "tools", "stream"])
    body = {"messages": HELLO, **nulls, "user": "me", "store": True, "metadata": {"a": 1}}
    assert post(running, body).status_code == 200
    assert model.asked[-1][1] == {"temperature": 0.7}


def test_parts_of_text_and_the_role_of_developers(running: Running, model: FakeModel) -> None:
    parts = [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts."}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert post(running, {"messages": messages}).status_code == 200
    assert model.asked[-1][0] == "<system>Be brief.<user>Two parts."


def test_models_health_metrics(client: openai.OpenAI, running: Running) -> None:
    assert [found.id for found in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    health = running.http.get(f"{running.url}/health").json()
    assert health == {"status": "ok", "model": "fake", "waiting": 0}
    metrics = running.http.get(f"{running.url}/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in metrics.text.splitlines() if not line.startswith("#"))
    assert float(values["medusa_generated_tokens_total"]) > 10
    assert float(values['medusa_answers_total{stop_reason="eos"}']) >= 1
    assert values["medusa_requests_running"] == "0.0"


# --- wrong values ----------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str | None]] = [
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"seed": 2**64}, "seed"),
    ({"n": 2}, "n"),
    ({"stop": ""}, None),
    ({"stop": ["a"] * 17}, None),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 2}, None),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
        "response_format",
    ),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"grammar": "pyproject.toml"}, "grammar"),
    ({"grammar": "root ::= [a]", "response_format": {"type": "json_object"}}, None),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"stream": "yes"}, "stream"),
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]}]}, None),
]


@pytest.mark.parametrize(("change", "param"), WRONG, ids=[json.dumps(change)[:40] for change, _ in WRONG])
def test_wrong_values(running: Running, change: dict[str, Any], param: str | None) -> None:
    # Not httpx's own JSON, which refuses what half of a surrogate pair is.
    body = json.dumps({"messages": HELLO, **change})
    response = running.http.post(
        f"{running.url}/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    if param is not None:
        assert error["param"] == param


def test_the_errors_of_the_client_package(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="any", messages=HELLO, temperature=5)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_bodies_that_are_no_requests(running: Running, body: bytes) -> None:
    response = running.http.post(
        f"{running.url}/v1/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"]


def test_a_prompt_beyond_the_context(running: Running) -> None:
    response = post(running, {"messages": [{"role": "user", "content": "x" * 5000}]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert post(running, {"prompt": [65] * 4096}, "/v1/completions").status_code == 400


@pytest.mark.parametrize(
    "change", [{"echo": True}, {"best_of": 2}, {"suffix": "x"}, {"prompt": ""}, {"prompt": ["a", "b"]},
               {"prompt": [0x110000]}, {"prompt": []}, {"logprobs": 6}]
)  # fmt: skip
def test_wrong_values_of_plain_completions(running: Running, change: dict[str, Any]) -> None:
    assert post(running, {"prompt": "x", **change}, "/v1/completions").status_code == 400


def test_paths_and_methods_that_are_none(running: Running) -> None:
    assert running.http.get(f"{running.url}/v1/chat/completions").status_code == 405
    for path in ("/nothing", "/chat.html", "/../etc/passwd", "/%2e%2e/etc/passwd", "/v1/models/..%2f..%2fx"):
        response = running.http.get(running.url + path)
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "not_found_error"


def test_an_engine_that_fails(running: Running, model: FakeModel, capfd: pytest.CaptureFixture[str]) -> None:
    before = model.script

    def fails_without_a_seed(prompt: str, options: Any) -> str:
        return f"{1 / options.get('seed', 0)}"

    model.script = fails_without_a_seed
    try:
        response = post(running, {"messages": HELLO})
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "ZeroDivisionError" not in response.text
        streamed = post(running, {"messages": HELLO, "stream": True})
        assert "error" in json.loads(streamed.text.strip().split("\n\n")[-1][6:])
        assert post(running, {"messages": HELLO, "seed": 1}).status_code == 200
    finally:
        model.script = before
    assert "ZeroDivisionError" in capfd.readouterr().err


NASTY = "two\nlines \x1b[31m and \u202e"


def one_line(errors: str) -> bool:
    (line,) = errors.splitlines()
    return line.startswith("error: ") and line.isprintable()


def test_a_bug_before_the_queue_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    class Broken(FakeModel):
        def tokens(self, prompt: Any, **named: Any) -> list[int]:
            raise KeyError(NASTY)

    with serving(Broken()) as running:
        response = post(running, {"messages": HELLO})
        assert response.status_code == 500
        assert "log" in response.json()["error"]["message"]
    errors = capfd.readouterr().err
    assert "KeyError" in errors
    assert one_line(errors)


def test_an_engine_that_fails_leaves_the_connection_open() -> None:
    class Broken(FakeModel):
        def tokens(self, prompt: Any, **named: Any) -> list[int]:
            raise KeyError(NASTY)

    with serving(Broken()) as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
        connection.connect()
        connection.auto_open = 0
        for _ in range(3):
            headers = {"content-type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps({"messages": HELLO}), headers)
            response = connection.getresponse()
            assert response.status == 500
            response.read()
        connection.close()


def test_a_bug_within_a_stream_is_logged(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError(NASTY)

    monkeypatch.setattr("medusa_cli.server.answers.ChatShape.step", fails)
    with serving(FakeModel()) as running:
        streamed = post(running, {"messages": HELLO, "stream": True})
        assert json.loads(streamed.text.strip().split("\n\n")[-1][6:])["error"]["type"] == "server_error"
    assert one_line(capfd.readouterr().err)


def test_a_bug_in_what_is_counted_does_not_end_the_queue(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError(NASTY)

    monkeypatch.setattr("medusa_cli.server.metrics.Metrics.count", fails)
    with serving(FakeModel()) as running:
        for _ in range(2):
            assert post(running, {"messages": HELLO}).status_code == 200
    assert all(one_line(line) for line in capfd.readouterr().err.splitlines())
