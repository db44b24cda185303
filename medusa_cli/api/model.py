"""A model that is loaded once and then answers."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.api import arguments
from medusa_cli.api.job import Turns
from medusa_cli.api.session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from medusa_cli.api.arguments import EngineArguments


class Model(Session):
    """A loaded model with its draft heads. One answer at a time: others wait, first come, first served.

        with Model("demo") as model:
            print(model.generate("Why is the sky blue?"))

    It is a session itself; session() opens further ones on the same weights. Several models can be open.
    """

    def __init__(
        self,
        model: str | Path = "demo",
        *,
        repeatable: bool = False,
        quiet: bool = False,
        **options: Unpack[EngineArguments],
    ) -> None:
        """model: a GGUF file, org/repo[:QUANT] on the Hub, or "demo". options: those of `medusa generate`.

        repeatable: answers with a seed have the same text each time, as with `--seed`. If that text could depend on the
        drafts, drafting is the same in each run, too. quiet: no progress and no remarks on stderr. MedusaError, one
        line, for everything that does not fit together.
        """
        from rich.console import Console

        from medusa_cli.decoding import context_size, runtime
        from medusa_cli.support import console

        engine_options, draft = arguments.engine_options(options)
        self._console = Console(quiet=True) if quiet else console.messages()
        with arguments.in_python_names():
            engine = runtime.open_engine(
                str(model), engine_options, draft, self._console, seeded=repeatable,
                most_cache=context_size.FOR_PROGRAMS,
            )  # fmt: skip
        self.name = engine.name
        """The model as it was asked for."""
        super().__init__(engine, Turns())
        self._others: weakref.WeakSet[Session] = weakref.WeakSet()

    def __repr__(self) -> str:
        if self.closed:
            return f"<Model {self.name!r}, closed>"
        plan = self._open().plan
        found = {f"tree {plan.tree_name}": plan.tree, "lookup": plan.lookup, "recycling": plan.recycling}
        parts = [name for name, drafts in found.items() if drafts]
        return f"<Model {self.name!r}, context {self.n_ctx}, drafts: {', '.join(parts) or 'nothing'}>"

    def session(self) -> Session:
        """Another conversation on the same weights, with a context of its own."""
        with arguments.in_python_names():
            session = Session(self._open().another(), self._turns)
        self._others.add(session)
        return session

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """Arguments of an answer whose defaults come from the model's own file."""
        return dict(self._open().sampling.values)

    @property
    def n_vocab(self) -> int:
        """Token ids are below this number."""
        return self._open().model.n_vocab

    @property
    def chat_template(self) -> str | None:
        """The model's own template (Jinja), which turns messages into a prompt."""
        return self._open().model.chat_template

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for, not always whole characters; for special tokens, their names."""
        return self._open().model.token_piece(token, special=True)

    @property
    def queue_length(self) -> int:
        """Answers under way or waiting, in all sessions."""
        return self._turns.length

    def cancel(self) -> None:
        """From any thread: ends the answer under way and those waiting, with stop_reason "cancelled"."""
        self._turns.cancel_all()

    def close(self) -> None:
        """Ends what is under way and gives the memory back. Sessions of the model are closed, too."""
        self.cancel()
        self._turns.wait_empty()
        for session in list(self._others):
            session.close()
        super().close()
