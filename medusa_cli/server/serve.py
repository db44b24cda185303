"""The server's life: socket, signals, shutdown."""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Sequence

import uvicorn
from starlette.types import ASGIApp

from medusa_cli.server.app import Limits, Served, create_app
from medusa_cli.server.asks import Options
from medusa_cli.server.connections import ImpatientProtocol
from medusa_cli.server.embeddings import create_embedding_app
from medusa_cli.server.engine.remote import Engine
from medusa_cli.support.errors import MedusaError

GRACE_SECONDS = 10
"""A running answer has this long to finish when the server is told to stop."""
KEEP_ALIVE_SECONDS = 15
MOST_HEADER_BYTES = 32 << 10
MOST_CONNECTIONS = 256


class UvicornServer(uvicorn.Server):
    """Tells the queue first when it is to stop, so that those waiting are refused and the running answer continues.

    Prompt caches are saved in what is left of that answer's time.
    """

    def __init__(self, config: uvicorn.Config, server: Served) -> None:
        super().__init__(config)
        self.served = server
        server.engine.on_failure = self._end

    def _end(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        end = time.monotonic() + (self.config.timeout_graceful_shutdown or 0)
        self.served.queue.close(lambda: not self.force_exit and time.monotonic() < end)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: no other server gets the port, and whoever connects waits until the server runs.

    MedusaError, one line, when that fails.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise MedusaError(f"--host {host}: no such address") from error
    found = socket.socket(family, kind, protocol)
    try:
        if sys.platform == "win32":  # SO_REUSEADDR would let two servers share a port there
            found.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        reason = (error.strerror or str(error)).lower()
        raise MedusaError(f"cannot listen on {host}, port {port}: {reason}; choose another --port") from error
    return found


def url_of(bound: socket.socket, host: str) -> str:
    """Where a person at this machine reaches the server."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{bound.getsockname()[1]}"


def build(
    engine: Engine,
    defaults: Options,
    *,
    host: str = "127.0.0.1",
    api_key: str | None = None,
    limits: Limits = Limits(),
    grace: int = GRACE_SECONDS,
    proxies: Sequence[str] = (),
) -> UvicornServer:
    """A server that is not running yet.

    defaults: sampling options of answers. host: what its socket is bound to. proxies: trusted to name the client.
    """
    app: ASGIApp
    server: Served
    if engine.width:
        app, server = create_embedding_app(engine, host, api_key, limits)
    else:
        app, server = create_app(engine, defaults, host, api_key, limits)
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        lifespan="on",
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=grace,
        h11_max_incomplete_event_size=MOST_HEADER_BYTES,
        limit_concurrency=MOST_CONNECTIONS,
    )
    return UvicornServer(config, server)


def run(server: UvicornServer, bound: socket.socket) -> None:
    """Serves until Ctrl-C or SIGTERM. A second Ctrl-C ends at once. MedusaError if no engine starts any more."""
    try:
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[bound])
    finally:
        # After a second Ctrl-C, nothing has told the engine to end.
        server.served.queue.abandon()
    if server.served.engine.failure is not None:
        raise server.served.engine.failure
