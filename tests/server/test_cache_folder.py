"""`medusa serve demo --cache-dir`: prompt caches across restarts, with processes as people run them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import Served, served

pytestmark = [pytest.mark.model, pytest.mark.slow]

CONTEXT = ("-c", "1024", "--proxy", "127.0.0.1/32")
SYSTEM = "You are the keeper of a lighthouse far out in the sea. Answer in one short sentence. " * 6
SHARED = 100
"""Tokens of the system prompt, at least."""


def ask(server: Served, *messages: str, client: str = "192.0.2.1", key: str = "k", **more: Any) -> dict[str, Any]:
    """messages: of the user and the assistant in turn."""
    turns = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(messages)]
    system = more.pop("system", {"role": "system", "content": SYSTEM})
    body = {"messages": [system, *turns], "temperature": 0, "max_tokens": 16, **more}
    headers = {"x-forwarded-for": client, "authorization": f"Bearer {key}"}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert response.status_code == 200, response.text
    return dict(response.json())


def text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def saved(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.cache"))


def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    options = ("demo", *CONTEXT, "--cache-dir", str(folder), "--api-key")
    with served(*options, "k") as server:
        question = "What do you see from up there?"
        first = ask(server, question)
        expected = ask(server, question, text(first), "And at night?")
        first = ask(server, question, client="192.0.2.9")
        assert cached(first) == 0
        assert server.end(signal.SIGTERM)[1] == ""
    if hasattr(os, "geteuid"):
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in saved(folder)} == {0o600}
    assert len(saved(folder)) == 2, "one of each client"
    assert not [path for path in saved(folder) if b"192.0.2" in path.read_bytes()]
    with served(*options, "k") as server:
        assert cached(ask(server, question, text(first), "And at night?", client="192.0.2.2")) == 0
        again = ask(server, question, text(first), "And at night?")
        assert text(again) == text(expected)
        assert cached(again) >= first["usage"]["prompt_tokens"] - 1
        assert server.end(signal.SIGINT) == (0, "")
    with served(*options, "another") as server:
        assert cached(ask(server, question, key="another")) == 0
        assert cached(ask(server, question, text(first), "And then?", key="another")) > SHARED
    # Where all are one, those who were not are nobody.
    with served(*options, "k", "--share-caches") as server:
        assert cached(ask(server, question)) == 0
        assert cached(ask(server, question, text(first), "And then?", client="192.0.2.2")) > SHARED
        server.end()
    with served(*options, "k", "--share-caches") as server:
        assert cached(ask(server, question, text(first), "And then?", client="192.0.2.3")) > SHARED


def test_damaged_files(tmp_path: Path) -> None:
    options = ("demo", *CONTEXT, "--cache-dir", str(tmp_path))
    with served(*options) as server:
        first = ask(server, "What do you see?")
        assert server.end() == (0, "")
    (path,) = saved(tmp_path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    (tmp_path / "old.cache").write_bytes(b"medusa cache 0\n\0" + bytes(200))
    with served(*options) as server:
        again = ask(server, "What do you see?")
        assert (text(again), cached(again)) == (text(first), 0)
        assert not path.exists()
        code, said = server.end()
    assert (code, said) == (0, f"error: {path}: damaged, its check sum is wrong; it was removed\n")
    assert saved(tmp_path) == sorted([path, tmp_path / "old.cache"]), "it was saved anew"


@pytest.mark.parametrize("memory", ["0", "250"])
def test_many_conversations_in_little_memory(tmp_path: Path, memory: str) -> None:
    """All of them are read once: what has no room in memory comes back from the disk."""
    question = "What do you know about the number {}? Tell me all that you know about it, and leave nothing out. "
    questions = [question.format(number) * 9 for number in range(100, 108)]
    with served("demo", *CONTEXT, "--cache-dir", str(tmp_path), "--cache-memory", memory) as server:
        answers = [ask(server, question) for question in questions]
        for question, first in zip(questions, answers, strict=True):
            second = ask(server, question, text(first), "Go on.")
            assert cached(second) >= first["usage"]["prompt_tokens"] - 1
        assert cached(answers[0]) == 0
        assert all(cached(answer) > SHARED for answer in answers[1:]), "the system prompt was read once"
        assert server.end() == (0, "")
    assert len(saved(tmp_path)) == 8, "what was saved of a beginning goes"


def test_the_budget(tmp_path: Path) -> None:
    with served("demo", *CONTEXT, "--cache-dir", str(tmp_path), "--cache-disk", "25", "--cache-memory", "0") as server:
        for number in range(100, 105):
            assert text(ask(server, f"What is the number {number}? " * 30))
        server.end()
    sizes = [path.stat().st_size for path in saved(tmp_path)]
    assert len(sizes) > 1
    assert sum(sizes) <= 25 << 20


def test_a_prefix_that_conversations_share_is_read_once() -> None:
    with served("demo", *CONTEXT) as server:
        long = "Tell me about the sea and the birds and the ships that pass by. " * 20
        first = ask(server, long)
        assert cached(first) == 0
        assert cached(ask(server, "Who are you, and since when do you live there?" * 5)) > SHARED
        assert cached(ask(server, "Who are you?", client="192.0.2.2")) == 0
        again = ask(server, long, text(first), "Go on.")
        assert cached(again) >= first["usage"]["prompt_tokens"] - 1, "the first conversation kept its cache"
        alone = ask(server, long, text(first), "Go on.", client="192.0.2.3")
        assert (text(alone), cached(alone)) == (text(again), 0)


def test_many_conversations_with_one_system_prompt(tmp_path: Path) -> None:
    """Each keeps its own end, though that is shorter than what all share."""
    system = {"role": "system", "content": SYSTEM * 4}
    with served("demo", *CONTEXT) as server:
        questions = [f"What do you know about the number {number}? " * 25 for number in range(100, 104)]
        answers = [ask(server, question, system=system) for question in questions]
        assert min(map(cached, answers[1:])) > 4 * SHARED
        for question, first in zip(questions, answers, strict=True):
            second = ask(server, question, text(first), "Go on.", system=system)
            assert cached(second) >= first["usage"]["prompt_tokens"] - 1


def test_a_running_answer_ends_before_its_cache_is_saved(tmp_path: Path) -> None:
    with served("demo", *CONTEXT, "--cache-dir", str(tmp_path), "--grace", "0") as server:
        body = {"messages": [{"role": "user", "content": "word " * 200}], "stream": True, "max_tokens": 800}
        body |= {"logit_bias": {"2": -100}}
        with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            for _ in range(9):
                next(lines)
            assert server.end(signal.SIGINT)[0] == 0
    assert len(saved(tmp_path)) == 1


def test_truncation() -> None:
    with served("demo", *CONTEXT) as server:
        messages = ["What do you see? " * 20]
        counts = []
        for _ in range(9):
            answer = ask(server, *messages, truncation="auto")
            counts.append(answer["medusa"]["left_out"])
            assert answer["usage"]["prompt_tokens"] + 16 <= 1024
            alone = ask(server, *messages[counts[-1] :], client="192.0.2.2")
            assert text(alone) == text(answer)
            assert alone["usage"]["prompt_tokens"] == answer["usage"]["prompt_tokens"]
            if counts[-1] == counts[-2:][0] and len(counts) > 1:
                assert cached(answer) > SHARED
            messages += [text(answer), "And then? " * 30]
        assert counts == sorted(counts)
        assert 1 < len(set(counts)) < 5
