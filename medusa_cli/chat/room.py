"""Which turns of a conversation the model gets when its context is full: the newest, behind the system prompt."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from medusa_cli.chat.conversation import Conversation
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine

ANSWER_SHARE = 8
"""One part in so many of the context is kept free for an answer."""
KEPT_SHARE = 2
"""A cut leaves one part in so many of the context, so that the next one is far away."""


def fitted(engine: Engine, conversation: Conversation, begun: int = 0, most: int = -1) -> list[int]:
    """Token ids of the conversation's prompt, which leaves room for an answer of which `begun` tokens are there.

    most: tokens that the answer may get; -1: any number.

    Where that takes it, the oldest turns leave the prompt (conversation.left_out counts them): always whole ones, a
    message with all up to the next. MedusaError, and nothing changes, where the newest alone is too long.
    """
    room = engine.n_ctx // ANSWER_SHARE
    room = min(room, most) if most >= 0 else room
    tokens = engine.chat_tokens(conversation.prompt())
    if len(tokens) + begun + max(room, 1) <= engine.n_ctx:
        return tokens
    starts = [at for at in conversation.starts() if at > conversation.left_out]
    kept = engine.n_ctx // KEPT_SHARE

    def size(start: int) -> int:
        return len(engine.chat_tokens(conversation.prompt(start))) + begun

    # The first start whose prompt is small enough: later ones are smaller.
    at = bisect_left(starts, True, key=lambda start: size(start) <= kept)
    if at == len(starts):
        _check_newest(engine, conversation, tokens, begun, room)
        at = len(starts) - 1
    conversation.left_out = starts[at] if starts else conversation.left_out
    return engine.chat_tokens(conversation.prompt())


def _check_newest(engine: Engine, conversation: Conversation, tokens: list[int], begun: int, room: int) -> None:
    """MedusaError where the newest turn does not fit by itself, or others would have to leave for one too long."""
    newest = conversation.starts()[-1]
    is_alone = newest <= conversation.left_out
    size = len(tokens if is_alone else engine.chat_tokens(conversation.prompt(newest)))
    what = "the message and the system prompt have" if conversation.system else "the message has"
    if begun and size + begun + max(room, 1) > engine.n_ctx:
        raise MedusaError(
            f"the message and its answer have {size + begun} tokens and leave no room in a context of {engine.n_ctx}: "
            "start with a larger -c"
        )
    if is_alone and size >= engine.n_ctx:
        raise MedusaError(
            f"{what} {size} tokens, the context holds {engine.n_ctx}: shorten the message, or start with a larger -c"
        )
    if not is_alone and not begun and size > engine.n_ctx // KEPT_SHARE:
        raise MedusaError(
            f"{what} {size} tokens, more than half of the context of {engine.n_ctx}, and older messages would have to "
            "be dropped for it: shorten it, /clear, or start with a larger -c"
        )
