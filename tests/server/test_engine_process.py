"""The engine in a process of its own: what happens when it ends, when the server does, and what of that is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from embedding_models import write_reading_embedder
from server_process import Served, served
from server_run import wait_for
from terminal import Terminal

pytestmark = [pytest.mark.model, pytest.mark.skipif(sys.platform == "win32", reason="signals")]

QUESTION = [{"role": "user", "content": "Name three colours."}]
LONG = {"stream": True, "temperature": 0}
SOON = 2.0
"""Seconds within which a request is told that its engine has ended."""
LOAD = 15.0
"""Seconds that a load may take on a busy machine."""
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": QUESTION, "logit_bias": {"2": -100}, **LONG},
    "/v1/responses": {"input": "Count from one to a thousand.", **LONG},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 900, **LONG},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served("demo", "-c", "1024") as found:
        yield found


def engine_of(server: Served) -> psutil.Process:
    """The process with the model."""
    (found,) = psutil.Process(server.process.pid).children()
    return found


def ask(server: Served, **more: Any) -> httpx.Response:
    body = {"messages": QUESTION, "temperature": 0, "max_tokens": 8, **more}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


def ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def kill(server: Served, how: int = signal.SIGKILL) -> None:
    engine = engine_of(server)
    engine.send_signal(how)
    wait_for(lambda: ended(engine))


def streamed(server: Served, path: str, how: int = signal.SIGKILL) -> tuple[list[Any], float]:
    """The events of a stream whose engine is killed early in it, and how long they took from then on."""
    with httpx.stream("POST", server.url + path, json=STREAMS[path], timeout=60) as response:
        assert response.status_code == 200
        events, killed = [], 0.0
        for line in response.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:]))
            if len(events) == 8 and not killed:
                killed = time.monotonic()
                engine_of(server).send_signal(how)
        assert killed, "the answer was too short"
        return events, time.monotonic() - killed


@pytest.mark.parametrize("path", STREAMS)
def test_killed_while_it_writes(server: Served, path: str) -> None:
    before = text(ask(server))
    events, seconds = streamed(server, path)
    assert seconds < SOON
    last = events[-1]
    error = last["error"]
    assert "the engine ended while it worked on this" in error["message"]
    if path == "/v1/chat/completions":
        assert (error["type"], error["code"]) == ("server_error", "engine_ended")
    else:
        assert last["type"] == "error"
        assert path != "/v1/messages" or error["type"] == "api_error"
    assert text(ask(server)) == before


def test_what_openai_s_client_makes_of_it(server: Served) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        options: Any = {"model": "any", "messages": QUESTION, "logit_bias": {"2": -100}, "temperature": 0}
        chunks = iter(client.chat.completions.create(stream=True, **options))
        for _ in range(8):
            next(chunks)
        engine_of(server).kill()
        with pytest.raises(openai.APIError, match="the engine ended"):
            list(chunks)
        with ThreadPoolExecutor(1) as threads:
            lost = threads.submit(client.chat.completions.create, **options)
            wait_for(lambda: metric(server, "medusa_requests_running") == 1)
            engine_of(server).kill()
            assert isinstance(lost.exception(), openai.InternalServerError)
        kept = client.with_options(max_retries=3).chat.completions
        with ThreadPoolExecutor(1) as threads:
            again = threads.submit(kept.create, **{**options, "max_tokens": 200})
            wait_for(lambda: metric(server, "medusa_requests_running") == 1)
            engine_of(server).kill()
            assert again.result().usage.completion_tokens == 200, "it asks again by itself"


def test_killed_while_a_whole_answer_is_awaited_and_others_wait(server: Served) -> None:
    expected = text(ask(server))
    with ThreadPoolExecutor(4) as threads:
        lost = threads.submit(ask, server, max_tokens=900, logit_bias={"2": -100})
        wait_for(lambda: metric(server, "medusa_requests_running") == 1)
        waiting = [threads.submit(ask, server) for _ in range(3)]
        wait_for(lambda: metric(server, "medusa_requests_waiting") == 3)
        begun = time.monotonic()
        engine_of(server).kill()
        response = lost.result()
        assert time.monotonic() - begun < SOON
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_ended"
        assert [text(one.result()) for one in waiting] == [expected] * 3


def metric(server: Served, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return next(float(line.split(" ")[1]) for line in lines if line.startswith(f"{name} "))


def test_killed_while_it_has_nothing_to_do(server: Served) -> None:
    expected, restarts = text(ask(server)), metric(server, "medusa_engine_restarts_total")
    kill(server)
    begun = time.monotonic()
    assert httpx.get(f"{server.url}/health", timeout=1).json()["status"] == "ok"
    assert len(httpx.get(f"{server.url}/v1/models", timeout=1).json()["data"]) == 1
    assert text(ask(server)) == expected
    assert time.monotonic() - begun < LOAD
    assert metric(server, "medusa_engine_restarts_total") == restarts + 1


def test_a_client_that_leaves_reaches_the_engine(server: Served) -> None:
    body = {"messages": QUESTION, "logit_bias": {"2": -100}, **LONG}
    with httpx.stream("POST", f"{server.url}/v1/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        for _ in range(9):
            next(lines)
    wait_for(lambda: metric(server, "medusa_requests_running") == 0, 5)
    busy = engine_of(server).cpu_times().user
    time.sleep(0.5)
    assert engine_of(server).cpu_times().user - busy < 0.3, "it goes on"


def test_what_is_said_when_it_ends() -> None:
    with served("demo", "-c", "1024") as server:
        kill(server)
        text(ask(server))
        kill(server, signal.SIGABRT)
        text(ask(server))
        code, said = server.end()
    assert code == 0
    assert said.splitlines() == [
        f"error: the engine ended ({name}) and is started again" for name in ("SIGKILL", "SIGABRT")
    ]


@pytest.mark.slow
def test_the_server_ends_although_its_engine_hangs() -> None:
    with (
        served("demo", "-c", "1024") as server,
        httpx.stream("POST", f"{server.url}/v1/messages", json=STREAMS["/v1/messages"], timeout=60) as response,
    ):
        next(response.iter_lines())
        engine_of(server).send_signal(signal.SIGSTOP)
        assert server.end()[0] == 0


def test_last_words(tmp_path: Path) -> None:
    """A model file that is cut off while it is in use: what the engine says about that is in the log."""
    from fixtures import tiny_base

    path = tiny_base(tmp_path / "model.gguf")
    body = {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0}
    with served(str(path), "-c", "64", "-ngl", "0") as server:
        os.truncate(path, 0)
        response = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        if response.status_code == 200:
            pytest.skip("the weights are not mapped here")
        assert response.status_code == 500
        server.process.wait(60)
        assert server.process.stderr is not None
        first, last = server.process.stderr.read().splitlines()
    assert server.process.returncode == 1
    assert first.startswith("error: the engine ended (SIGBUS: medusa: a mapped file, such as the model, was cut off")
    assert last.startswith(f"error: {path} did not load 3 times in a row: ")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_ends_with_the_server(how: signal.Signals) -> None:
    with served("demo", "-c", "1024", "--grace", "0") as server, ThreadPoolExecutor(1) as threads:
        engine = engine_of(server)
        threads.submit(ask, server, max_tokens=900, logit_bias={"2": -100})
        wait_for(lambda: metric(server, "medusa_requests_running") == 1)
        server.process.send_signal(how)
        engine.wait(SOON if how == signal.SIGKILL else LOAD)


def starts(model: Path | str, program: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "medusa_cli", "serve", str(model), "--port", "0"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent)


def test_killed_while_it_loads() -> None:
    """Three times in a row: that is the end, in one line."""
    with starts("demo") as process:
        seen: set[int] = set()
        while process.poll() is None:
            for engine in psutil.Process(process.pid).children():
                if engine.pid not in seen:
                    seen.add(engine.pid)
                    engine.kill()
            time.sleep(0.005)
        assert process.stderr is not None
        said = process.stderr.read()
    assert len(seen) == 3
    assert (process.returncode, said) == (1, "error: demo did not load 3 times in a row: SIGKILL\n")


def test_killed_while_it_loads_again_and_again() -> None:
    with served("demo", "-c", "1024") as server:
        begun, seen = time.monotonic(), set()
        while server.process.poll() is None:
            assert time.monotonic() - begun < 4 * LOAD
            for engine in psutil.Process(server.process.pid).children():
                if engine.pid not in seen:
                    seen.add(engine.pid)
                    engine.kill()
            time.sleep(0.005)
        assert server.process.stderr is not None
        said = server.process.stderr.read().splitlines()
    assert server.process.returncode == 1
    assert len(seen) == 4
    assert said == [
        "error: the engine ended (SIGKILL) and is started again",
        "error: demo did not load 3 times in a row: SIGKILL",
    ]


def test_an_error_while_it_loads(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nothing")
    with starts(path) as process:
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 1
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert str(path) in said


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_a_terminal(tmp_path: Path, times: int) -> None:
    """It goes to both processes. The answer under way is finished the first time."""
    command = [sys.executable, "-m", "medusa_cli", "serve", "demo", "-c", "1024", "--port", "0", "--grace", "30"]
    with Terminal(command, tmp_path, columns=80) as terminal, ThreadPoolExecutor(1) as threads:
        terminal.wait_for("Ctrl-C stops.")
        url = terminal.shown.split(" at ")[1].split(": a")[0]
        body = {"messages": QUESTION, "max_tokens": 200, "logit_bias": {"2": -100}}
        answer = threads.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=60)
        wait_for(lambda: "medusa_requests_running 1.0" in httpx.get(f"{url}/metrics").text)
        for _ in range(times):
            terminal.type("\x03")
            time.sleep(0.1)
        code = terminal.exit_code()
        if times == 1:
            assert answer.result().status_code == 200
        assert code == 0
        said = terminal.shown.split("Ctrl-C stops.")[1].replace("^C", "").strip()
        assert said == ""


def test_a_model_for_embeddings(tmp_path: Path) -> None:
    path = write_reading_embedder(tmp_path / "letters.gguf")
    with served(str(path), "-c", "100") as server:

        def embed() -> Any:
            return httpx.post(f"{server.url}/v1/embeddings", json={"input": ["a", "b c"]}, timeout=60).json()["data"]

        expected = embed()
        kill(server)
        assert embed() == expected
        assert server.end()[1] == "error: the engine ended (SIGKILL) and is started again\n"
