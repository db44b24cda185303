"""Requests that are none: made from the OpenAPI schema, and raw bytes. No crash, no 500, and the server goes on.

MEDUSA_FUZZ=30 tries thirty times as many: more than 10,000.
"""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from embedding_models import write_reading_embedder
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli import Embedder

TIMES = int(os.environ.get("MEDUSA_FUZZ", "1"))
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
PATHS = (CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
quickly = settings(
    max_examples=150 * TIMES,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=TIMES == 1,
)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(FakeModel(lambda prompt, options: "ok")) as found:
        yield found
        assert found.http.post(found.url + CHAT, json=GOOD).status_code == 200


GOOD: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
TEXT_GOOD: dict[str, Any] = {"prompt": "Hello", "max_tokens": 3}


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = write_reading_embedder(tmp_path_factory.mktemp("embedding") / "letters.gguf")
    with Embedder(path, quiet=True, n_gpu_layers=0) as engine, serving(engine) as found:
        yield found
        assert found.http.post(found.url + EMBEDDINGS, json={"input": "a"}).status_code == 200


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_requests_of_the_schema(running: Running, mode: schemathesis.GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    sent = {path: _send_all(schema[path]["POST"].as_strategy(generation_mode=mode)) for path in PATHS}
    assert min(sent.values()) > 0


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_requests_for_embeddings(embedding: Running, mode: schemathesis.GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{embedding.url}/openapi.json")
    assert _send_all(schema[EMBEDDINGS]["POST"].as_strategy(generation_mode=mode)) > 0


def _send_all(cases: Any) -> int:
    """How many there were."""
    count = 0

    @settings(quickly, max_examples=12 * TIMES)
    @given(case=cases)
    def send(case: Any) -> None:
        nonlocal count
        count += 1
        response = case.call()
        assert response.status_code < 500, response.text
        if response.status_code != 200:
            keys = {"message", "type"} if "/v1/messages" in case.path else {"message", "type", "param", "code"}
            assert set(response.json()["error"]) == keys

    send()
    return count


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "messages", "prompt", "model", "stream", "stream_options", "max_tokens", "temperature", "top_p", "seed", "stop",
    "logit_bias", "frequency_penalty", "presence_penalty", "n", "top_k", "min_p", "repeat_penalty", "drafted", "tools",
    "tool_choice", "response_format", "logprobs", "top_logprobs", "echo", "best_of", "suffix", "max_completion_tokens",
]  # fmt: skip


@quickly
@given(path=st.sampled_from(PATHS), changes=st.dictionaries(st.sampled_from(FIELDS), values, max_size=3))
def test_any_values_in_known_fields(running: Running, path: str, changes: dict[str, Any]) -> None:
    body = json.dumps({**(GOOD if path == CHAT else TEXT_GOOD), **changes})
    response = running.http.post(running.url + path, content=body, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert response.json()["error"]["message"]


def mutated(source: random.Random) -> bytes:
    """A request with damage: bytes changed, cut out, doubled, or nothing but noise."""
    body = json.dumps(GOOD).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    data = bytearray(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    for _ in range(source.randint(1, 6)):
        at, kind = source.randrange(len(data) + 1), source.randrange(5)
        if kind == 0 and at < len(data):
            data[at] = source.randrange(256)
        elif kind == 1:
            del data[at : at + source.randint(1, 30)]
        elif kind == 2:
            data[at:at] = data[max(0, at - source.randint(1, 60)) : at]
        elif kind == 3:
            data[at:at] = source.choice([b"\r\n", b"\0", b"\r\nTransfer-Encoding: chunked\r\n", b" " * 99, b"\xff\xfe"])
        elif source.random() < 0.1:
            data = bytearray(source.randbytes(source.randint(0, 300)))
    return bytes(data)


def test_raw_bytes(running: Running) -> None:
    source = random.Random(7 if TIMES == 1 else None)
    statuses: dict[bytes, int] = {}
    for _ in range(150 * TIMES):
        data = mutated(source)
        with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            found = b""
            try:
                while part := client.recv(65536):
                    found += part
            except ConnectionResetError:
                pass
        status = found[9:12] if found.startswith(b"HTTP/1.1 ") else found[:12]
        statuses[status] = statuses.get(status, 0) + 1
        assert not status.startswith(b"5"), (data, found)
    assert statuses.get(b"400", 0) > 0
