"""Who is let in: hosts, web pages, keys, sizes, clients that stall, and what a page may load."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.server import connections, guards, serve
from medusa_cli.server.app import Limits
from medusa_cli.server.guards import is_loopback, name_of
from medusa_cli.support.errors import MedusaError

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with serving(FakeModel(), limits=Limits(body_bytes=20_000)) as found:
        yield found


# --- hosts and origins -----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]:1", "LOCALHOST:99", "127.8.9.1"])
def test_our_own_names(running: Running, host: str) -> None:
    assert running.http.get(f"{running.url}/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "1.2.3.4", "", "a@localhost", "local host"]
)
def test_names_that_someone_pointed_here(running: Running, host: str) -> None:
    response = running.http.post(running.url + CHAT, headers={"host": host}, json=BODY)
    assert response.status_code in (400, 403)
    assert response.status_code == 400 or response.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", ""])
@pytest.mark.parametrize("path", ["/health", CHAT])
def test_other_web_pages(running: Running, origin: str, path: str) -> None:
    response = running.http.request("POST" if path == CHAT else "GET", running.url + path, headers={"origin": origin})
    assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign_origin")
    assert "access-control-allow-origin" not in response.headers


def test_our_own_page(running: Running) -> None:
    response = running.http.post(running.url + CHAT, headers={"origin": running.url}, json=BODY)
    assert response.status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_page_can_send_without_asking(running: Running, kind: str) -> None:
    response = running.http.post(running.url + CHAT, content=b"{}", headers={"content-type": kind})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "wrong_content_type")


def test_a_preflight_is_refused(running: Running) -> None:
    headers = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    assert running.http.options(running.url + CHAT, headers=headers).status_code == 403


def test_the_names_of_a_server_for_all_addresses() -> None:
    with serving(FakeModel(), host="0.0.0.0") as running:
        url = f"http://127.0.0.1:{running.port}/health"
        for host, status in (("192.168.1.7:80", 200), (socket.gethostname(), 200), ("evil.example", 403)):
            assert running.http.get(url, headers={"host": host}).status_code == status


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.0.1", "example.org", "localhost.example.org")))
    assert name_of("[::1]:80") == "::1"
    assert name_of("a/b") is name_of("[") is name_of("u@h") is None


# --- keys ------------------------------------------------------------------------------------------

KEY = "schlüssel-1"


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with serving(FakeModel(), api_key=KEY) as found:
        yield found


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/nothing"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", f"Basic {KEY}", KEY, "Bearer", f"Bearer {KEY}x"])
def test_without_the_key(locked: Running, path: str, given: str | None) -> None:
    headers = httpx.Headers([] if given is None else [("authorization", given)], encoding="utf-8")
    response = locked.http.get(locked.url + path, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"


def test_with_the_key(locked: Running) -> None:
    headers = httpx.Headers([("authorization", f"Bearer {KEY}")], encoding="utf-8")
    assert locked.http.post(locked.url + CHAT, json=BODY, headers=headers).status_code == 200
    assert locked.http.post(locked.url + CHAT, json=BODY).status_code == 401
    for path in guards.OPEN_PATHS:
        assert locked.http.get(locked.url + path).status_code == 200


# --- sizes and patience ----------------------------------------------------------------------------


def test_large_bodies(running: Running) -> None:
    response = running.http.post(running.url + CHAT, json={"messages": [], "x": "y" * 30_000})
    assert response.status_code == 413
    assert response.json()["error"]["message"]

    def parts() -> Iterator[bytes]:
        yield b'{"messages": ['
        for _ in range(100):
            yield b" " * 1000

    # Without a Content-Length, and refused before all of it was sent.
    try:
        response = running.http.post(running.url + CHAT, content=parts(), headers={"content-type": "application/json"})
        assert response.status_code == 413
    except httpx.WriteError:
        pass
    assert running.http.get(f"{running.url}/health").status_code == 200


def answer_to(running: Running, data: bytes, seconds: float = 10.0) -> bytes:
    """What comes back until the server closes the connection. TimeoutError when it does not."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=seconds) as client:
        client.sendall(data)
        found = b""
        try:
            while part := client.recv(65536):
                found += part
        except ConnectionResetError:
            pass
        return found


def test_large_heads(running: Running) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(200))
    assert b"400" in answer_to(running, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n")[:20]


def test_a_head_that_does_not_come(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.3)
    for data in (b"G", b"GET /health HTTP/1.1\r\nHost: loc"):
        begun = time.monotonic()
        assert answer_to(running, data) == b""
        assert time.monotonic() - begun < 5


def test_a_second_head_that_does_not_come(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = b""
        while not found.endswith(b"}"):
            found += client.recv(65536)
        client.sendall(b"GET /hea")
        assert client.recv(65536) == b""


def test_a_body_that_does_not_come(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "BODY_SECONDS", 0.3)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
    begun = time.monotonic()
    assert answer_to(running, head.encode()).startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun < 5


def test_headers_that_keep_the_page_alone(running: Running) -> None:
    for path in ("/", "/chat.js", "/health", "/nothing"):
        headers = running.http.get(running.url + path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


def test_a_port_that_is_taken(running: Running) -> None:
    with pytest.raises(MedusaError, match=f"port {running.port}.*--port"):
        serve.listen("127.0.0.1", running.port)
    with serve.listen("127.0.0.1", 0) as loading:  # its server does not run yet
        port = loading.getsockname()[1]
        with pytest.raises(MedusaError, match=f"port {port}.*--port"):
            serve.listen("127.0.0.1", port)
    serve.listen("127.0.0.1", port).close()
    with pytest.raises(MedusaError, match="no such address"):
        serve.listen("no.such.host.invalid", 0)
