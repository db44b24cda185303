"""Connections that cost something and bring nothing: clients that do not read, that say nothing, or that are many."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving, wait_for

from medusa_cli.server import connections, guards

CHAT = "/v1/chat/completions"


def request(stream: bool) -> bytes:
    body: Any = {"messages": [{"role": "user", "content": "x"}], "stream": stream, "logprobs": True, "top_logprobs": 20}
    content = httpx.Request("POST", "http://localhost", json=body).content
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def open_connections(running: Running) -> int:
    return len(running.server.server_state.connections)


def stalled(running: Running, data: bytes) -> socket.socket:
    """A client that asks and takes nothing of the answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", running.port))
    client.sendall(data)
    return client


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_do_not_read_are_dropped(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setattr(connections, "SEND_SECONDS", 0.5)
    with serving(FakeModel(lambda prompt, options: "x" * 1500)) as running, stalled(running, request(stream)):
        wait_for(lambda: open_connections(running) == 1)
        wait_for(lambda: open_connections(running) == 0, 15.0)


def test_a_client_that_reads_slowly_gets_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEND_SECONDS", 0.7)
    with serving(FakeModel(lambda prompt, options: "x" * 3000)) as running, stalled(running, request(False)) as client:
        found, begun = b"", time.monotonic()
        while not found.endswith(b"]}}}") and not found.endswith(b'"accept": null}}'):
            part = client.recv(1 << 20)
            assert part
            found += part
            if time.monotonic() - begun < 2.0:
                time.sleep(0.01)
        assert len(found) > 1 << 20


# --- many connections ------------------------------------------------------------------------------


def is_closed(client: socket.socket) -> bool:
    client.settimeout(5)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of this machine that the server takes for another one's."""
    monkeypatch.setattr(guards, "is_loopback", lambda host: host in ("127.0.0.1", "localhost"))
    return "127.8.8.8"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only 127.0.0.1 is an address of this machine")
def test_silent_connections_of_one_address(elsewhere: str) -> None:
    with serving(FakeModel()) as running, contextlib.ExitStack() as stack:
        silent = []
        for number in range(300):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 5, (elsewhere, 0)))
            silent.append(client)
            if number % 50 == 0:
                assert running.http.get(f"{running.url}/health").status_code == 200
        assert is_closed(silent[-1])
        wait_for(lambda: open_connections(running) <= connections.MOST_OF_ONE_CLIENT + 1)
        for client in silent:
            client.close()
        wait_for(lambda: open_connections(running) <= 1)
        with socket.create_connection(("127.0.0.1", running.port), 5, (elsewhere, 0)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only 127.0.0.1 is an address of this machine")
def test_a_proxy_has_many_clients(elsewhere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_OF_ONE_CLIENT", 2)
    model = FakeModel()
    with serving(model, proxies=["127.8.8.0/24"]) as running, contextlib.ExitStack() as stack:
        for _ in range(5):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), 5, (elsewhere, 0)))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("proxies", "client"), [(["127.0.0.1/32"], "192.0.2.7"), ([], "127.0.0.1")])
def test_only_proxies_name_the_client(proxies: list[str], client: str) -> None:
    model = FakeModel()
    model.gate.clear()
    with serving(model, proxies=proxies) as running, ThreadPoolExecutor(1) as threads:
        headers = {"x-forwarded-for": "198.51.100.1, 192.0.2.7"}  # the client may write what it likes before the last
        body = {"messages": [{"role": "user", "content": "x"}]}
        answer = threads.submit(lambda: running.http.post(running.url + CHAT, json=body, headers=headers))
        wait_for(lambda: running.server.served.queue.running is not None)
        job = running.server.served.queue.running
        model.gate.set()
        assert answer.result().status_code == 200
        assert job is not None
        assert job.client == client


def test_a_first_byte_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FIRST_BYTE_SECONDS", 0.3)
    with serving(FakeModel()) as running, socket.create_connection(("127.0.0.1", running.port)) as client:
        assert is_closed(client)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),  # one subscriber has 2^64 addresses
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "192.0.2.1", False),
        ("no address", "no address", True),
    ],
)
def test_which_addresses_are_one_client(one: str, other: str, same: bool) -> None:
    assert (guards.client_of(one) == guards.client_of(other)) is same
