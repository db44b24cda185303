"""What a stream says while its prompt is read: comments, which clients pass over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.server import reading
from medusa_cli.server.reading import PING_SECONDS, Comments, Reading

HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


def comments(running: Running, path: str = CHAT, **body: Any) -> list[str]:
    """Those of a stream, without what says that it waits."""
    asked = {"messages": HELLO} if path == CHAT else {"prompt": "Hello"}
    response = running.http.post(running.url + path, json={**asked, "stream": True, **body})
    assert response.status_code == 200
    parts = response.text.removesuffix("\n\n").split("\n\n")
    assert parts[-1] == "data: [DONE]"
    assert all(part.startswith(("data: ", ": ")) for part in parts)
    return [part for part in parts if part.startswith(": ")]


@pytest.fixture
def model() -> FakeModel:
    return FakeModel(readings=[(done, 2048) for done in range(0, 2048, 512)], delay=0.1)


def test_a_prompt_that_is_read_soon_says_nothing(model: FakeModel) -> None:
    with serving(model) as running:
        assert comments(running) == []


def test_streams_say_how_far_the_prompt_is_read(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SECONDS", 0.05)
    monkeypatch.setattr(reading, "BETWEEN_SECONDS", 0.0)
    with serving(model) as running:
        for path in (CHAT, "/v1/completions"):
            said = comments(running, path)
            # The first one while nothing happens, and the others as they come.
            assert said == [f": reading {done} of 2048 tokens" for done in range(0, 2048, 512)]
        body = {"messages": HELLO, "stream": False}
        whole = running.http.post(running.url + CHAT, json=body).json()
        assert whole["choices"][0]["message"]["content"].startswith("You said")


def test_openai_s_client_passes_over_them(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    openai = pytest.importorskip("openai")  # not there beside the lowest versions
    monkeypatch.setattr(reading, "SECONDS", 0.0)
    with serving(model) as running, openai.OpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        assert len(comments(running)) >= 1
        chunks = list(client.chat.completions.create(model="any", messages=HELLO, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "You said: <user>Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_when_something_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now))
    told = Comments()
    assert (told.seconds, told.comment()) == (PING_SECONDS, "waiting")
    told.read(Reading(0, 9000))
    assert told.seconds == 2
    now = 101.5
    told.read(Reading(512, 9000))
    assert told.seconds == 0.5
    now = 102.0
    assert (told.seconds, told.comment()) == (0, "reading 512 of 9000 tokens")
    assert told.seconds == PING_SECONDS  # nothing new
    now = 102.25
    told.read(Reading(1024, 9000))
    assert told.seconds == 0.75  # at most one a second
    now = 105.0
    told.read(Reading(1536, 9000))
    assert (told.seconds, told.comment()) == (0, "reading 1536 of 9000 tokens")
    told.read(Reading(2048, 9000))
    assert not told.wrote(False)
    assert (told.seconds, told.comment()) == (PING_SECONDS, "writing")
    now = 105.0 + PING_SECONDS
    assert not told.wrote(False)
    now += 0.1
    assert told.wrote(False)  # a call of a tool that is not whole yet
    assert not told.wrote(False)
