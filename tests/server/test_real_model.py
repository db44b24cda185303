"""`medusa serve demo` as people run it: a process, a real model, OpenAI's client, curl, signals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from command_line import invoke
from server_process import Served, served
from server_run import wait_for

pytestmark = pytest.mark.model

QUESTIONS = ["Name three colours.", "Write a haiku about the sea.", "What is a medusa?"]
MOST = 32


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("demo", "-c", "1024") as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def generated(question: str, temperature: float, seed: int) -> str:
    """What `medusa generate` says."""
    options = ("--temp", str(temperature), "-s", str(seed), "-n", str(MOST), "-c", "1024", "--json")
    code, text, errors = invoke("generate", "demo", "-p", question, *options)
    assert code == 0, errors
    return str(json.loads(text)["text"])


def said(client: openai.OpenAI, messages: Any, temperature: float, seed: int, stream: bool = False) -> str:
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    options: Any = {"model": "any", "temperature": temperature, "seed": seed, "max_tokens": MOST}
    if stream:
        chunks = client.chat.completions.create(messages=messages, stream=True, **options)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    return client.chat.completions.create(messages=messages, **options).choices[0].message.content or ""


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_answers_are_those_of_generate(client: openai.OpenAI, temperature: float) -> None:
    expected = [generated(question, temperature, 5) for question in QUESTIONS]
    assert [said(client, question, temperature, 5) for question in QUESTIONS] == expected
    assert [said(client, question, temperature, 5, stream=True) for question in QUESTIONS] == expected


def test_parallel_tabs(client: openai.OpenAI) -> None:
    """Three conversations at once, of three turns each: as if each were alone, and their caches are used."""

    def talk(opening: str) -> list[str]:
        messages: list[Any] = []
        for turn in (opening, "Why?", "Thank you."):
            messages.append({"role": "user", "content": turn})
            messages.append({"role": "assistant", "content": said(client, messages, 0.8, 7, stream=True)})
        return [message["content"] for message in messages[1::2]]

    alone = [talk(question) for question in QUESTIONS]
    before = cached_tokens(client)
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(talk, QUESTIONS)) == alone
    assert cached_tokens(client) - before > 100


def cached_tokens(client: openai.OpenAI) -> float:
    return metric(str(client.base_url).removesuffix("v1/"), "medusa_cached_prompt_tokens_total")


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url.rstrip('/')}/metrics").text.splitlines()
    return next(float(line.split(" ")[1]) for line in lines if line.startswith(f"{name} "))


def test_logprobs_are_those_of_the_text(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=12,
        logprobs=True, top_logprobs=3, extra_body={"repeat_penalty": 1.0},
    )  # fmt: skip
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert "".join(one.token for one in found.content) == answer.choices[0].message.content
    for one in found.content:
        assert one.logprob <= 0
        assert one.token == one.top_logprobs[0].token  # greedy
        assert one.logprob == one.top_logprobs[0].logprob
        assert len(one.top_logprobs) == 3


def test_stop_bias_and_counters(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Count from one to ten."}]
    options: Any = {"model": "any", "messages": messages, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**options)
    text = whole.choices[0].message.content or ""
    stopped = client.chat.completions.create(stop=[text[10:14]], **options)
    assert stopped.choices[0].message.content == text[: text.index(text[10:14])]
    assert stopped.choices[0].finish_reason == "stop"
    first = client.chat.completions.create(logprobs=True, top_logprobs=1, **options).choices[0].logprobs
    assert first is not None
    counters = (whole.model_extra or {})["medusa"]
    assert counters["tokens_per_step"] >= 1
    assert counters["tokens_per_second"] > 0


def test_what_the_model_cannot_do_is_said(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="any", prompt="word " * 2000)
    assert refused.value.code == "context_length_exceeded"


def test_a_model_whose_template_says_nothing_of_tools_calls_them(client: openai.OpenAI) -> None:
    city = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": city}}]
    messages: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
    options: Any = {"model": "any", "temperature": 0, "max_tokens": 60, "tools": tools}
    free = client.chat.completions.create(messages=messages, **{**options, "tools": openai.NOT_GIVEN})
    asked = client.chat.completions.create(messages=messages, tool_choice="required", **options)
    assert asked.usage is not None
    assert free.usage is not None
    assert asked.usage.prompt_tokens > free.usage.prompt_tokens + 60
    (call,) = asked.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
    messages += [asked.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "heavy snow"}]
    told = client.chat.completions.create(messages=messages, **options).choices[0].message
    assert "snow" in (told.content or "")


def test_a_client_that_leaves_frees_the_model(client: openai.OpenAI, server: Served) -> None:
    stream = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "Write a very long story."}], stream=True,
        extra_body={"logit_bias": {"2": -100}},
    )  # fmt: skip
    for _ in range(4):
        next(iter(stream))
    stream.close()
    wait_for(lambda: metric(server.url, "medusa_requests_running") == 0, 10)
    assert said(client, QUESTIONS[0], 0, 1)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(server: Served) -> None:
    body = {"messages": [{"role": "user", "content": QUESTIONS[0]}], "temperature": 0, "max_tokens": 8, "stream": True}
    command = ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    lines = subprocess.run([*command, "-d", json.dumps(body)], capture_output=True, text=True).stdout.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    refused = subprocess.run([*command[:3], "-d", "{}"], capture_output=True, text=True).stdout
    assert json.loads(refused)["error"]["code"] == "wrong_content_type"


def test_killed_and_started_again(client: openai.OpenAI) -> None:
    expected = said(client, QUESTIONS[0], 0.8, 3)
    with served("demo", "-c", "1024") as first, ThreadPoolExecutor(1) as threads:
        lost = threads.submit(said, openai.OpenAI(base_url=f"{first.url}/v1", api_key="x", max_retries=0), "x", 0, 1)
        time.sleep(0.05)
        first.process.kill()
        first.process.wait()
        with served("demo", "-c", "1024", port=first.port) as second:
            again = openai.OpenAI(base_url=f"{second.url}/v1", api_key="x")
            assert said(again, QUESTIONS[0], 0.8, 3) == expected
            code, errors = second.end(signal.SIGINT)
            assert (code, errors) == (0, "")
        assert lost.exception() is None or isinstance(lost.exception(), openai.APIError)
