"""The chat loop and its slash commands: lines in, answers out. It needs neither a terminal nor the native module."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.chat import text_files
from medusa_cli.chat.conversation import Begun, Conversation, fitted
from medusa_cli.decoding import figures, settings
from medusa_cli.decoding.answering import Answering
from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.decoding.records import Generation, Piece
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import EXIT_INTERRUPT, MedusaError, describe, is_reportable
from medusa_cli.support.files import expanded

if TYPE_CHECKING:
    from medusa_cli.chat.prompt_caches import PromptCaches
    from medusa_cli.chat.terminal import Reader, TerminalScreen
    from medusa_cli.decoding.runtime import Engine

FENCE = '"""'
UNFINISHED = ("context_full", "length", "cancelled")
"""Stop reasons after which an answer can be continued."""
NOTHING = Begun([], "")


class Leave(Exception):
    """Ends the chat with exit code 0."""


@dataclass(frozen=True)
class Command:
    """run(chat, argument) -> true when Ctrl-C cut an answer short."""

    usage: str
    meaning: str
    run: Callable[[Repl, str], bool | None]


def find_command(entry: str) -> tuple[str, str] | None:
    """("/name", argument) when the entry is a command; None for text, even if it begins with a path."""
    match = re.fullmatch(r"\s*(/[a-z?]+)(?:[ \t]+(.*?))?\s*", entry)
    return (match[1], match[2] or "") if match else None


class Repl:
    """One chat. `run` is the whole loop, `submit` handles one entry. generation: the newest answer's, with its `seed`.

    files: sent with the next message.
    """

    def __init__(
        self,
        engine: Engine,
        reader: Reader,
        screen: TerminalScreen,
        settings: Settings,
        system: str | None = None,
        caches: PromptCaches | None = None,
    ) -> None:
        self.engine = engine
        self.reader = reader
        self.screen = screen
        self.settings = settings
        self.conversation = Conversation(system)
        self.files: list[text_files.TextFile] = []
        self.seed = 0
        self.generation: Generation | None = None
        self.caches = caches
        """Saves what the model has read, along with the conversation."""
        self.kept_at: Path | None = None
        """Where the conversation is written after each answer."""
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
        self.conversation.thinking = self.settings.wanted_thinking
        command = None if verbatim else find_command(entry)
        if command is not None:
            name, argument = command
            if name not in COMMANDS:
                self.screen.error(f"no command {name}: /help lists them")
                return False
            return bool(COMMANDS[name].run(self, argument))
        self.conversation.add_user(text_files.message(self.files, entry))
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
        """Answers the conversation's last user turn. True when Ctrl-C cut it short; what came is kept.

        An error, such as a lost device, keeps what came, too. If not a single character came, the user turn is taken
        back, and its files wait for the next one.
        """
        self._regenerated = 0
        try:
            return self._generate_answer()
        finally:
            if self.conversation.drop_last("user") is None:
                self.files.clear()
            elif self.files:
                self.screen.note("What was read with /read stays for your next message; /clear forgets it.")

    def resume(self) -> bool:
        """Continues an answer that was cut short, from its tokens. True when Ctrl-C cut it short again."""
        if self.conversation.last_role() != "assistant":
            raise MedusaError("there is no answer to continue yet")
        if self.conversation.begun is None:
            raise MedusaError("the answer is complete: ask for more in a new message")
        begun, old = self.conversation.begun, self.conversation.turns.pop()
        self._regenerated += 1
        try:
            return self._generate_answer(begun)
        finally:
            if self.conversation.last_role() == "user":
                self.conversation.turns.append(old)
                self.conversation.begun = begun

    def _prompt(self, begun: Begun) -> list[int]:
        """Token ids of what the model gets of the conversation. A remark tells when it gets less than before."""
        before = self.conversation.left_out
        tokens = fitted(self.engine, self.conversation, len(begun.tokens), self.settings.max_tokens)
        if self.conversation.left_out > before:
            speed = self.generation.stats.get("prompt_tokens_per_second") if self.generation is not None else None
            time = f", which takes about {len(tokens) / speed:.0f} s" if speed and len(tokens) > speed else ""
            self.screen.note(
                f"The context of {self.engine.n_ctx} tokens is full: the model no longer sees the oldest "
                f"{self.conversation.left_out} messages, and reads the rest again{time}."
            )
        return tokens

    def _generate_answer(self, begun: Begun = NOTHING) -> bool:
        """begun: what the answer already has."""
        left_out = self.conversation.left_out
        try:
            return self._generate(begun)
        finally:
            if self.conversation.last_role() == "user":  # nothing came: the model has not moved on
                self.conversation.left_out = left_out

    def _generate(self, begun: Begun) -> bool:
        tokens = self._prompt(begun)
        # A fixed seed gives the same answer each time, so /regen moves on from it.
        self.seed = (self.settings.pick_seed() + (self._regenerated if self.settings.seed is not None else 0)) % (
            MAX_SEED + 1
        )
        answered: list[Piece] = []

        def on_step(pieces: list[Piece]) -> None:
            self.screen.reading.end()
            answered.extend(pieces)
            for piece in pieces:
                self.screen.piece(piece.text, piece.drafted, piece.thinking)

        cut: BaseException | None = None
        answering = Answering(self.engine, self.settings, self.seed, on_step=on_step, on_prompt=self.screen.reading)
        try:
            self.generation = answering.run(tokens, begun.tokens)
        except BaseException as error:
            # SystemExit (sessions.resumed), OSError: the window was closed.
            if not (isinstance(error, (KeyboardInterrupt, SystemExit, OSError)) or is_reportable(error)):
                raise
            cut, self.generation = error, answering.record()
        finally:
            self.screen.reading.end()
        failed = cut is not None and not isinstance(cut, KeyboardInterrupt)
        kept = len(answered)
        if cut is None and self.generation is not None and self.generation.loop_tokens:
            # Only the first round of a loop is kept: the model does not read the others again.
            kept = figures.tokens_before_repeats(self.generation.tokens, self.generation.loop_tokens)
        if answered or not failed:
            self._finish(_after(begun, answered[:kept]), cut is not None, _after(begun, _whole_characters(answered)))
        if cut is not None and failed:
            raise cut
        return cut is not None

    def _finish(self, answer: Begun, cut: bool, begun: Begun) -> None:
        """Closes the answer's line and keeps the answer, or as much of it as came. begun: for continuing it."""
        generation = self.generation
        reason = "" if generation is None else generation.stop_reason
        if answer.text or answer.thinking or not cut:
            can_continue = cut or reason in UNFINISHED
            self.conversation.add_answer(answer.text, answer.thinking, begun if can_continue else None)
            if self.kept_at is not None:
                self.conversation.save(self.kept_at, self.engine.name, self.engine.n_ctx)
        self.screen.end_answer(None if generation is None else figures.stats_line(generation.stats))
        if generation is not None and reason == "loop":
            self.screen.error(
                f"the answer kept repeating the same {generation.loop_tokens} tokens, so it was stopped: "
                "try /regen or a higher /set repeat-penalty; --no-stop-loops lets such answers continue"
            )
        if reason == "context_full":
            is_alone = self.conversation.left_out >= len(self.conversation.turns) - 2
            remedy = "/continue goes on without the oldest messages, /clear starts over"
            self.screen.error(
                f"the context of {self.engine.n_ctx} tokens is full, so the answer stops here: "
                + ("start with a larger -c for longer ones" if is_alone else remedy)
            )


def _whole_characters(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """An answer up to its last whole character: one that was cut in two is written anew."""
    said = [at for at, piece in enumerate(pieces) if (piece.text or piece.thinking) and piece.token is not None]
    return pieces[: max([*said, *(at for at, piece in enumerate(pieces) if piece.written)], default=-1) + 1]


def _after(begun: Begun, pieces: Sequence[Piece]) -> Begun:
    """An answer with further pieces."""
    tokens = [token for piece in pieces for token in ((piece.token,) if piece.token is not None else piece.written)]
    text, thinking = "".join(piece.text for piece in pieces), "".join(piece.thinking for piece in pieces)
    return Begun([*begun.tokens, *tokens], begun.text + text, begun.thinking + thinking)


# --- slash commands --------------------------------------------------------------------------------


def _help(chat: Repl, _: str) -> None:
    shown = {command.usage: command.meaning for command in COMMANDS.values()}
    keys = {
        FENCE: "begin and end a message of several lines",
        "Ctrl-C": "stop the answer; at the prompt: leave",
        "Ctrl-D": "leave",
    }
    chat.screen.show_rows([*shown.items(), *keys.items()])


def _exit(chat: Repl, _: str) -> None:
    raise Leave


def _clear(chat: Repl, _: str) -> None:
    chat.conversation.clear()
    chat.files.clear()
    chat.screen.note("Started a new conversation.")


def _context(chat: Repl, _: str) -> None:
    conversation, most = chat.conversation, chat.engine.n_ctx
    used = len(conversation.tokens(chat.engine)) if conversation.turns else 0
    count = len(conversation.turns)
    left_out = f", the oldest {conversation.left_out} left out" if conversation.left_out else ""
    messages = "1 message" if count == 1 else f"{count} messages"
    chat.screen.show(f"{used} of {most} tokens ({used / most:.0%}): {messages}{left_out}")


def _system(chat: Repl, argument: str) -> None:
    if not argument:
        current = chat.conversation.system
        chat.screen.show(f"system prompt: {current}" if current else "there is no system prompt")
        return
    quoted = len(argument) >= 2 and argument[0] == argument[-1] == '"'
    text = argument[1:-1] if quoted else argument
    chat.conversation.system = text or None
    chat.screen.note("Set the system prompt." if text else "Removed the system prompt.")


def _set(chat: Repl, argument: str) -> None:
    name, _, value = argument.partition(" ")
    if not name:
        rows = [
            (key, settings.show(chat.settings, key), parameter.option.chat, chat.settings.origins.get(parameter.name))
            for key, parameter in settings.PARAMETERS.items()
        ]
        rows.append((settings.ACCEPT, settings.show(chat.settings, settings.ACCEPT), settings.ACCEPT_MEANING, None))
        chat.screen.show_rows(
            [(f"{key:<15} {value:<7}", meaning + f" [{origin}]" * bool(origin)) for key, value, meaning, origin in rows]
        )
        return
    if not value.strip():
        raise MedusaError(f"/set {name} needs a value, as in /set temp 0.2; /set alone shows them all")
    chat.settings = settings.changed(chat.settings, name, value.strip())
    chat.screen.note(f"{name} is {value.strip()}.")


def _stats(chat: Repl, _: str) -> None:
    if chat.generation is None:
        raise MedusaError("there is no answer yet, so there are no figures")
    rows = figures.stats_rows(chat.generation, chat.seed, chat.engine.n_ctx)
    chat.screen.show_rows(rows)


def _save(chat: Repl, argument: str) -> None:
    path = _path(argument, "/save")
    chat.conversation.save(path, chat.engine.name, chat.engine.n_ctx)
    remark = chat.caches.kept() if chat.caches else ""
    chat.screen.note(f"Saved {len(chat.conversation.turns)} turns to {path}" + f"; {remark}" * bool(remark) + ".")


def _load(chat: Repl, argument: str) -> None:
    path = _path(argument, "/load")
    chat.conversation = Conversation.load(path, chat.engine.n_ctx)
    remark = chat.caches.brought_back(chat.conversation) if chat.caches and chat.conversation.turns else ""
    chat.screen.note(f"Loaded {len(chat.conversation.turns)} turns from {path}" + f"; {remark}" * bool(remark) + ".")
    if chat.conversation.turns:
        last = chat.conversation.turns[-1]
        chat.screen.note(f"{last['role']}: {last['content']}")


def _read(chat: Repl, argument: str) -> None:
    if argument:
        most = chat.settings.max_tokens
        chat.files.append(text_files.read(chat.engine, chat.conversation, chat.files, argument, most))
        chat.screen.note(f"Read {chat.files[-1]}: it goes with your next message.")
    elif chat.files:
        chat.screen.show("\n".join(["with your next message (/clear forgets them):", *map(str, chat.files)]))
    else:
        chat.screen.show("no file goes with your next message: /read FILE adds one")


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise MedusaError(f"{command} needs a file name, as in {command} chat.json")
    return expanded(argument)


COMMANDS = {
    "/help": Command("/help", "show this list", _help),
    "/clear": Command("/clear", "forget the conversation, keep the system prompt", _clear),
    "/regen": Command("/regen", "answer the last message again", lambda chat, _: chat.regenerate()),
    "/continue": Command("/continue", "go on with an answer that was cut short", lambda chat, _: chat.resume()),
    "/context": Command("/context", "how full the context is", _context),
    "/system": Command("/system [TEXT]", 'show or set the system prompt ("" removes it)', _system),
    "/set": Command("/set [NAME VALUE]", "show or set sampling, as in /set temp 0.2", _set),
    "/stats": Command("/stats", "figures for the last answer", _stats),
    "/read": Command("/read FILE", "put a text file into the next message; alone: which ones it has", _read),
    "/save": Command("/save FILE", "write the conversation to a file", _save),
    "/load": Command("/load FILE", "read a conversation from a file", _load),
    "/exit": Command("/exit", "leave", _exit),
}
COMMANDS["/?"] = COMMANDS["/help"]
COMMANDS["/bye"] = COMMANDS["/quit"] = COMMANDS["/exit"]
