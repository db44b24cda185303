"""A uvicorn connection whose patience has an end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from medusa_cli.server.guards import client_of, is_trusted

FIRST_BYTE_SECONDS = 5.0
"""A client has this long to send something after connecting."""
HEADER_SECONDS = 15.0
"""A client has this long to send the head of a request, from its first byte on."""
MOST_OF_ONE_CLIENT = 32
"""Connections of one client. Those from this machine and from proxies are not counted."""
SEND_SECONDS = 30.0
"""A client that reads nothing for this long is dropped."""
SYSTEM_BUFFER = 1 << 16
"""Bytes that the system buffers for a client. It takes more only once a third has been sent: that shows that the
client is reading."""


class ImpatientProtocol(H11Protocol):
    """uvicorn waits forever for the rest of a head, and for a client that does not read; this protocol gives up."""

    who = ""
    _is_new = True
    _timer: asyncio.TimerHandle | None = None
    _send_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self._is_one_too_many():
            transport.abort()
            return
        transport.set_write_buffer_limits(high=0)  # pause_writing() for all that the system does not take at once
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SYSTEM_BUFFER)
        self._timer = self.loop.call_later(FIRST_BYTE_SECONDS, self._give_up)

    def data_received(self, data: bytes) -> None:
        if self._is_new:
            self._is_new = False
            self._unwatch()
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        self._unwatch_reader()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unwatch_reader()

    def _watch_reader(self) -> None:
        self._unwatch_reader()
        self._send_timer = self.loop.call_later(SEND_SECONDS, self._check_reader, self._unsent())

    def _unwatch_reader(self) -> None:
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _check_reader(self, unsent: int) -> None:
        """Aborts rather than closes: a closed transport waits forever to send the rest."""
        if self._unsent() >= unsent:
            self.transport.abort()
        else:
            self._watch_reader()

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()

    def _is_one_too_many(self) -> bool:
        host = self.client[0] if self.client else ""
        self.who = client_of(host)
        if is_trusted(host, self.config.forwarded_allow_ips or ()):
            return False
        return sum(getattr(other, "who", None) == self.who for other in self.connections) > MOST_OF_ONE_CLIENT

    def _is_between_requests(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """The time runs from the first byte on: further bytes do not extend it."""
        if not self._is_between_requests():
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self._is_between_requests() and not self.transport.is_closing():
            self.transport.close()
