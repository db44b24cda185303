"""The queue in front of the model: turns, limits, clients that leave, and the way out."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import SECONDS, Running, in_thread, serving, wait_for

from medusa_cli.server.answer_queue import AnswerQueue, Job
from medusa_cli.server.app import Limits
from medusa_cli.server.engine.messages import Caches
from medusa_cli.server.engine.sessions import SessionPool

CHAT = "/v1/chat/completions"
LONG = "word " * 200


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.fixture
def model() -> Iterator[FakeModel]:
    found = FakeModel(lambda prompt, options: f"{prompt} {LONG}")
    yield found
    found.gate.set()


def is_free(running: Running) -> bool:
    queue = running.server.served.queue
    return queue.running is None and queue.waiting == 0


# --- turns -----------------------------------------------------------------------------------------


def test_clients_take_turns(model: Any) -> None:
    async def run() -> None:
        engine = in_thread(model)
        engine.start()
        queue = AnswerQueue(engine, 9)
        jobs = [Job(client, [ord(mark)], {}) for client, mark in ("a1", "a2", "a3", "b4", "c5", "b6")]
        for job in jobs:
            queue.submit(job)
        queue.start()
        while not all(job.done for job in jobs):
            await asyncio.sleep(0.01)
        await queue.stop()

    model.script = lambda prompt, options: prompt
    asyncio.run(run())
    assert "".join(prompt for prompt, _ in model.asked) == "145263"


def test_one_answer_at_a_time_and_all_of_them(model: FakeModel) -> None:
    model.script = lambda prompt, options: prompt * 3
    with serving(model) as running, ThreadPoolExecutor(8) as threads:

        def one(number: int) -> str:
            response = running.http.post(running.url + CHAT, json=ask(f"number {number}", stream=bool(number % 2)))
            return response.text

        texts = list(threads.map(one, range(12)))
        assert all(response.count("data: ") > 3 for response in texts[1::2])
        assert all(f"<user>number {number}" in texts[number] for number in range(0, 12, 2))


def test_a_full_queue(model: FakeModel) -> None:
    model.gate.clear()
    with serving(model, limits=Limits(waiting=2)) as running, ThreadPoolExecutor(3) as threads:

        def post() -> httpx.Response:
            return running.http.post(running.url + CHAT, json=ask("x"))

        first = threads.submit(post)
        wait_for(lambda: running.server.served.queue.running is not None)
        others = [threads.submit(post) for _ in range(2)]
        wait_for(lambda: running.server.served.queue.waiting == 2)
        refused = running.http.post(running.url + CHAT, json=ask("x", stream=True))
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        assert running.http.get(f"{running.url}/health").json()["waiting"] == 2
        model.gate.set()
        assert [one.result().status_code for one in (first, *others)] == [200, 200, 200]
        assert post().status_code == 200


def test_without_a_queue_one_is_answered(model: FakeModel) -> None:
    with serving(model, limits=Limits(waiting=0)) as running:
        model.gate.clear()
        with running.http.stream("POST", running.url + CHAT, json=ask("x", stream=True)) as response:
            assert response.status_code == 200
            assert running.http.post(running.url + CHAT, json=ask("x")).status_code == 429
            model.gate.set()
            response.read()
        wait_for(lambda: is_free(running))
        assert running.http.post(running.url + CHAT, json=ask("x")).status_code == 200


# --- clients that leave ----------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_the_model(model: FakeModel, stream: bool) -> None:
    model.delay = 0.02
    with serving(model) as running:
        body = httpx.Request("POST", running.url + CHAT, json=ask("x", stream=stream))
        with socket.create_connection(("127.0.0.1", running.port)) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body.content)}\r\n\r\n".encode() + body.content)
            wait_for(lambda: model.steps >= 3)
        left_at = model.steps
        wait_for(lambda: is_free(running))
        assert model.steps <= left_at + 5
        assert running.http.post(running.url + CHAT, json=ask("x", max_tokens=3)).status_code == 200


def test_a_client_that_leaves_the_queue_is_never_answered(model: FakeModel) -> None:
    model.gate.clear()
    with serving(model) as running, ThreadPoolExecutor(1) as threads:
        first = threads.submit(lambda: running.http.post(running.url + CHAT, json=ask("first")))
        wait_for(lambda: running.server.served.queue.running is not None)
        with pytest.raises(httpx.ReadTimeout):
            running.http.post(running.url + CHAT, json=ask("second"), timeout=0.2)
        wait_for(lambda: running.server.served.queue.waiting == 0)
        model.gate.set()
        assert first.result().status_code == 200
        assert [prompt for prompt, _ in model.asked] == ["<user>first"]


def test_a_client_that_does_not_read_does_not_hold_the_model(model: FakeModel) -> None:
    model.script = lambda prompt, options: "x" * (2400 if "big" in prompt else 3)
    with serving(model) as running:
        body = httpx.Request(
            "POST", running.url + CHAT, json=ask("big", stream=True, logprobs=True, top_logprobs=20)
        ).content
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", running.port))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_for(lambda: model.steps > 10)
            assert (
                running.http.post(running.url + CHAT, json=ask("x")).json()["choices"][0]["message"]["content"] == "xxx"
            )


# --- the way out -----------------------------------------------------------------------------------


def test_a_running_answer_finishes_and_those_that_wait_are_refused(model: FakeModel) -> None:
    model.delay = 0.005
    with ThreadPoolExecutor(2) as threads:
        with serving(model, grace=30) as running:
            first = threads.submit(lambda: httpx.post(running.url + CHAT, json=ask("x")))
            wait_for(lambda: model.steps > 0)
            second = threads.submit(lambda: httpx.post(running.url + CHAT, json=ask("y")))
            wait_for(lambda: running.server.served.queue.waiting == 1)
            running.server.should_exit = True
        assert first.result().json()["choices"][0]["finish_reason"] == "stop"
        assert second.result().status_code == 503


def test_an_answer_that_takes_too_long_is_ended(model: FakeModel) -> None:
    model.delay = 0.05
    with ThreadPoolExecutor(1) as threads:
        with serving(model, grace=1) as running:
            answer = threads.submit(_lines_of, running.url)
            wait_for(lambda: model.steps > 0)
            begun = time.monotonic()
            running.server.should_exit = True
        assert time.monotonic() - begun < 8
        assert "[DONE]" not in answer.result()
    wait_for(lambda: not [one for one in threading.enumerate() if one.name.startswith("medusa-engine")])


def _lines_of(url: str) -> str:
    text = ""
    try:
        with httpx.stream("POST", url + CHAT, json=ask("x", stream=True), timeout=SECONDS) as response:
            for part in response.iter_text():
                text += part
    except httpx.HTTPError:
        pass
    return text


# --- sessions --------------------------------------------------------------------------------------


def test_the_longest_common_prefix_wins() -> None:
    model: Any = FakeModel(session_bytes=10)
    pool = SessionPool(model, budget=25)  # two sessions
    hello, other = pool.take([1, 2, 3, 4]), None
    hello.cached_tokens[:] = [1, 2, 3, 4, 5, 6]
    assert pool.take([1, 2, 3, 4, 5, 6, 7]) is hello
    assert pool.take([1, 2, 3, 4]) is hello  # asked again
    other = pool.take([1, 8, 9])
    assert other is not hello
    other.cached_tokens[:] = [1, 8, 9, 9]
    assert len(pool) == 2
    assert pool.take([1, 2, 3, 4, 5, 6, 8]) is hello
    assert pool.take([1, 8, 9, 9, 1]) is other
    assert pool.take([7, 7, 7]) is hello  # no room for a third: the least recently used
    assert len(pool) == 2


def test_one_session_is_always_kept() -> None:
    model: Any = FakeModel(session_bytes=10)
    pool = SessionPool(model, budget=0)
    first = pool.take([1])
    assert pool.take([2, 3]) is first


def filled(session: Any, *tokens: int) -> Any:
    session.cached_tokens[:] = tokens
    return session


def test_caches_that_grow_make_others_go() -> None:
    model: Any = FakeModel(session_bytes=10)
    pool = SessionPool(model, budget=60)
    own, second, third = [filled(pool.take([one] * 3), *[one] * 3) for one in (1, 2, 3)]
    third.grown = 25
    assert pool.take([3, 3, 3, 4]) == third
    assert len(pool) == 3, "55 of 60 bytes"
    own.grown = 20
    assert pool.take([3, 3, 3, 4]) == third
    assert (len(pool), own.nbytes, own.cached_tokens) == (3, 10, []), "the least recently used forgets"
    third.grown = 40
    assert pool.take([3, 3, 3, 4]) == third
    assert (len(pool), second.closed) == (2, True)
    assert pool.take([9, 9, 9]) == own


def test_nobody_gets_the_cache_of_another_client() -> None:
    model: Any = FakeModel(session_bytes=10)
    pool = SessionPool(model, budget=35)  # three sessions
    one = filled(pool.take([1, 2, 3], "one"), 1, 2, 3)
    other = filled(pool.take([1, 2, 3], "other"), 1, 2, 3)
    assert other is model.sessions[1]
    assert pool.take([1, 2, 3, 4], "one") is one
    assert pool.take([1, 2, 3, 4], "other") is other
    filled(pool.take([1, 2], "third"), 1, 2)
    assert len(pool) == 3
    # The budget is full: the least recently used goes. The model's own cannot be closed, and forgets.
    assert pool.take([5, 6], "fourth") is one
    assert one.cached_tokens == []
    assert pool.take([1, 2, 3], "fifth").cached_tokens == []
    assert model.sessions[1].closed
    assert len(pool) == 3


def test_the_only_session_forgets_one_client_before_the_next() -> None:
    model: Any = FakeModel(lambda prompt, options: "abc", session_bytes=10)
    pool = SessionPool(model, budget=0)
    filled(pool.take([1, 2, 3], "one"), 1, 2, 3)
    assert pool.take([1, 2, 3, 4], "other").cached_tokens == []
    assert len(pool) == 1


def test_sessions_that_are_let_go_are_kept_elsewhere() -> None:
    """By their clients, in names that tell nobody who that is."""
    store: Any = []
    model: Any = FakeModel(session_bytes=10)
    pool = SessionPool(model, budget=25, store=store, secret="key")  # two sessions
    one = filled(pool.take([1] * 9, "one"), *[1] * 9)
    filled(pool.take([2] * 9, "other"), *[2] * 9)
    assert store == []
    third = filled(pool.take([3] * 9, "third"), *[3] * 9)
    assert third is one, "the model's own"
    ((owner, tokens),) = store
    assert tokens == [1] * 9
    assert len(owner) == 64
    assert not {"one", "key"} & {owner}
    assert pool.take([1] * 10, "one").cached_tokens == [1] * 9
    assert [tokens[0] for _, tokens in store] == [1, 2]
    # Another conversation of the same client, where there is no room for it.
    assert pool.take([1] * 10, "one").cached_tokens == [1] * 9
    filled(pool.take([4] * 9, "third"), *[4] * 9)
    assert [tokens[0] for _, tokens in store] == [1, 2, 3]
    pool.keep(lambda: False)
    assert [tokens[0] for _, tokens in store] == [1, 2, 3, 4], "the newest one at least"
    pool.keep()
    assert [tokens[0] for _, tokens in store] == [1, 2, 3, 4, 4, 1]
    # The same name with another key is somebody else; where all are one, nobody is.
    for others in (SessionPool(model, store=store, secret="new"), SessionPool(model, store=store, shared=True)):
        model.forget()
        assert others.take([1] * 10, "one").cached_tokens == []


def test_a_new_session_begins_with_what_it_shares() -> None:
    model: Any = FakeModel(session_bytes=10)
    pool = SessionPool(model, budget=80)
    shared = [1] * 70
    first = filled(pool.take([*shared, 2, 2], "one"), *shared, *[2] * 100)
    first.grown = 15
    second = pool.take([*shared, 3, 3], "one")
    assert second is not first
    assert second.cached_tokens == first.cached_tokens
    assert second.nbytes == 25, "a copy is as large"
    filled(second, *shared, *[3] * 100)
    assert pool.take([*shared, 4, 4], "other").cached_tokens == [], "not another client's"
    assert len(pool) == 3
    # 60 of 80 bytes: there is room for a new session, and none for a copy.
    assert pool.take([*shared, 5, 5], "one").cached_tokens == []
    assert len(pool) == 4
    few, many = [6] * 63, SessionPool(model, budget=1000)
    filled(many.take(few, "x"), *few, *[7] * 100)
    assert many.take([*few, 8, 8], "x").cached_tokens == [], "so few are read sooner than copied"
    filled(many.take([9] * 70, "x"), *[9] * 70, *[7] * 900)
    assert many.take([*[9] * 70, 8, 8], "x").cached_tokens == [], "so are these from so large a cache"


def test_conversations_with_a_long_prefix_in_common_do_not_take_turns_in_one_session() -> None:
    model: Any = FakeModel(session_bytes=10)
    pool, shared = SessionPool(model, budget=25), [1] * 2000  # two sessions
    first = filled(pool.take([*shared, *[2] * 99], "one"), *shared, *[2] * 300)
    second = pool.take([*shared, *[3] * 99], "one")
    assert second is not first
    assert second.cached_tokens == first.cached_tokens
    filled(second, *shared, *[3] * 300)
    assert pool.take([*shared, *[2] * 300, 4, 4], "one") is first
    assert pool.take([*shared, *[3] * 300, 4, 4], "one") is second
    assert pool.take([*shared, *[3] * 99, 4, 4], "one") is second, "the end of it was changed"
    assert pool.take([*shared, *[3] * 9], "one") is second, "it was asked again, or a part of it"
    assert pool.take([*shared, *[5] * 99], "one") in (first, second), "there is no room for a third"
    assert len(pool) == 2


@pytest.mark.parametrize("shared", [False, True])
def test_cached_tokens_tell_nothing_of_other_clients(model: FakeModel, shared: bool) -> None:
    with serving(model, caches=Caches(1 << 30, shared=shared), proxies=["127.0.0.1/32"]) as running:

        def cached(client: str) -> int:
            headers = {"x-forwarded-for": client}
            usage = running.http.post(running.url + CHAT, json=ask("my secret is"), headers=headers).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert cached("192.0.2.1") == 0
        assert cached("192.0.2.1") > 0
        assert (cached("192.0.2.2") > 0) is shared
