"""A server in a thread of the test, on a free port, and its engine in another one."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from medusa_cli.server import serve
from medusa_cli.server.asks import Options
from medusa_cli.server.engine.host import Host
from medusa_cli.server.engine.messages import Caches, Load
from medusa_cli.server.engine.remote import Engine

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


class InThread:
    """An engine as process.Child has it, on a thread of the test: whatever it says goes through the same messages."""

    pid = 0

    def __init__(self, model: Any) -> None:
        self._to: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._from: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        host = Host(iter(self._to.get, None), self._from.put, lambda load: model)
        self._thread = threading.Thread(target=self._run, args=(host,), name="medusa-engine")
        self._thread.start()

    def _run(self, host: Host) -> None:
        try:
            host.run()
        finally:
            self._from.put(None)

    def send(self, line: bytes) -> None:
        self._to.put(line)

    def lines(self) -> Iterator[bytes]:
        return iter(self._from.get, None)

    def leave(self) -> None:
        self._to.put(None)

    def end(self) -> str:
        self._to.put(None)
        self._thread.join()
        return "nothing"

    kill = leave


def in_thread(model: Any, caches: Caches = Caches(1 << 30)) -> Engine:
    """A server's engine for a model of the test. It loads with start(), or `with`."""
    return Engine(Load("", {}, {}, "", caches), lambda: InThread(model))


@contextlib.contextmanager
def serving(
    model: Any,
    defaults: Options = DEFAULTS,
    host: str = "127.0.0.1",
    caches: Caches = Caches(1 << 30),
    **options: Any,
) -> Iterator[Running]:
    with in_thread(model, caches) as engine, running_on(engine, defaults, host, **options) as found:
        yield found


@contextlib.contextmanager
def running_on(
    engine: Engine, defaults: Options = DEFAULTS, host: str = "127.0.0.1", **options: Any
) -> Iterator[Running]:
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
