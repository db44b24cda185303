"""What keeps strangers out: other web pages, other hosts, clients without the key, and bodies that take too much.

A browser lets any page send requests to this machine. It names the page in `Origin`, and in `Host` the address that it
believes it is talking to; a page cannot forge either, and cannot send JSON to another origin without asking first.
Bodies are checked before they are parsed: a few bytes of JSON can become a kilobyte of objects, or of errors.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from medusa_cli.server import page
from medusa_cli.server.errors import ApiError, wrong

OPEN_PATHS = frozenset({*page.FILES, "/health"})
"""These need no key: the page, which asks for it, and the path that tells a supervisor that the server is alive."""

BODY_SECONDS = 30.0
"""A body has this long to arrive whole."""
MOST_VALUES = 100_000
"""Values in a body, not counting the token ids of a prompt."""
SUBSCRIBER_BITS = 64
"""The part of an IPv6 address that identifies a subscriber; anybody may choose the rest."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: a server bound to it is reachable from here alone."""
    return host in LOOPBACK_NAMES or ((address := _address_of(host)) is not None and address.is_loopback)


def client_of(host: str) -> str:
    """A name that is the same for all addresses of one client."""
    address = _address_of(host)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), SUBSCRIBER_BITS), strict=False))
    return str(address or host)


def is_trusted(host: str, proxies: Sequence[str]) -> bool:
    """Whether `host` is this machine, or one of `proxies`: addresses and networks."""
    address = _address_of(host)
    return is_loopback(host) or (
        address is not None and any(address in ipaddress.ip_network(proxy, strict=False) for proxy in proxies)
    )


def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def check_body(body: bytes, most: int) -> None:
    """ApiError 400 for a body that is not UTF-8, or may hold more than `most` values."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise wrong("the body is not JSON in UTF-8") from error
    if b"\0" in body:  # the parser would guess another encoding, for which nothing below holds
        raise wrong("the body is not JSON in UTF-8")
    if not has_at_most(body, most):
        raise wrong(f"the body holds more than {most} values")


def has_at_most(body: bytes, most: int) -> bool:
    """Whether JSON has at most `most` texts, commas and opening brackets together: values are never more than these.

    It tells texts from the rest as a parser does, up to the point where a parser would fail.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    count = (plain.count(b'"') + 1) // 2
    if count > most:
        return False  # splitting it below would take too much memory
    for outside in plain.split(b'"')[::2]:
        count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    return count <= most


def name_of(authority: str) -> str | None:
    """The host of `host:port`, in lower case and without brackets; None if it is not one."""
    try:
        parts = urlsplit(f"//{authority}")
        return parts.hostname if parts.path == parts.query == parts.fragment == "" and not parts.username else None
    except ValueError:
        return None


class Guards:
    """Around the whole application. host: what the server is bound to. count: gets the status of each response."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        api_key: str | None,
        body_bytes: int,
        body_values: int,
        count: Callable[[int], None],
    ) -> None:
        self._app = app
        self._host = host.lower()
        self._key = None if api_key is None else api_key.encode("utf-8", "surrogateescape")
        self._body_bytes = body_bytes
        self._body_values = body_values
        self._count = count
        self._own = {socket.gethostname().lower(), socket.getfqdn().lower()} if self._is_wildcard() else set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def respond(message: Any) -> None:
            """Adds the security headers, and counts the response."""
            if message["type"] == "http.response.start":
                self._count(message["status"])
                known = {name.lower() for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
                extra = [pair for pair in extra if pair[0] not in known]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        try:
            self._check(scope)
            body = await asyncio.wait_for(self._body(receive), BODY_SECONDS)
            check_body(body or b"", self._body_values)
        except asyncio.TimeoutError:
            late = ApiError(408, "the body did not arrive in time", headers={"Connection": "close"})
            await late.response(scope["path"])(scope, receive, respond)
        except ApiError as error:
            await error.response(scope["path"])(scope, receive, respond)
        else:
            if body is not None:
                left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

                async def read() -> Message:
                    """The body that was already read, then what comes after it: that the client leaves."""
                    return left.pop() if left else await receive()

                await self._app(scope, read, respond)

    async def _body(self, receive: Receive) -> bytes | None:
        """The whole body; None when the client has left. ApiError 413 for too large a one."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._body_bytes:
                raise ApiError(
                    413, f"the body is larger than {self._body_bytes} bytes", headers={"Connection": "close"}
                )
            if not message.get("more_body", False):
                return bytes(body)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        host = name_of(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_ours(host):
            raise ApiError(403, "this Host is not served here", code="wrong_host")
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{hosts[0]}", f"https://{hosts[0]}"):
            raise ApiError(403, "requests of other web pages are refused", code="foreign_origin")
        if scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            raise ApiError(
                401,
                "an API key is needed: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(415, "POST takes application/json", code="wrong_content_type")

    def _is_wildcard(self) -> bool:
        return (address := _address_of(self._host)) is not None and address.is_unspecified

    def _is_ours(self, host: str) -> bool:
        """A page elsewhere can point a name of its own at this machine, but not an address or one of our names."""
        if is_loopback(host) or host == self._host or host in self._own:
            return True
        if not self._is_wildcard():
            return False
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True

    def _has_key(self, headers: Headers) -> bool:
        if self._key is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if not scheme:  # as Anthropic's clients have it
            scheme, given = "bearer", headers.get("x-api-key", "")
        # Headers are decoded as Latin-1, which keeps every byte.
        return hmac.compare_digest(given.strip().encode("latin-1"), self._key) and scheme.lower() == "bearer"
