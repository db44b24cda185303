"""A server in a thread of the test, on a free port."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from medusa_cli.server import serve
from medusa_cli.server.asks import Options

DEFAULTS: Options = {"temperature": 0.7}
SECONDS = 20.0


@dataclass
class Running:
    url: str
    port: int
    server: serve.UvicornServer
    http: httpx.Client


def wait_for(condition: Callable[[], Any], seconds: float = SECONDS) -> None:
    """Fails where `condition` does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@contextlib.contextmanager
def serving(engine: Any, defaults: Options = DEFAULTS, host: str = "127.0.0.1", **options: Any) -> Iterator[Running]:
    bound = serve.listen(host, 0)
    server = serve.build(engine, defaults, host=host, **options)
    thread = threading.Thread(target=serve.run, args=(server, bound))
    with httpx.Client(timeout=SECONDS) as http:
        thread.start()
        try:
            wait_for(lambda: server.started or not thread.is_alive())
            assert server.started
            yield Running(serve.url_of(bound, host), bound.getsockname()[1], server, http)
        finally:
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive()
