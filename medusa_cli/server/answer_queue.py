"""The queue of those who want answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from medusa_cli.api.answer import Answer
from medusa_cli.api.arguments import Tools
from medusa_cli.server.asks import Options
from medusa_cli.server.engine.messages import Read, Wrote
from medusa_cli.server.engine.remote import Engine
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
    """Answers one job at a time, in the session that has read most of its prompt."""

    def __init__(
        self,
        engine: Engine,
        most_waiting: int = DEFAULT_WAITING,
        on_end: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        super().__init__(engine, most_waiting, on_end)

    def _result(self, job: Job) -> Answer:
        def told(event: Read | Wrote) -> None:
            self._tell(job, event.pieces if isinstance(event, Wrote) else Reading(event.done, event.total))

        work = job.work = self._engine.answer(
            job.client, job.prompt, job.options, job.tools,
            raw=job.raw, one_call=job.one_call, choice=job.choice, on_event=told,
        )  # fmt: skip
        if job.dropped:  # since this began
            work.cancel()
        end = work.run()
        if end is None:
            return Answer("", [], "cancelled", 0, len(job.prompt), 0, {}, [], job.left_out)
        return replace(end.answer, left_out=job.left_out)
