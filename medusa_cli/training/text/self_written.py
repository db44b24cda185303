"""User turns written by the model itself: its continuation of the chat template's user header."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.prompts import rendered, rendered_tokens
from medusa_cli.decoding.template import Message
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
        prompts = [rendered_tokens(self.model, self.header + opener) for opener in openers]
        written = self._write(prompts, rng, should_stop)
        turns = {index: openers[index] + text for index, text in written.items()}
        conversations: dict[str, Conversation] = {}
        for index in sorted(turns):
            turn = turns[index].strip()
            later = (follow_up(rng),) if rng.random() < FOLLOW_UP_SHARE else ()
            conversation = Conversation((turn, *later), source=SOURCE)
            if is_usable(turn) and conversation.group not in seen:
                conversations.setdefault(conversation.group, conversation)
        return list(conversations.values())[:count]

    def follow(
        self, conversations: Sequence[list[Message]], rng: random.Random, should_stop: Callable[[], bool]
    ) -> list[str | None]:
        """The user's next turn in each, of messages that end with an answer (Medusa 2.3.2: the model talks to itself);
        None where the model wrote none that can be used."""
        prompts = []
        for messages in conversations:
            text = rendered(self.model, [*messages, {"role": "user", "content": CAPTION}])
            prompts.append(rendered_tokens(self.model, text.partition(CAPTION)[0]))
        short = [at for at, prompt in enumerate(prompts) if len(prompt) + MAX_TOKENS <= self.model.n_ctx_train]
        written = self._write([prompts[at] for at in short], rng, should_stop)
        turns = {short[index]: text.strip() for index, text in written.items()}
        return [turn if is_usable(turn := turns.get(at, "")) else None for at in range(len(conversations))]

    def _write(
        self, prompts: Sequence[list[int]], rng: random.Random, should_stop: Callable[[], bool]
    ) -> dict[int, str]:
        """The text of one turn behind each of `prompts` that was reached before should_stop()."""
        turns: dict[int, str] = {}

        def on_sequence(index: int, tokens: list[int], states: object) -> bool:
            turns[index] = self._text(tokens)
            return not should_stop()

        def on_progress(total: int) -> None:
            if should_stop():
                raise Stopped

        with contextlib.suppress(Stopped):
            native.collect(
                self.model,
                prompts,
                [round(rng.uniform(0.7, 1.0), 2) for _ in prompts],
                max_tokens=MAX_TOKENS,
                n_parallel=self.parallel,
                seed=rng.getrandbits(31),
                n_threads=self.threads,
                hidden=False,
                on_sequence=on_sequence,
                on_progress=on_progress,
            )
        return turns

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
