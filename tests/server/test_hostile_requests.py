"""Requests with every number at its limits and beyond, and odd prompts, against a real engine: it must stand them all.

More of them: MEDUSA_FUZZ=30 pytest -m slow tests/server/test_hostile_requests.py
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from server_process import Served, served

from medusa_cli.server.schemas import OPTIONS

pytestmark = [pytest.mark.model, pytest.mark.slow]

TIMES = int(os.environ.get("MEDUSA_FUZZ", "1"))
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
DENORMAL = 5e-324
NUMBERS: list[Any] = [
    0, -0.0, 1, -1, 2, 0.5, 1.5, DENORMAL, -DENORMAL, 1e-308, 1e-45, 1e-38, 1.2e-38, 1e-30, 1e-7, 1 - 1e-16, 1 - 6e-8,
    1e4, 3.4e38, 3.5e38, -3.5e38, 1.7e308, float("inf"), float("-inf"), float("nan"), 100, -100, 2**15, 2**16,
    2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400,
]  # fmt: skip
OTHERS: list[Any] = [None, True, False, "5", "", [], {}, [1], "nan"]
SMALL = [number for number in NUMBERS if 0 <= number <= 1]
NAMES = {
    "/v1/chat/completions": [
        "frequency_penalty", "presence_penalty", "seed", "max_tokens", "max_completion_tokens", "top_logprobs", "n",
        *OPTIONS,
    ],
    "/v1/completions": ["frequency_penalty", "presence_penalty", "seed", "max_tokens", "logprobs", *OPTIONS],
    "/v1/responses": ["temperature", "top_p", "max_output_tokens"],
    "/v1/messages": ["temperature", "top_p", "top_k", "max_tokens"],
}  # fmt: skip
TEXTS = [
    "", "a", "\0", "\ud800", "\udfff\ud800", "\ufeff", "\u202e abc", "e" + "\u0301" * 3000, "\u200d" * 999,
    "🧜🏽‍♀️" * 200,
    "<|im_start|>" * 300, "<|im_end|><|endoftext|>", "<s></s><pad>", "{{ 7 * 7 }}{% raw %}", " " * 5000, "\n" * 3000,
    "a" * 20_000, "𐍈" * 2000, "\x1b[2J", "\r\n" * 500, "%n%s%x", "\u2028\u2029", "0" * 4000, "中" * 1500,
]  # fmt: skip
IDS: list[Any] = [
    [0],
    [1],
    [2] * 300,
    [49151],
    [49152],
    [-1],
    [2**31],
    [2**64],
    [1.5],
    [True],
    [[1]],
    list(range(400)),
    [],
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("demo", "-c", "512") as found:
        yield found


def asked(source: random.Random, path: str) -> dict[str, Any]:
    """A request that could be right, of which up to three values may not be."""
    text = "Say a word." if source.random() < 0.6 else source.choice(TEXTS)
    if path == "/v1/completions":
        body: dict[str, Any] = {"prompt": source.choice(IDS) if source.random() < 0.3 else text}
    elif path == "/v1/responses":
        body = {"input": text}
    else:
        body = {"messages": [{"role": "user", "content": text}]}
    body["max_output_tokens" if path == "/v1/responses" else "max_tokens"] = source.randint(1, 4)
    body["stream"] = source.random() < 0.3
    for _ in range(source.randint(1, 3)):
        name, kind = source.choice(NAMES[path]), source.random()
        value = source.choice(SMALL if kind < 0.7 else NUMBERS if kind < 0.95 else OTHERS)
        if name == "top_logprobs":
            body["logprobs"] = True
        body[name] = 3 if name.startswith("max_") and isinstance(value, (int, float)) and value > 3 else value
    if source.random() < 0.15 and "completions" in path:
        ids = ("0", "1", "2", "49151", "49152", "-1", "x", "99999999999", "1e3")
        body["logit_bias"] = {
            source.choice(ids): source.choice(SMALL if source.random() < 0.7 else NUMBERS)
            for _ in range(source.randint(1, 3))
        }
    if source.random() < 0.1 and "completions" in path:
        body["stop"] = source.choice([*TEXTS, [source.choice(TEXTS) for _ in range(17)], [" "], 5])
    return body


def control(server: Served) -> str:
    body = {"messages": [{"role": "user", "content": "Name three colours."}], "temperature": 0, "max_tokens": 12}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def failure_of(response: httpx.Response) -> str:
    """Why a response is none that a request may get, or ""."""
    if response.status_code not in (200, 400):
        return f"status {response.status_code}"
    for mark in ("internal error", "server_error", "api_error", "engine_ended", "Traceback"):
        if mark in response.text:
            return mark
    return ""


def test_hostile_numbers_and_prompts(server: Served) -> None:
    expected = control(server)
    (engine,) = psutil.Process(server.process.pid).children()
    headers = {"content-type": "application/json"}
    counts = {200: 0, 400: 0}
    with httpx.Client(base_url=server.url, timeout=60, headers=headers) as http:
        for number in range(400 * TIMES):
            source = random.Random(number)
            path = source.choice(PATHS)
            content = json.dumps(asked(source, path))
            response = http.post(path, content=content)
            assert not failure_of(response), f"seed {number}: {path} {content[:2000]}: {response.text[:2000]}"
            counts[response.status_code] += 1
            assert engine.is_running(), f"seed {number}: {path} {content[:2000]} ended the engine"
            if number % 50 == 0:
                assert control(server) == expected, f"after seed {number}"
    assert min(counts.values()) > 40 * TIMES, counts
