"""Conversations that have a name, and stay between runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.chat.conversation import Conversation
from medusa_cli.support import paths
from medusa_cli.support.atomic import explain_os_error
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli.chat.repl import Repl

SUFFIX = ".json"
NAME = re.compile(r"\w[\w .-]{0,99}")


def folder() -> Path:
    """Where named conversations are kept."""
    return paths.data_dir() / "sessions"


def path_of(name: str) -> Path:
    """The file for a conversation of that name, whether it exists or not. MedusaError for an invalid name."""
    if not NAME.fullmatch(name):
        raise MedusaError(f"{name!r} cannot name a session: use letters, digits, spaces, dots, - and _, at most 100")
    return folder() / (name + SUFFIX)


def names() -> list[str]:
    """The names of all conversations."""
    return sorted(path.stem for path in folder().glob(f"*{SUFFIX}"))


@contextlib.contextmanager
def resumed(chat: Repl, name: str) -> Iterator[None]:
    """The chat continues the conversation of that name. It is written after each answer, the cache at the end.

    MedusaError if another process has it, or it cannot be read.
    """
    from medusa_cli.support.atomic import ending_signals_raise
    from medusa_cli.support.locks import only_writer

    path, system = path_of(name), chat.conversation.system
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise explain_os_error(error, folder()) from error
    with only_writer(path), ending_signals_raise():
        if path.exists():
            chat.conversation = Conversation.load(path, chat.engine.n_ctx)
            chat.conversation.system = system or chat.conversation.system
            count = len(chat.conversation.turns)
            remark = chat.caches.brought_back(chat.conversation) if count and chat.caches else ""
            chat.screen.note(f"Session {name}: {count} messages" + f"; {remark}" * bool(remark) + ".")
        else:
            chat.screen.note(f"Session {name} is new.")
        chat.kept_at = path
        try:
            yield
        finally:
            if chat.conversation.turns:
                chat.conversation.save(path, chat.engine.name, chat.engine.n_ctx)
                if chat.caches and (remark := chat.caches.kept()):
                    chat.screen.note(f"Session {name}: {remark}.")
