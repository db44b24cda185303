"""Who may use an engine: one answer at a time, in the order they were asked for. And one answer, start to end."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medusa_cli.api.answer import Answer, Piece
from medusa_cli.api.arguments import Tools, in_python_names, schemas_of
from medusa_cli.decoding.answering import Answering, Cancellation, OnPieces
from medusa_cli.decoding.forced_calls import strict_calls, written_call

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine, OnPrompt
    from medusa_cli.decoding.settings import Settings


@dataclass(eq=False)
class Turn:
    """A place in a queue. owner: who asked. interrupt: ends this turn's work, even if it has not begun yet."""

    owner: object
    interrupt: Callable[[], None]
    cancelled: bool = False
    waited_for: bool = False


class Turns:
    """A queue of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Turn] = deque()

    def join(self, turn: Turn) -> None:
        """Keeps the turn's place from here on, until taken() ends or leave() is called."""
        with self._changed:
            self._queue.append(turn)

    def leave(self, turn: Turn) -> None:
        """Gives the place back."""
        with self._changed:
            if turn in self._queue:
                self._queue.remove(turn)
                self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self, turn: Turn) -> Iterator[bool]:
        """Waits until the turn is first in the queue. False: it was cancelled before."""
        try:
            with self._changed:
                turn.waited_for = True
                self._changed.wait_for(lambda: turn.cancelled or self._queue[0] is turn)
            yield not turn.cancelled
        finally:
            self.leave(turn)

    def cancel(self, turn: Turn) -> None:
        """Makes whoever waits for this turn give up, and interrupts work that is under way in it."""
        with self._changed:
            turn.cancelled = True
            if self._queue and self._queue[0] is turn:
                turn.interrupt()
            if not turn.waited_for and turn in self._queue:
                self._queue.remove(turn)  # perhaps nobody will ever come for it
            self._changed.notify_all()

    def cancel_all(self, owner: object = None) -> None:
        """Cancels all turns, or those of one owner."""
        with self._changed:
            for turn in [turn for turn in self._queue if owner is None or turn.owner is owner]:
                self.cancel(turn)

    def wait_empty(self) -> None:
        """Waits until nobody has a turn or is waiting for one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue)

    @property
    def length(self) -> int:
        """How many turns are in the queue, including the running one."""
        with self._changed:
            return len(self._queue)


class Job:
    """What is to be answered; its place in the queue is kept from the beginning."""

    def __init__(
        self,
        owner: object,
        engine: Engine,
        turns: Turns,
        tokens: list[int],
        settings: Settings,
        on_end: Callable[[list[int]], None],
        left_out: int = 0,
        raw: bool = False,
        tools: Tools | None = None,
        one_call: bool = False,
        choice: str | None = None,
    ) -> None:
        """on_end gets the tokens that are cached at the end. left_out: how many messages are missing from `tokens`.
        raw: the answer is not divided into parts. tools: what it may call. one_call: it ends with the first call.
        choice: the tool that it has to call, "" for any of them; None: it need not.

        MedusaError if the engine cannot answer that.
        """
        with in_python_names():
            engine.check(tokens, settings)
            self._call, self._strict = None, {}
            template = engine.model.chat_template
            if choice is not None:
                self._call = written_call(template, tools or (), choice)
            elif tools:
                self._strict = strict_calls(template, tools)
        self.seed = settings.pick_seed()
        self._engine = engine
        self._turns = turns
        self._cancellation = Cancellation()
        self._turn = Turn(owner, self._cancellation.cancel)
        self._tokens = tokens
        self._settings = settings
        self._on_end = on_end
        self._left_out = left_out
        self._raw, self._tools, self._one_call = raw, schemas_of(tools or ()), one_call
        turns.join(self._turn)

    def run(self, on_pieces: OnPieces | None = None, on_prompt: OnPrompt | None = None) -> Answer:
        """Waits for its turn and answers. MedusaError when the engine fails; a cancelled answer returns as it is."""
        with self._turns.taken(self._turn) as mine:
            if not mine:
                return Answer("", [], "cancelled", self.seed, len(self._tokens), 0, {}, [], self._left_out)
            return self._answer(on_pieces, on_prompt)

    def _answer(self, on_pieces: OnPieces | None, on_prompt: OnPrompt | None) -> Answer:
        answered: list[Piece] = []

        def on_step(pieces: list[Piece]) -> None:
            answered.extend(pieces)
            if on_pieces is not None:
                on_pieces(pieces)
            # Once the program has ended, nobody reads what a thread writes.
            if not threading.main_thread().is_alive():
                self._cancellation.cancel()

        answering = Answering(
            self._engine,
            self._settings,
            self.seed,
            raw=self._raw,
            tools=self._tools,
            one_call=self._one_call,
            call=self._call,
            strict=self._strict,
            on_step=on_step,
            on_prompt=on_prompt,
            cancellation=self._cancellation,
        )
        try:
            with in_python_names():
                generation = answering.run(self._tokens)
        finally:
            self._on_end(self._engine.session.cached_tokens)
        return Answer.of(generation, self.seed, answered, self._left_out)

    def cancel(self) -> None:
        """From any thread: the answer ends within one step, or does not begin."""
        self._turns.cancel(self._turn)

    def __del__(self) -> None:
        if hasattr(self, "_on_end"):
            self._turns.leave(self._turn)
