"""One model, many clients: a bounded queue in front of the engine.

Everything but `_perform` runs on the event loop, so that threads share no state but what `_tell` passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from medusa_cli.server.engine.remote import Engine
from medusa_cli.server.errors import ApiError, as_api_error, log, shutting_down

DEFAULT_WAITING = 16
GUESSED_SECONDS = 10.0
"""Assumed for a task until one has been measured."""
ENDS_WITHIN = 20.0
"""Seconds that a task may still take once it is cancelled: a batch of a prompt, or a token."""


class Work(Protocol):
    """What the engine does for a task."""

    def cancel(self) -> None:
        """Ends it, from any thread."""


@dataclass(eq=False)
class Task:
    """One request. events: whatever its client is told, the last one what came out, or what ended it."""

    client: str
    events: asyncio.Queue[Any] = field(default_factory=asyncio.Queue, kw_only=True)
    work: Work | None = field(default=None, kw_only=True)
    dropped: bool = field(default=False, kw_only=True)
    done: bool = field(default=False, kw_only=True)

    async def next_event(self, leaving: asyncio.Future[None]) -> Any:
        """ApiError if the client leaves before, and for what ended the task."""
        event = asyncio.ensure_future(self.events.get())
        await asyncio.wait({event, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not event.done():
            event.cancel()
            raise ApiError(499, "the client left")
        found = event.result()
        if isinstance(found, BaseException):
            raise as_api_error(found)
        return found


OneTask = TypeVar("OneTask", bound=Task)
Result = TypeVar("Result")


class EngineQueue(Generic[OneTask, Result]):
    """Performs one task at a time. Clients take turns; the tasks of one client are first come, first served."""

    def __init__(self, engine: Engine, most_waiting: int, on_end: Callable[[Result], None]) -> None:
        """on_end: called with each result, even if nobody reads it any more; on the event loop."""
        self._engine = engine
        self._on_end = on_end
        self._most = most_waiting
        self._waiting: OrderedDict[str, deque[OneTask]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="medusa-engine")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._may_save: Callable[[], bool] = lambda: True
        self._usual_seconds: float | None = None
        self.running: OneTask | None = None

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        return sum(map(len, self._waiting.values()))

    def start(self) -> None:
        """Begins to work; on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def submit(self, job: OneTask) -> None:
        """ApiError 429 when too many wait, 503 when the server is shutting down."""
        if self._closed:
            raise shutting_down()
        is_idle = self.running is None and not self._waiting
        if self.waiting >= self._most and not is_idle:
            usual = GUESSED_SECONDS if self._usual_seconds is None else self._usual_seconds
            raise ApiError(
                429,
                f"{self.waiting} requests are already waiting: try again later",
                code="queue_full",
                headers={"Retry-After": str(max(1, math.ceil(usual)))},
            )
        self._waiting.setdefault(job.client, deque()).append(job)
        self._arrived.set()

    def drop(self, job: OneTask) -> None:
        """Nobody reads `job` any more: it leaves the queue, or its work ends soon."""
        if job.dropped or job.done:
            return
        job.dropped = True
        if job is self.running:
            if job.work is not None:  # else the thread sees that it was dropped
                job.work.cancel()
            return
        waiting = self._waiting.get(job.client)
        if waiting is not None and job in waiting:
            waiting.remove(job)
            if not waiting:
                del self._waiting[job.client]

    def close(self, may_save: Callable[[], bool] | None = None) -> None:
        """Takes no more jobs: those waiting are refused, the running one continues.

        may_save: whether there is time to save more of what is kept, once the running job has ended.
        """
        self._closed = True
        self._may_save = may_save or self._may_save
        for job in [job for jobs in self._waiting.values() for job in jobs]:
            job.events.put_nowait(shutting_down())
        self._waiting.clear()
        self._arrived.set()

    async def stop(self) -> None:
        """Also ends the running job, and then the engine, which saves its prompt caches."""
        self.close()
        if self.running is not None:
            self.drop(self.running)
        if self._task is not None:
            done, _ = await asyncio.wait([self._task], timeout=ENDS_WITHIN)
            if not done:  # the engine hangs
                await asyncio.to_thread(self._engine.abandon)
            await self._task
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.close, self._may_save)
        self._thread.shutdown()

    def abandon(self) -> None:
        """Ends the engine and the thread that waits for it, after the event loop has ended."""
        if self.running is not None:
            self.drop(self.running)
        self._engine.abandon()
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while (job := await self._next()) is not None:
            self.running = job
            begun = time.monotonic()
            try:
                result = await loop.run_in_executor(self._thread, self._perform, job)
            finally:
                job.done = True
                self.running = None
            if result is not None:
                try:
                    self._on_end(result)
                except Exception as error:  # those waiting must still get theirs
                    log(error)
            spent = time.monotonic() - begun
            self._usual_seconds = spent if self._usual_seconds is None else 0.8 * self._usual_seconds + 0.2 * spent

    async def _next(self) -> OneTask | None:
        """The next job, of the client whose turn it is; None when the queue is closed."""
        while not self._waiting:
            if self._closed:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        client, jobs = next(iter(self._waiting.items()))
        job = jobs.popleft()
        del self._waiting[client]
        if jobs:
            self._waiting[client] = jobs  # after all others
        return job

    def _perform(self, job: OneTask) -> Result | None:
        """Runs on the thread that waits for the engine. Never raises: what went wrong is the task's last event."""
        try:
            result = None if job.dropped else self._result(job)
        except BaseException as error:
            self._tell(job, error)
            return None
        if result is not None:
            self._tell(job, result)
        return result

    def _result(self, job: OneTask) -> Result | None:
        """What comes out; None for a task that was dropped. Runs on the thread that waits for the engine."""
        raise NotImplementedError

    def _tell(self, job: OneTask, event: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(job.events.put_nowait, event)
