"""The queue of those who want answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from medusa_cli.api.answer import Answer
from medusa_cli.api.arguments import Tools
from medusa_cli.server.asks import Options
from medusa_cli.server.engine.sessions import SessionPool
from medusa_cli.server.engine_queue import DEFAULT_WAITING, EngineQueue, Task
from medusa_cli.server.reading import Reading


@dataclass(eq=False)
class Job(Task):
    """One answer. Its events: how far the prompt is read, lists of pieces, then the answer, or what ended it.

    left_out: how many messages are missing from the prompt. tools: what may be called. raw: the prompt did not come out
    of the chat template. one_call: the answer ends with the first call. choice: the tool to call, "" for any.
    """

    prompt: list[int]
    options: Options
    left_out: int = 0
    tools: Tools = ()
    raw: bool = False
    one_call: bool = False
    choice: str | None = None


class AnswerQueue(EngineQueue[Job, Answer]):
    """Answers one job at a time, in the session that has read most of its prompt. At the end these are saved."""

    def __init__(
        self,
        pool: SessionPool,
        most_waiting: int = DEFAULT_WAITING,
        on_end: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        super().__init__(most_waiting, on_end)
        self._pool = pool

    @property
    def sessions(self) -> int:
        """How many conversations have a prompt cache."""
        return len(self._pool)

    def _result(self, job: Job) -> Answer:
        session = self._pool.take(job.prompt, job.client)
        work = job.work = session.job_of_tokens(job.prompt, job.tools, job.raw, job.options, job.one_call, job.choice)
        if job.dropped:  # since this began
            work.cancel()
        answer = work.run(
            lambda pieces: self._tell(job, pieces), lambda done, total: self._tell(job, Reading(done, total))
        )
        return replace(answer, left_out=job.left_out)

    def _last(self) -> None:
        self._pool.keep(self._may_save)
