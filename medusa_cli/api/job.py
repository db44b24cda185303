"""One answer, from its place in the queue to its end, on whatever thread runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from medusa_cli.api.answer import Answer, Piece
from medusa_cli.api.arguments import in_python_names
from medusa_cli.api.turns import Turn, Turns

if TYPE_CHECKING:
    from medusa_cli import native
    from medusa_cli.decoding.runtime import Engine
    from medusa_cli.decoding.settings import Settings

OnPieces = Callable[[list[Piece]], None]


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
    ) -> None:
        """on_end gets the tokens that are cached then. MedusaError where the engine cannot answer that."""
        from medusa_cli import native

        with in_python_names():
            engine.check(tokens, settings)
        self.seed = settings.pick_seed()
        self._engine = engine
        self._turns = turns
        self._cancellation = native.Cancellation()
        self._turn = Turn(owner, self._cancellation.cancel)
        self._tokens = tokens
        self._settings = settings
        self._on_end = on_end
        turns.join(self._turn)

    def run(self, on_pieces: OnPieces | None = None) -> Answer:
        """Waits for its turn and answers. MedusaError when the engine fails; what was cancelled returns as it is."""
        with self._turns.taken(self._turn) as mine:
            if not mine:
                return Answer("", [], "cancelled", self.seed, len(self._tokens), 0, {}, [])
            return self._answer(on_pieces)

    def _answer(self, on_pieces: OnPieces | None) -> Answer:
        answered: list[Piece] = []

        def on_step(found: list[native.Piece]) -> None:
            pieces = [Piece.of(one) for one in found]
            answered.extend(pieces)
            if on_pieces is not None:
                on_pieces(pieces)
            # Nobody reads what a thread writes once the program has ended.
            if not threading.main_thread().is_alive():
                self._cancellation.cancel()

        try:
            with in_python_names():
                generation = self._engine.generate(self._tokens, self._settings, self.seed, on_step, self._cancellation)
        finally:
            self._on_end(self._engine.session.cached_tokens)
        return Answer.of(generation, self.seed, answered)

    def cancel(self) -> None:
        """From any thread: the answer ends within one step, or does not begin."""
        self._turns.cancel(self._turn)

    def __del__(self) -> None:
        if hasattr(self, "_on_end"):
            self._turns.leave(self._turn)
