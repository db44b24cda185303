"""Turns that leave a prompt which the context does not hold: what a chat would have left out, told from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli.chat.conversation import Conversation, fitted
from medusa_cli.decoding.shortening import INSTRUCTIONS, MessageTooLong, Room, Shortener
from medusa_cli.support.errors import MedusaError

N_CTX = 1000
Messages = list[dict[str, Any]]


def tokens_of(messages: Sequence[Any]) -> list[int]:
    """One token for each character, and some for each message."""
    return [ord(one) for one in "".join(f"<{message['role']}>{message['content']}" for message in messages)]


def size(messages: Sequence[Any]) -> int:
    return len(tokens_of(messages))


def said(role: str, length: int, mark: str = "x") -> dict[str, Any]:
    return {"role": role, "content": mark * length}


def first(messages: Messages, most: int = -1, longest: int | None = None) -> int:
    """The place of the first message behind the instructions that is not left out."""
    head = next((at for at, one in enumerate(messages) if one["role"] not in INSTRUCTIONS), len(messages))
    tokens, left_out = Shortener(messages, Room(N_CTX, most), tokens_of, len, longest).tokens()
    assert tokens == tokens_of([*messages[:head], *messages[head + left_out :]])
    return head + left_out


LENGTHS = st.lists(st.tuples(st.integers(0, 420), st.integers(0, 300)), min_size=1, max_size=24)


@given(system=st.integers(0, 60), turns=LENGTHS, most=st.sampled_from([-1, 1, 50, 300]), known=st.booleans())
def test_the_cut_is_that_of_a_chat(system: int, turns: list[tuple[int, int]], most: int, known: bool) -> None:
    """At each turn, from the whole conversation, and from what it was so far."""
    engine: Any = SimpleNamespace(n_ctx=N_CTX, chat_tokens=lambda messages, thinking: tokens_of(messages))
    chat = Conversation("s" * system or None)
    head = [said("system", system, "s")] if system else []
    for asked, answered in turns:
        chat.add_user("u" * asked)
        messages = chat.prompt(0)
        try:
            tokens = fitted(engine, chat, most=most)
        except MedusaError:
            with pytest.raises(MedusaError, match=f"more than half of the context of {N_CTX}"):
                first(messages, most)
            chat.drop_last("user")
            continue
        at = first(messages, most, longest=1 if known else None)
        assert tokens_of([*head, *messages[at:]]) == tokens
        assert at - len(head) == chat.left_out
        chat.add_answer("a" * answered)


def test_a_turn_goes_with_its_calls_and_their_results() -> None:
    head = [said("developer", 20), said("system", 20)]
    turn = [said("user", 50), said("assistant", 20), said("tool", 100), said("assistant", 50)]
    messages, before, cuts = [*head, *turn * 12], len(head), 0
    for end in range(3, len(messages)):
        if messages[end]["role"] != "assistant":  # nobody was asked
            continue
        at = first(messages[:end])
        if at != before:
            cuts += 1
            assert messages[at]["role"] == "user"
            assert size([*head, *messages[before:end]]) > N_CTX * 7 // 8
            assert size([*head, *messages[at:end]]) <= N_CTX // 2 < size([*head, *messages[at - 4 : end]])
        assert size([*head, *messages[at:end]]) <= N_CTX * 7 // 8
        before = at
    assert cuts == 5


def test_instructions_within_a_conversation_belong_to_their_turn() -> None:
    messages = [
        said("user", 300),
        said("system", 10),
        said("assistant", 300),
        said("user", 100),
        said("assistant", 200),
    ]
    assert first([*messages, said("user", 10)]) == 3
    assert first([said("assistant", 500), said("user", 100), said("assistant", 300), said("user", 10)]) == 1


def test_a_message_of_more_than_half_the_context() -> None:
    """It is answered where nothing has to leave for it, and refused elsewhere; behind the next one it is no matter."""
    large = said("user", 600)
    assert first([large]) == 0
    older = [said("user", 100), said("assistant", 200)]
    with pytest.raises(MessageTooLong, match="the message has 606 tokens, more than half of the context of 1000"):
        first([*older, large])
    with pytest.raises(MessageTooLong, match="the message and the instructions have"):
        first([said("system", 10), *older, large])
    with pytest.raises(MessageTooLong, match="a message has 600 tokens"):
        first([*older, said("user", 10), said("assistant", 10), said("tool", 600)])
    assert first([*older, large, said("assistant", 300), said("user", 10)]) == 4


def test_a_newest_turn_of_many_messages_may_have_more_than_half() -> None:
    older = [said("user", 300), said("assistant", 100)]
    turn = [said("user", 50), *[said("assistant", 20), said("tool", 60)] * 5]
    assert N_CTX // 2 < size(turn) < N_CTX * 7 // 8
    assert first([*older, *turn]) == 2
    with pytest.raises(MessageTooLong, match=r"the newest turn has .* leaves no room in a context of 1000"):
        first([*older, *turn, *[said("assistant", 20), said("tool", 60)] * 4])
    # Alone it is answered up to the end of the context, as a first message is.
    assert first([*turn, *[said("assistant", 20), said("tool", 60)] * 4]) == 0


def test_long_conversations_are_counted_a_few_times() -> None:
    counted: list[int] = []

    def counting(messages: Sequence[Any]) -> list[int]:
        counted.append(size(messages))
        return tokens_of(messages)

    messages = [said("system", 50)]
    for number in range(1000):
        messages += [said("user", 10 + number * 7 % 40), said("assistant", 10 + number * 13 % 60)]
    messages.append(said("user", 10))
    tokens, _ = Shortener(messages, Room(N_CTX), counting, len).tokens()
    assert N_CTX // 4 < len(tokens) < N_CTX
    assert len(counted) <= 5
    assert max(counted) < N_CTX


def test_templates_that_change_earlier_messages() -> None:
    """What is counted message by message is wrong then, by far: the prompt fits all the same."""

    def prompt_of(messages: Sequence[Any]) -> list[int]:
        return tokens_of([{**one, "content": one["content"] * 3} for one in messages])

    for turns in range(1, 30):
        messages = [*[said("user", 60), said("assistant", 50)] * turns, said("user", 60)]
        tokens, left_out = Shortener(messages, Room(N_CTX), prompt_of, lambda text: len(text) // 2).tokens()
        assert len(tokens) <= N_CTX * 7 // 8
        assert tokens == prompt_of(messages[left_out:])
        assert messages[left_out]["role"] == "user"
