"""The state of a chat: system prompt, turns, which of them the model gets, and the JSON transcript that keeps them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding.prompts import Message
from medusa_cli.decoding.shortening import Room
from medusa_cli.decoding.thinking import NOTHING_SAID, REMEMBERED, Thinking
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import check_regular

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine

FORMAT = "medusa-transcript"
VERSION = 1
KEPT = ("role", "content", REMEMBERED)
"""What a transcript has of a message."""


@dataclass(frozen=True)
class Begun:
    """An answer that can be continued: its tokens, and what they say."""

    tokens: list[int]
    text: str
    thinking: str = ""


@dataclass
class Conversation:
    """turns alternate user, assistant, ...; the last may be a user turn that is not answered yet.

    left_out: how many of the oldest turns the model no longer gets. begun: the newest answer, if it can be continued.
    thinking: what the template is told about it.
    """

    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    left_out: int = 0
    begun: Begun | None = None
    thinking: Thinking = NOTHING_SAID

    def tokens(self, engine: Engine, start: int | None = None) -> list[int]:
        """Token ids of prompt()."""
        return engine.chat_tokens(self.prompt(start), thinking=self.thinking)

    def prompt(self, start: int | None = None) -> list[Message]:
        """System prompt (if any) and turns, from `start` on or without those left out, as chat templates take them."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return [*head, *self.turns[self.left_out if start is None else start :]]

    def starts(self) -> list[int]:
        """Indices of the user's turns."""
        return [at for at, turn in enumerate(self.turns) if turn["role"] == "user"]

    def add_user(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def add_answer(self, text: str, thinking: str = "", begun: Begun | None = None) -> None:
        thought = {REMEMBERED: thinking} if thinking else {}
        self.turns.append({"role": "assistant", "content": text, **thought})
        self.begun = begun

    def last_role(self) -> str:
        """Who spoke last; "" for nobody."""
        return self.turns[-1]["role"] if self.turns else ""

    def drop_last(self, role: str) -> Message | None:
        """Removes and returns the last turn if its role is `role`."""
        return self.turns.pop() if self.turns and self.turns[-1]["role"] == role else None

    def clear(self) -> None:
        """Forgets the turns and keeps the system prompt."""
        self.turns.clear()
        self.left_out, self.begun = 0, None

    def save(self, path: Path, model: str, n_ctx: int = 0) -> None:
        """Writes the transcript, whole or not at all. MedusaError when `path` holds something else, or on failure.

        n_ctx: size of the context for which turns were left out.
        """
        from medusa_cli.support.atomic import atomic_file

        if path.exists() and not _is_transcript(path):
            raise MedusaError(f"{path} exists and is not a medusa transcript: give another name")
        content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "model": model, "messages": self.prompt(0)}
        if self.left_out:
            content |= {"left_out": self.left_out, "context": n_ctx}
        with atomic_file(path, 0o600) as file:
            file.write((json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))

    @classmethod
    def load(cls, path: Path, n_ctx: int = 0) -> Conversation:
        """Reads a transcript. MedusaError says what is wrong with it.

        n_ctx: size of the context that it continues in. If that is larger than the saved one, nothing is left out yet.
        """
        try:
            check_regular(path)
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise MedusaError(f"no such file: {path}") from error
        except OSError as error:
            raise MedusaError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
        except (ValueError, RecursionError) as error:
            raise MedusaError(f"{path} is not a transcript (not JSON)") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise MedusaError(f"{path} is not a medusa transcript")
        if content.get("version") != VERSION:
            raise MedusaError(
                f"{path} is a transcript of version {content.get('version')}, this medusa knows {VERSION}"
            )
        messages = content.get("messages")
        if not isinstance(messages, list) or not all(_is_message(message) for message in messages):
            raise MedusaError(f'{path} is damaged: "messages" must be a list of objects with "role" and "content"')
        turns = [{key: message[key] for key in KEPT if key in message} for message in messages]
        system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else None
        if any(turn["role"] != ("user", "assistant")[index % 2] for index, turn in enumerate(turns)):
            raise MedusaError(f"{path} is damaged: user and assistant must take turns")
        left_out, context = content.get("left_out", 0), content.get("context", 0)
        if not isinstance(left_out, int) or not 0 <= left_out <= len(turns) or not isinstance(context, int):
            raise MedusaError(f'{path} is damaged: "left_out" must count messages, "context" tokens')
        return cls(system, turns, left_out if n_ctx <= context else 0)


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not all(key in value for key in ("role", "content")):
        return False
    return all(isinstance(value[key], str) for key in KEPT if key in value)


def _is_transcript(path: Path) -> bool:
    try:
        Conversation.load(path)
    except MedusaError:
        return False
    return True


# --- the newest turns, when the context is full ----------------------------------------------------


MESSAGE = "the message"


def check_message(engine: Engine, conversation: Conversation, text: str, most: int, name: str) -> None:
    """MedusaError if fitted() would refuse this text as the next message. name: what the text contains."""
    turns = [*conversation.turns, {"role": "user", "content": text}]
    fitted(engine, replace(conversation, turns=turns), most=most, what=f"{MESSAGE} with {name}")


def fitted(
    engine: Engine, conversation: Conversation, begun: int = 0, most: int = -1, what: str = MESSAGE
) -> list[int]:
    """Token ids of the conversation's prompt, with room for an answer that already has `begun` tokens.

    most: tokens that the answer may get; -1: any number. what: what errors call the newest message.

    If need be, the oldest turns leave the prompt (conversation.left_out counts them), always whole: a message with
    everything up to the next. MedusaError, with nothing changed, if the newest alone is too long.
    """
    room = Room(engine.n_ctx, most, begun)
    tokens = conversation.tokens(engine)
    if room.fits(len(tokens)):
        return tokens
    starts = [at for at in conversation.starts() if at > conversation.left_out]
    at = room.first_kept(starts, lambda start: len(conversation.tokens(engine, start)))
    if at == len(starts):
        _check_newest(engine, conversation, tokens, room, what)
        at = len(starts) - 1
    conversation.left_out = starts[at] if starts else conversation.left_out
    return conversation.tokens(engine)


def _check_newest(engine: Engine, conversation: Conversation, tokens: list[int], room: Room, what: str) -> None:
    """MedusaError if the newest turn does not fit by itself, or is so long that others would have to leave for it."""
    newest = conversation.starts()[-1]
    is_alone = newest <= conversation.left_out
    size = len(tokens if is_alone else conversation.tokens(engine, newest))
    what += " and the system prompt have" if conversation.system else " has"
    if room.begun and not room.fits(size):
        raise MedusaError(
            f"the message and its answer have {size + room.begun} tokens and leave no room in a context of "
            f"{engine.n_ctx}: start with a larger -c"
        )
    if is_alone and size >= engine.n_ctx:
        raise MedusaError(
            f"{what} {size} tokens, the context holds {engine.n_ctx}: shorten the message, or start with a larger -c"
        )
    if not is_alone and not room.begun and size > room.kept:
        raise MedusaError(
            f"{what} {size} tokens, more than half of the context of {engine.n_ctx}, and older messages would have to "
            "be dropped for it: shorten it, /clear, or start with a larger -c"
        )
