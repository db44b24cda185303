"""One model, many clients: a bounded queue in front of the engine's one thread.

Everything but `_answer` runs on the event loop, so that threads share no state but what `_tell` passes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from medusa_cli.api.answer import Answer, Piece
from medusa_cli.api.arguments import Tools
from medusa_cli.api.job import Job as Work
from medusa_cli.server.asks import Options
from medusa_cli.server.errors import ApiError, log, shutting_down
from medusa_cli.server.reading import Reading
from medusa_cli.server.sessions import SessionPool

DEFAULT_WAITING = 16
GUESSED_SECONDS = 10.0
"""Assumed for an answer until one has been measured."""


@dataclass(eq=False)
class Job:
    """One answer. events: how far the prompt is read, lists of pieces, then the answer, or what ended it.

    left_out: how many messages are missing from the prompt. tools: what may be called. raw: the prompt did not come out
    of the chat template. one_call: the answer ends with the first call.
    """

    client: str
    prompt: list[int]
    options: Options
    left_out: int = 0
    tools: Tools = ()
    raw: bool = False
    one_call: bool = False
    events: asyncio.Queue[Reading | Sequence[Piece] | Answer | BaseException] = field(default_factory=asyncio.Queue)
    work: Work | None = None
    dropped: bool = False
    done: bool = False


class AnswerQueue:
    """Answers one job at a time. Clients take turns; the jobs of one client are first come, first served."""

    def __init__(
        self,
        pool: SessionPool,
        most_waiting: int = DEFAULT_WAITING,
        on_end: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        """on_end: called with each answer, even if nobody reads it any more; on the event loop."""
        self._pool = pool
        self._on_end = on_end
        self._most = most_waiting
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="medusa-engine")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._may_save: Callable[[], bool] = lambda: True
        self._usual_seconds: float | None = None
        self.running: Job | None = None

    @property
    def waiting(self) -> int:
        """How many jobs have not begun."""
        return sum(map(len, self._waiting.values()))

    @property
    def sessions(self) -> int:
        """How many conversations have a prompt cache."""
        return len(self._pool)

    def start(self) -> None:
        """Begins to answer; on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run())

    def submit(self, job: Job) -> None:
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

    def drop(self, job: Job) -> None:
        """Nobody reads `job` any more: it leaves the queue, or its generation ends within one step."""
        if job.dropped or job.done:
            return
        job.dropped = True
        if job is self.running:
            if job.work is not None:  # else the engine's thread sees that it was dropped
                job.work.cancel()
            return
        waiting = self._waiting.get(job.client)
        if waiting is not None and job in waiting:
            waiting.remove(job)
            if not waiting:
                del self._waiting[job.client]

    def close(self, may_save: Callable[[], bool] | None = None) -> None:
        """Takes no more jobs: those waiting are refused, the running one continues.

        may_save: whether there is time to save another prompt cache, once the running job has ended.
        """
        self._closed = True
        self._may_save = may_save or self._may_save
        for job in [job for jobs in self._waiting.values() for job in jobs]:
            job.events.put_nowait(shutting_down())
        self._waiting.clear()
        self._arrived.set()

    async def stop(self) -> None:
        """Also ends the running answer, has the prompt caches saved, and waits for the engine's thread."""
        self.close()
        if self.running is not None:
            self.drop(self.running)
        if self._task is not None:
            await self._task
        await asyncio.get_running_loop().run_in_executor(self._thread, self._pool.keep, self._may_save)
        self._thread.shutdown()

    def abandon(self) -> None:
        """Ends the engine's thread after the event loop has ended."""
        if self.running is not None:
            self.drop(self.running)
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while (job := await self._next()) is not None:
            self.running = job
            begun = time.monotonic()
            try:
                answer = await loop.run_in_executor(self._thread, self._answer, job)
            finally:
                job.done = True
                self.running = None
            if answer is not None:
                try:
                    self._on_end(answer)
                except Exception as error:  # those waiting must still get their answers
                    log(error)
            spent = time.monotonic() - begun
            self._usual_seconds = spent if self._usual_seconds is None else 0.8 * self._usual_seconds + 0.2 * spent

    async def _next(self) -> Job | None:
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

    def _answer(self, job: Job) -> Answer | None:
        """Runs on the engine's thread. Never raises: what went wrong is the job's last event."""
        try:
            if job.dropped:
                return None
            session = self._pool.take(job.prompt, job.client)
            job.work = session.job_of_tokens(job.prompt, job.tools, job.raw, job.options, job.one_call)
            if job.dropped:  # since the check above
                job.work.cancel()
            answer = job.work.run(
                lambda pieces: self._tell(job, pieces), lambda done, total: self._tell(job, Reading(done, total))
            )
            answer = replace(answer, left_out=job.left_out)
        except BaseException as error:
            self._tell(job, error)
            return None
        self._tell(job, answer)
        return answer

    def _tell(self, job: Job, event: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(job.events.put_nowait, event)
