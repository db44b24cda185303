"""The chat loop: lines in, answers out. It knows neither the terminal nor the native module, so fakes can drive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medusa_cli.chat import room
from medusa_cli.chat.commands import COMMANDS, FENCE, Leave, find_command
from medusa_cli.chat.conversation import Conversation
from medusa_cli.chat.parts import ChatEngine, Reader, Screen
from medusa_cli.decoding import figures
from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import EXIT_INTERRUPT, MedusaError, describe, is_reportable

if TYPE_CHECKING:
    from medusa_cli import native

UNFINISHED = ("context_full", "length", "cancelled")
"""Reasons for which an answer stopped, and could go on."""


class Repl:
    """One chat. `run` is the whole loop; `submit` handles one entry."""

    def __init__(
        self, engine: ChatEngine, reader: Reader, screen: Screen, settings: Settings, system: str | None = None
    ) -> None:
        self.engine = engine
        self.reader = reader
        self.screen = screen
        self.settings = settings
        self.conversation = Conversation(system)
        self.seed = 0
        self.generation: native.Generation | None = None
        self._regenerated = 0

    def run(self) -> int:
        """Reads and answers until the end: exit code 0 after Ctrl-D, the end of input or /exit, 130 after Ctrl-C.

        At a terminal errors are shown and the chat goes on; piped input ends with the first one (it is raised).
        """
        while True:
            try:
                entry, fenced = self._read_entry()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                return EXIT_INTERRUPT
            try:
                interrupted = self.submit(entry, verbatim=fenced)
            except Leave:
                return 0
            except Exception as error:
                if not self.reader.interactive or not is_reportable(error):
                    raise
                self.screen.error(describe(error))
                continue
            if interrupted and not self.reader.interactive:
                return EXIT_INTERRUPT

    def _read_entry(self) -> tuple[str, bool]:
        """One line, or (with True) the lines between two fences. The end of input closes a fence, too."""
        line = self.reader.read()
        if not line.lstrip().startswith(FENCE):
            return line, False
        rest = line.lstrip().removeprefix(FENCE)
        lines: list[str] = []
        while True:
            if rest.rstrip().endswith(FENCE):
                lines.append(rest.rstrip().removesuffix(FENCE))
                break
            lines.append(rest)
            try:
                rest = self.reader.read(continued=True)
            except EOFError:
                break
        return "\n".join(lines).strip("\n"), True

    def submit(self, entry: str, verbatim: bool = False) -> bool:
        """Handles one entry: a command (not if verbatim) or a user turn. True when Ctrl-C cut an answer short."""
        if not entry.strip():
            return False
        command = None if verbatim else find_command(entry)
        if command is not None:
            name, argument = command
            if name not in COMMANDS:
                self.screen.error(f"no command {name}: /help lists them")
                return False
            return COMMANDS[name].run(self, argument)
        self.conversation.add_user(entry)
        return self.answer()

    def regenerate(self) -> bool:
        """Answers the last user turn again, with another seed; the old answer stays if no new one comes."""
        old = self.conversation.drop_last("assistant")
        if not self.conversation.turns:
            raise MedusaError("there is no message to answer again yet")
        self._regenerated += 1
        try:
            return self._generate_answer()
        finally:
            if old is not None and self.conversation.turns and self.conversation.turns[-1]["role"] == "user":
                self.conversation.turns.append(old)

    def answer(self) -> bool:
        """Answers the conversation's last user turn. True when Ctrl-C cut it short; what came stays in it.

        An error, such as that of a lost device, leaves what came, too. A user turn without a character of an answer is
        taken back.
        """
        self._regenerated = 0
        try:
            return self._generate_answer()
        finally:
            self.conversation.drop_last("user")

    def resume(self) -> bool:
        """Goes on with an answer that was cut short, from its tokens. True when Ctrl-C cut it short again."""
        if self.conversation.last_role() != "assistant":
            raise MedusaError("there is no answer to continue yet")
        if self.conversation.begun is None:
            raise MedusaError("the answer is complete: ask for more in a new message")
        begun, old = self.conversation.begun, self.conversation.turns.pop()
        self._regenerated += 1
        try:
            return self._generate_answer(*begun)
        finally:
            if self.conversation.last_role() == "user":
                self.conversation.add_answer(old["content"], begun)

    def _prompt(self, begun: Sequence[int]) -> list[int]:
        """Token ids of what the model gets: of the conversation, and of an answer that goes on. A remark where that is
        less of the conversation than it was."""
        before = self.conversation.left_out
        tokens = room.fitted(self.engine, self.conversation, len(begun), self.settings.max_tokens)
        if self.conversation.left_out > before:
            speed = self.generation.stats.get("prompt_tokens_per_second") if self.generation is not None else None
            time = f", which takes about {len(tokens) / speed:.0f} s" if speed and len(tokens) > speed else ""
            self.screen.note(
                f"The context of {self.engine.n_ctx} tokens is full: the model no longer sees the oldest "
                f"{self.conversation.left_out} messages, and reads the rest again{time}."
            )
        return [*tokens, *begun]

    def _generate_answer(self, begun: Sequence[int] = (), begun_text: str = "") -> bool:
        """begun: tokens of the answer that are there already, and their text."""
        left_out = self.conversation.left_out
        try:
            return self._generate(begun, begun_text)
        finally:
            if self.conversation.last_role() == "user":  # nothing came: the model has not moved on
                self.conversation.left_out = left_out

    def _generate(self, begun: Sequence[int], begun_text: str) -> bool:
        tokens = self._prompt(begun)
        # A fixed seed gives the same answer each time, so /regen moves on from it.
        self.seed = (self.settings.pick_seed() + (self._regenerated if self.settings.seed is not None else 0)) % (
            MAX_SEED + 1
        )
        parts: list[str] = []
        answered: list[Any] = []

        def on_step(pieces: list[Any]) -> None:
            answered.extend(pieces)
            for piece in pieces:
                parts.append(piece.text)
                self.screen.piece(piece.text, piece.drafted)

        interrupted = False
        failure: Exception | None = None
        try:
            self.generation = self.engine.generate(tokens, self.settings, self.seed, on_step)
        except KeyboardInterrupt:
            interrupted = True
        except Exception as error:
            if not is_reportable(error):
                raise
            failure = error
        if self.generation is not None and failure is None and not interrupted and self.generation.loop_tokens:
            # Of a loop the first round stays: the model does not read the others again.
            parts = parts[: figures.tokens_before_repeats(self.generation)]
        cut = interrupted or failure is not None
        if cut:
            # Without a piece the engine may not have begun: its last generation could be the one before.
            self.generation = self.engine.last if parts else None
        if parts or failure is None:
            whole, text = _whole_characters(answered)
            self._finish(begun_text + "".join(parts), cut, ([*begun, *whole], begun_text + text))
        if failure is not None:
            raise failure
        return interrupted

    def _finish(self, text: str, cut: bool, begun: tuple[list[int], str]) -> None:
        """Closes the answer's line and keeps the answer, what came of it where it was cut short.

        begun: its tokens and text, for going on with it.
        """
        generation = self.generation
        self.screen.end_answer(None if generation is None else figures.stats_line(generation.stats))
        if text or not cut:
            goes_on = cut or (generation is not None and generation.stop_reason in UNFINISHED)
            self.conversation.add_answer(text, begun if goes_on else None)
        if generation is not None and generation.stop_reason == "loop":
            self.screen.error(
                f"the answer kept repeating the same {generation.loop_tokens} tokens, so it was stopped: "
                "try /regen or a higher /set repeat-penalty; --no-stop-loops lets such answers continue"
            )
        if generation is not None and generation.stop_reason == "context_full":
            is_alone = self.conversation.left_out >= len(self.conversation.turns) - 2
            remedy = "/continue goes on without the oldest messages, /clear starts over"
            self.screen.error(
                f"the context of {self.engine.n_ctx} tokens is full, so the answer stops here: "
                + ("start with a larger -c for longer ones" if is_alone else remedy)
            )


def _whole_characters(pieces: Sequence[Any]) -> tuple[list[int], str]:
    """Tokens and text of an answer up to its last whole character: what was cut within one is written anew."""
    whole = max((at for at, piece in enumerate(pieces) if piece.text and piece.token >= 0), default=-1) + 1
    return [piece.token for piece in pieces[:whole]], "".join(piece.text for piece in pieces[:whole])
