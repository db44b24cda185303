"""Bodies that are small enough to be let in and made to be expensive: refused at once, and with little memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.server.guards import has_at_most

resource = pytest.importorskip("resource")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BYTES = (79 << 20) // 10
SECONDS = 3.0
"""A quiet machine needs a tenth of it."""
MIB = 1 << 20


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(FakeModel()) as found:
        yield found


def repeated(head: str, part: str, tail: str, size: int = BYTES) -> bytes:
    count = (size - len(head) - len(tail)) // (len(part) + 1)
    return (head + ",".join([part] * count) + tail).encode()


def post(running: Running, path: str, body: bytes) -> httpx.Response:
    return running.http.post(running.url + path, content=body, headers={"content-type": "application/json"})


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, repeated('{"messages":[', "1", "]}")),
        (CHAT, repeated('{"messages":[', "{}", "]}")),
        (CHAT, repeated('{"messages":[{"role":"user","content":[', "1", "]}]}")),
        (CHAT, repeated('{"messages":[', '""', "]}")),
        (CHAT, b'{"messages":' + b"[" * (BYTES - 12)),
        (CHAT, b'{"messages":[' + b'"\\"",' * (BYTES // 5) + b"1]}"),
        (TEXT, repeated('{"prompt":[', '"a"', "]}")),
        (TEXT, repeated('{"prompt":"x","anything":[', "[]", "]}")),
        (CHAT, b'{"messages":["' + b'\\"' * (BYTES // 2 - 20) + b'"]}'),
    ],
    ids=["numbers", "objects", "parts", "texts", "nested", "quotes", "prompts", "unknown", "one text"],
)
def test_millions_of_values(running: Running, path: str, body: bytes) -> None:
    before, begun = peak_bytes(), time.monotonic()
    response = post(running, path, body)
    assert response.status_code == 400
    assert len(response.content) < 1000
    assert time.monotonic() - begun < SECONDS
    assert peak_bytes() - before < 100 * MIB


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, repeated('{"messages":[', "1", "]}", 150_000)),
        (CHAT, repeated('{"messages":[{"role":"user","content":[', "1", "]}]}", 150_000)),
        (TEXT, repeated('{"prompt":[', '"a"', "]}", 150_000)),
        (TEXT, repeated('{"prompt":[', "-1", "]}", 150_000)),
        (CHAT, repeated('{"messages":[{"role":"user","content":"x"}],"tools":[', "1", "]}", 150_000)),
        (CHAT, repeated('{"messages":[{"role":"assistant","tool_calls":[', "1", "]}]}", 150_000)),
    ],
    ids=["messages", "parts", "texts", "tokens", "tools", "calls"],
)
def test_one_error_is_enough(running: Running, path: str, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr("medusa_cli.server.errors._invalid", _recording(found))
    assert post(running, path, body).status_code == 400
    assert 1 <= len(found) <= 4  # one of each kind that the field may have


def _recording(found: list[Any]) -> Any:
    from medusa_cli.server.errors import _invalid

    def record(problems: Any) -> Any:
        found.extend(problems)
        return _invalid(problems)

    return record


def test_thousands_of_biases(running: Running) -> None:
    biases = ",".join(f'"{number}":"x"' for number in range(20_000))
    response = post(running, CHAT, b'{"messages":[{"role":"user","content":"x"}],"logit_bias":{%b}}' % biases.encode())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "logit_bias"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1"])
def test_other_encodings(running: Running, encoding: str) -> None:
    assert post(running, TEXT, '{"prompt": "ä"}'.encode(encoding)).status_code == 400


def test_a_large_text_is_let_in(running: Running) -> None:
    response = post(running, TEXT, b'{"prompt": "%b"}' % (b'a, [\\"{b}\\", \\\\' * 300_000))
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("body", "count"), [(b'{"a": "x, [\\"y\\", \\\\", "b": [1, 2, {}]}', 9), (b"[" * 50, 50), (b'"' + b"," * 99, 1)]
)
def test_counting_values(body: bytes, count: int) -> None:
    assert has_at_most(body, count)
    assert not has_at_most(body, count - 1)


# --- long texts ------------------------------------------------------------------------------------


def tool(description: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "one", "description": description}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, {"prompt": "x" * 40_000}),
        (TEXT, {"prompt": ["x" * 40_000]}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 20_000}] * 2}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "ä" * 10_000}] * 2}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "tools": [tool("x" * 20_000)]}),
    ],
)
def test_texts_that_cannot_fit_are_not_tokenized(path: str, body: Any) -> None:
    model = FakeModel(n_ctx=10_000, n_vocab=900)  # at most two bytes for a token
    with serving(model) as running:
        error = running.http.post(running.url + path, json=body).json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert model.tools == []
        assert running.http.post(running.url + TEXT, json={"prompt": "ä" * 9_000}).status_code == 200


def test_few_texts_are_tokenized_at_a_time() -> None:
    now, most, lock = 0, 0, threading.Lock()

    class Slow(FakeModel):
        def tokens(self, prompt: Any, **named: Any) -> list[int]:
            nonlocal now, most
            with lock:
                now += 1
                most = max(most, now)
            time.sleep(0.05)
            with lock:
                now -= 1
            return super().tokens(prompt, **named)

    with serving(Slow(lambda prompt, options: "ok")) as running, ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda _: running.http.post(running.url + TEXT, json={"prompt": "x"}).status_code, range(8))
        assert list(found) == [200] * 8
    assert most <= 2


class Slow(FakeModel):
    """Tokenizes for a while, as the real one does without the GIL."""

    def tokens(self, prompt: Any, **named: Any) -> list[int]:
        time.sleep(1.5)
        return super().tokens(prompt, **named)


def test_the_server_answers_while_a_text_is_tokenized() -> None:
    with serving(Slow(lambda prompt, options: "yes")) as slow, ThreadPoolExecutor() as pool:
        asked = pool.submit(post, slow, TEXT, b'{"prompt": "a", "max_tokens": 1}')
        time.sleep(0.3)
        begun = time.monotonic()
        assert slow.http.get(f"{slow.url}/health").status_code == 200
        assert time.monotonic() - begun < 1.0
        assert not asked.done()
        assert asked.result().status_code == 200
