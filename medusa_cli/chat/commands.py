"""The slash commands of the chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.chat.conversation import Conversation
from medusa_cli.decoding import figures, settings
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli.chat.repl import Repl


FENCE = '"""'


class Leave(Exception):
    """Ends the chat with exit code 0."""


@dataclass(frozen=True)
class Command:
    """run(repl, argument) -> True when Ctrl-C cut an answer short."""

    usage: str
    meaning: str
    run: Callable[[Repl, str], bool]


def find_command(entry: str) -> tuple[str, str] | None:
    """("/name", argument) when the entry is a command; None for text, also text that begins with a path."""
    match = re.fullmatch(r"\s*(/[a-z?]+)(?:[ \t]+(.*?))?\s*", entry)
    return (match[1], match[2] or "") if match else None


def _help(repl: Repl, _: str) -> bool:
    shown = {command.usage: command.meaning for command in COMMANDS.values()}
    width = max(map(len, shown))
    lines = [f"{usage.ljust(width)}  {meaning}" for usage, meaning in shown.items()]
    lines += [f"{FENCE.ljust(width)}  begin and end a message of several lines"]
    lines += [f"{'Ctrl-C'.ljust(width)}  stop the answer; at the prompt: leave", f"{'Ctrl-D'.ljust(width)}  leave"]
    repl.screen.show("\n".join(lines))
    return False


def _exit(repl: Repl, _: str) -> bool:
    raise Leave


def _clear(repl: Repl, _: str) -> bool:
    repl.conversation.clear()
    repl.screen.note("The conversation starts afresh.")
    return False


def _regen(repl: Repl, _: str) -> bool:
    return repl.regenerate()


def _system(repl: Repl, argument: str) -> bool:
    if not argument:
        current = repl.conversation.system
        repl.screen.show(f"system prompt: {current}" if current else "there is no system prompt")
        return False
    quoted = len(argument) >= 2 and argument[0] == argument[-1] == '"'
    text = argument[1:-1] if quoted else argument
    repl.conversation.system = text or None
    repl.screen.note("The system prompt is set." if text else "The system prompt is removed.")
    return False


def _set(repl: Repl, argument: str) -> bool:
    name, _, value = argument.partition(" ")
    if not name:
        rows = [
            (key, settings.show(repl.settings, key), parameter.meaning)
            for key, parameter in settings.PARAMETERS.items()
        ]
        rows.append((settings.ACCEPT, settings.show(repl.settings, settings.ACCEPT), "greedy, exact or typical"))
        repl.screen.show("\n".join(f"{key:<15} {value:<8} {meaning}" for key, value, meaning in rows))
        return False
    if not value.strip():
        raise MedusaError(f"/set {name} needs a value, as in /set temp 0.2; /set alone shows them all")
    repl.settings = settings.changed(repl.settings, name, value.strip())
    repl.screen.note(f"{name} is {value.strip()}.")
    return False


def _stats(repl: Repl, _: str) -> bool:
    if repl.generation is None:
        raise MedusaError("there is no answer to show figures of yet")
    rows = figures.stats_rows(repl.generation, repl.seed, repl.engine.n_ctx)
    repl.screen.show("\n".join(f"{label:<17} {value}" for label, value in rows))
    return False


def _save(repl: Repl, argument: str) -> bool:
    path = _path(argument, "/save")
    repl.conversation.save(path, repl.engine.name)
    repl.screen.note(f"Saved {len(repl.conversation.turns)} turns to {path}.")
    return False


def _load(repl: Repl, argument: str) -> bool:
    path = _path(argument, "/load")
    repl.conversation = Conversation.load(path)
    repl.screen.note(f"Loaded {len(repl.conversation.turns)} turns from {path}.")
    if repl.conversation.turns:
        last = repl.conversation.turns[-1]
        repl.screen.note(f"{last['role']}: {last['content']}")
    return False


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise MedusaError(f"{command} needs a file name, as in {command} chat.json")
    return Path(argument).expanduser()


COMMANDS = {
    "/help": Command("/help", "show this list", _help),
    "/clear": Command("/clear", "forget the conversation, keep the system prompt", _clear),
    "/regen": Command("/regen", "answer the last message again", _regen),
    "/system": Command("/system [TEXT]", 'show or set the system prompt ("" removes it)', _system),
    "/set": Command("/set [NAME VALUE]", "show or set sampling, as in /set temp 0.2", _set),
    "/stats": Command("/stats", "figures of the last answer", _stats),
    "/save": Command("/save FILE", "write the conversation to a file", _save),
    "/load": Command("/load FILE", "read a conversation from a file", _load),
    "/exit": Command("/exit", "leave", _exit),
}
COMMANDS["/?"] = COMMANDS["/help"]
COMMANDS["/bye"] = COMMANDS["/quit"] = COMMANDS["/exit"]
