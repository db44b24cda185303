"""Connections that cost something and bring nothing: clients that do not read, that say nothing, or that are many."""

from __future__ import annotations

import socket
import time
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving, wait_for

from medusa_cli.server import connections

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
    with serving(FakeModel(lambda prompt, options: "x" * 6000)) as running, stalled(running, request(stream)):
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
