"""Answers piece by piece. A thread runs the engine; when the reader stops, it is free within one step."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from medusa_cli.api.answer import Answer, Piece
from medusa_cli.api.job import Job
from medusa_cli.support.errors import MedusaError

Found = list[Piece] | Answer | BaseException
"""Pieces of a step; at the end the whole answer, or why there is none."""


def _start(job: Job, put: Callable[[Found], None]) -> None:
    """Runs the job on its own thread, which refers to no stream, so that a stream ends when nobody holds it."""

    def work() -> None:
        end: Found
        try:
            end = job.run(put)
        except BaseException as error:
            end = error
        put(end)

    threading.Thread(target=work, name="medusa answer").start()


class _Reader:
    """What both kinds of stream know of the job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ready: deque[Piece] = deque()
        self._end: Answer | BaseException | None = None

    def cancel(self) -> None:
        """From any thread: the answer ends within one step, with stop_reason "cancelled"."""
        self._job.cancel()

    def _take(self, found: Found) -> None:
        if isinstance(found, list):
            self._ready.extend(found)
        else:
            self._end = found

    def _ended(self) -> Answer:
        if isinstance(self._end, BaseException):
            raise self._end
        assert self._end is not None
        return self._end

    def __del__(self) -> None:
        if getattr(self, "_end", self) is None:
            self._job.cancel()


class Stream(_Reader):
    """An iterator over the pieces of one answer, which has begun (or waits for its turn).

    Leaving the loop early, `with`, cancel() and forgetting the stream all end the answer within one step.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._queue: queue.SimpleQueue[Found] = queue.SimpleQueue()
        _start(job, self._queue.put)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """The next piece. MedusaError when the engine failed."""
        while not self._ready:
            if self._end is not None:
                self._ended()
                raise StopIteration
            self._take(self._get())
        return self._ready.popleft()

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for its end. Pieces that were not read can still be read."""
        while self._end is None:
            self._take(self._get())
        return self._ended()

    def _get(self) -> Found:
        try:
            return self._queue.get()
        except BaseException:  # Ctrl-C: a traceback may keep the stream alive
            self.cancel()
            raise

    def close(self) -> None:
        """cancel(), as iterators call it."""
        self.cancel()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()


class AsyncStream(_Reader):
    """The same for asyncio; made within a running event loop.

    A task that is cancelled while it waits for a piece ends the answer, too.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            job.cancel()
            raise MedusaError("there is no running event loop: await it in a coroutine, or use stream()") from error
        found: asyncio.Queue[Found] = asyncio.Queue()
        self._queue = found

        def put(item: Found) -> None:
            try:
                loop.call_soon_threadsafe(found.put_nowait, item)
            except RuntimeError:  # the loop is closed: nobody reads any more
                job.cancel()

        _start(job, put)

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        """The next piece. MedusaError when the engine failed."""
        while not self._ready:
            if self._end is not None:
                self._ended()
                raise StopAsyncIteration
            self._take(await self._get())
        return self._ready.popleft()

    async def answer(self) -> Answer:
        """The whole answer; waits for its end. Pieces that were not read can still be read."""
        while self._end is None:
            self._take(await self._get())
        return self._ended()

    async def _get(self) -> Found:
        try:
            return await self._queue.get()
        except BaseException:
            self.cancel()
            raise

    async def aclose(self) -> None:
        """cancel(), as asynchronous iterators call it."""
        self.cancel()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.cancel()
