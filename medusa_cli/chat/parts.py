"""What a chat is made of, as its loop and its commands see it: engine, reader, screen, and the chat itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from medusa_cli.chat.conversation import Conversation
from medusa_cli.decoding.settings import Settings
from medusa_cli.decoding.template import Message

if TYPE_CHECKING:
    from medusa_cli import native


class ChatEngine(Protocol):
    """What the loop needs of runtime.Engine."""

    name: str
    n_ctx: int

    @property
    def last(self) -> native.Generation | None: ...
    def chat_tokens(self, messages: Sequence[Message]) -> list[int]: ...
    def generate(
        self, prompt: Sequence[int], settings: Settings, seed: int, on_step: Callable[[list[Any]], None]
    ) -> native.Generation: ...


class Reader(Protocol):
    """Where lines come from."""

    interactive: bool

    def read(self, continued: bool = False) -> str:
        """The next line without its end. EOFError at the end of input, KeyboardInterrupt on Ctrl-C."""
        ...


class Screen(Protocol):
    """Where answers and messages go."""

    def piece(self, text: str, drafted: bool) -> None:
        """A part of the answer."""

    def end_answer(self, stats: str | None) -> None:
        """Closes the answer's line; stats is the muted last line, if one is to be shown."""

    def note(self, text: str) -> None:
        """A message for a person at a terminal; nothing is shown to a program."""

    def show(self, text: str) -> None:
        """What a command was asked for (stderr)."""

    def show_rows(self, rows: Sequence[tuple[str, str]]) -> None:
        """The same in two columns, the right one wrapped within itself."""

    def error(self, text: str) -> None:
        """What went wrong, one line (stderr)."""


class Chat(Protocol):
    """What the slash commands need of repl.Repl. generation: of the newest answer, drawn with `seed`."""

    engine: ChatEngine
    screen: Screen
    settings: Settings
    conversation: Conversation
    seed: int
    generation: native.Generation | None

    def regenerate(self) -> bool: ...
    def resume(self) -> bool: ...
