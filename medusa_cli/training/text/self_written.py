"""User turns written by the model itself: its continuation of the chat template's user header."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.prompts import rendered, rendered_tokens
from medusa_cli.prompts.seeds.prompts import follow_up
from medusa_cli.prompts.seeds.words import OPENERS

from ..interrupts import Stopped
from .dialogs import Conversation

MAX_TOKENS = 96
CAPTION = "@@user-turn@@"
OPENED_SHARE = 0.7
"""Share of the turns that begin with given words: alone with the header a small model asks the same few things."""
FOLLOW_UP_SHARE = 0.3
SOURCE = "self-written"
SURPLUS = 1.3
"""Turns asked for per turn wanted: some are cut off, repeated or no questions."""


class UserTurns:
    """Writes user turns with one model."""

    def __init__(self, model: native.Model, parallel: int, threads: int) -> None:
        """MedusaError when the model's chat template does not render."""
        self.model, self.parallel, self.threads = model, parallel, threads
        messages = [{"role": "user", "content": CAPTION}]
        self.header, _, rest = rendered(model, messages).partition(CAPTION)
        self.end_marker = (rest.split() or [""])[0]

    def write(
        self, count: int, rng: random.Random, seen: set[str], should_stop: Callable[[], bool]
    ) -> list[Conversation]:
        """At most `count` conversations of groups outside `seen`."""
        openers = [rng.choice(OPENERS) if rng.random() < OPENED_SHARE else "" for _ in range(round(SURPLUS * count))]
        turns: dict[int, str] = {}

        def on_sequence(index: int, tokens: list[int], states: object) -> bool:
            turns[index] = openers[index] + self._text(tokens)
            return not should_stop()

        def on_progress(total: int) -> None:
            if should_stop():
                raise Stopped

        with contextlib.suppress(Stopped):
            native.collect(
                self.model,
                [rendered_tokens(self.model, self.header + opener) for opener in openers],
                [round(rng.uniform(0.7, 1.0), 2) for _ in openers],
                max_tokens=MAX_TOKENS,
                n_parallel=self.parallel,
                seed=rng.getrandbits(31),
                n_threads=self.threads,
                hidden=False,
                on_sequence=on_sequence,
                on_progress=on_progress,
            )
        conversations: dict[str, Conversation] = {}
        for index in sorted(turns):
            turn = turns[index].strip()
            later = (follow_up(rng),) if rng.random() < FOLLOW_UP_SHARE else ()
            conversation = Conversation((turn, *later), source=SOURCE)
            if is_usable(turn) and conversation.group not in seen:
                conversations.setdefault(conversation.group, conversation)
        return list(conversations.values())[:count]

    def _text(self, tokens: list[int]) -> str:
        """The turn's text; empty when it did not come to an end or loops."""
        if not tokens or loop_start(tokens) < len(tokens):
            return ""
        if self.model.is_eog(tokens[-1]):
            return self.model.detokenize(tokens[:-1])
        text, marker, _ = self.model.detokenize(tokens, special=True).partition(self.end_marker or "\0")
        return text if marker else ""


def is_usable(turn: str) -> bool:
    """Whether a text can pass for what a person might ask."""
    letters = sum(character.isalpha() or character.isspace() for character in turn)
    words = turn.split()
    return (
        len(words) >= 4
        and len(turn) <= 700
        and letters > 0.7 * len(turn)
        and "\ufffd" not in turn
        and "<|" not in turn
        and len({word.lower() for word in words}) > 0.4 * len(words)
    )
