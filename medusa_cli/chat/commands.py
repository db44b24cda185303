"""The slash commands of the chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from medusa_cli.chat.conversation import Conversation
from medusa_cli.chat.parts import Chat
from medusa_cli.decoding import figures, settings
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded

FENCE = '"""'


class Leave(Exception):
    """Ends the chat with exit code 0."""


@dataclass(frozen=True)
class Command:
    """run(chat, argument) -> True when Ctrl-C cut an answer short."""

    usage: str
    meaning: str
    run: Callable[[Chat, str], bool]


def find_command(entry: str) -> tuple[str, str] | None:
    """("/name", argument) when the entry is a command; None for text, also text that begins with a path."""
    match = re.fullmatch(r"\s*(/[a-z?]+)(?:[ \t]+(.*?))?\s*", entry)
    return (match[1], match[2] or "") if match else None


def _help(chat: Chat, _: str) -> bool:
    shown = {command.usage: command.meaning for command in COMMANDS.values()}
    keys = {
        FENCE: "begin and end a message of several lines",
        "Ctrl-C": "stop the answer; at the prompt: leave",
        "Ctrl-D": "leave",
    }
    chat.screen.show_rows([*shown.items(), *keys.items()])
    return False


def _exit(chat: Chat, _: str) -> bool:
    raise Leave


def _clear(chat: Chat, _: str) -> bool:
    chat.conversation.clear()
    chat.screen.note("Started a new conversation.")
    return False


def _regen(chat: Chat, _: str) -> bool:
    return chat.regenerate()


def _continue(chat: Chat, _: str) -> bool:
    return chat.resume()


def _context(chat: Chat, _: str) -> bool:
    conversation, most = chat.conversation, chat.engine.n_ctx
    used = len(chat.engine.chat_tokens(conversation.prompt())) if conversation.turns else 0
    count = len(conversation.turns)
    left_out = f", the oldest {conversation.left_out} left out" if conversation.left_out else ""
    messages = "1 message" if count == 1 else f"{count} messages"
    chat.screen.show(f"{used} of {most} tokens ({used / most:.0%}): {messages}{left_out}")
    return False


def _system(chat: Chat, argument: str) -> bool:
    if not argument:
        current = chat.conversation.system
        chat.screen.show(f"system prompt: {current}" if current else "there is no system prompt")
        return False
    quoted = len(argument) >= 2 and argument[0] == argument[-1] == '"'
    text = argument[1:-1] if quoted else argument
    chat.conversation.system = text or None
    chat.screen.note("Set the system prompt." if text else "Removed the system prompt.")
    return False


def _set(chat: Chat, argument: str) -> bool:
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
        return False
    if not value.strip():
        raise MedusaError(f"/set {name} needs a value, as in /set temp 0.2; /set alone shows them all")
    chat.settings = settings.changed(chat.settings, name, value.strip())
    chat.screen.note(f"{name} is {value.strip()}.")
    return False


def _stats(chat: Chat, _: str) -> bool:
    if chat.generation is None:
        raise MedusaError("there is no answer yet, so there are no figures")
    rows = figures.stats_rows(chat.generation, chat.seed, chat.engine.n_ctx)
    chat.screen.show_rows(rows)
    return False


def _save(chat: Chat, argument: str) -> bool:
    path = _path(argument, "/save")
    chat.conversation.save(path, chat.engine.name)
    chat.screen.note(f"Saved {len(chat.conversation.turns)} turns to {path}.")
    return False


def _load(chat: Chat, argument: str) -> bool:
    path = _path(argument, "/load")
    chat.conversation = Conversation.load(path)
    chat.screen.note(f"Loaded {len(chat.conversation.turns)} turns from {path}.")
    if chat.conversation.turns:
        last = chat.conversation.turns[-1]
        chat.screen.note(f"{last['role']}: {last['content']}")
    return False


def _path(argument: str, command: str) -> Path:
    if not argument:
        raise MedusaError(f"{command} needs a file name, as in {command} chat.json")
    return expanded(argument)


COMMANDS = {
    "/help": Command("/help", "show this list", _help),
    "/clear": Command("/clear", "forget the conversation, keep the system prompt", _clear),
    "/regen": Command("/regen", "answer the last message again", _regen),
    "/continue": Command("/continue", "go on with an answer that was cut short", _continue),
    "/context": Command("/context", "how full the context is", _context),
    "/system": Command("/system [TEXT]", 'show or set the system prompt ("" removes it)', _system),
    "/set": Command("/set [NAME VALUE]", "show or set sampling, as in /set temp 0.2", _set),
    "/stats": Command("/stats", "figures for the last answer", _stats),
    "/save": Command("/save FILE", "write the conversation to a file", _save),
    "/load": Command("/load FILE", "read a conversation from a file", _load),
    "/exit": Command("/exit", "leave", _exit),
}
COMMANDS["/?"] = COMMANDS["/help"]
COMMANDS["/bye"] = COMMANDS["/quit"] = COMMANDS["/exit"]
