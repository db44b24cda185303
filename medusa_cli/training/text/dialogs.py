"""Conversations to generate answers for: given in a file, made up from seeds, or written by the model itself."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.prompts import Message, rendered, rendered_tokens
from medusa_cli.prompts.seeds.data import OPENERS
from medusa_cli.prompts.seeds.prompts import Conversation, follow_up, iter_conversations
from medusa_cli.support.errors import MedusaError

from ..resuming import Stopped
from .records import read_dialogs

MAX_PASSES = 8
"""How many passes over a file of prompts (each but the first at higher temperatures) until it is used up."""
MAX_TURN = 1 << 16
"""Characters of a turn: far more than the longest prompt that is answered, few enough to tokenize."""
MAX_TOKENS = 96
"""Longest user turn that the model writes."""
CAPTION = "@@user-turn@@"
OPENED_SHARE = 0.7
"""Share of the turns that begin with given words: from the header alone, a small model asks the same few things."""
FOLLOW_UP_SHARE = 0.3
SOURCE = "self-written"
SURPLUS = 1.3
"""Turns asked for per turn wanted: some are cut off, repeated or not questions."""


# Sources of conversations have a fixed order and are addressed by position, so that a run can continue.


class SeedSource:
    """Endless made-up conversations. too_long: none are."""

    too_long = 0

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def take(self, cursor: int, count: int) -> list[Conversation]:
        """Conversations cursor .. cursor + count - 1."""
        return list(itertools.islice(iter_conversations(self._seed), cursor, cursor + count))

    def is_repeat(self, cursor: int) -> bool:
        """Whether the conversation at `cursor` was given before."""
        return False


class FileSource:
    """The conversations of a file, MAX_PASSES times over. too_long: how many were left out for their length."""

    def __init__(self, path: Path) -> None:
        """MedusaError if the file has no usable conversation."""
        everything = load_conversations(path)
        self._all = [short for conversation in everything if (short := _shortened(conversation)) is not None]
        self.too_long = len(everything) - len(self._all)
        if not self._all:
            raise MedusaError(f"{path}: every prompt is longer than {MAX_TURN} characters, give shorter ones")

    def take(self, cursor: int, count: int) -> list[Conversation]:
        """Like SeedSource.take(); fewer at the end."""
        size = len(self._all)
        return [self._all[at % size] for at in range(cursor, min(cursor + count, MAX_PASSES * size))]

    def is_repeat(self, cursor: int) -> bool:
        """Like SeedSource.is_repeat()."""
        return cursor >= len(self._all)


PromptSource = SeedSource | FileSource


def _shortened(conversation: Conversation) -> Conversation | None:
    """The conversation up to its first turn that no prompt could hold; None if that is the opening."""
    lengths = [len(turn) for turn in conversation.turns]
    kept = next((at for at, length in enumerate(lengths) if length > MAX_TURN), len(lengths))
    if kept == 0 or len(conversation.system or "") > MAX_TURN:
        return None
    return Conversation(conversation.turns[:kept], conversation.system)


def load_conversations(path: Path) -> list[Conversation]:
    """The user's turns of a file, and system texts; the model writes its own answers. MedusaError as from records."""
    found = [_conversation(messages) for _, messages in read_dialogs(path)]
    if not found:
        raise MedusaError(f"{path}: holds no prompts, give one JSON object per line")
    return found


def _conversation(messages: Sequence[Message]) -> Conversation:
    turns = tuple(message["content"] for message in messages if message["role"] == "user")
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    return Conversation(turns, system)


class UserTurns:
    """User turns written by the model itself: its continuation of the chat template's user header."""

    def __init__(self, model: native.Model, parallel: int, threads: int) -> None:
        """MedusaError if the model's chat template does not render."""
        self.model, self.parallel, self.threads = model, parallel, threads
        messages = [{"role": "user", "content": CAPTION}]
        self.header, _, rest = rendered(model, messages).partition(CAPTION)
        self.end_marker = (rest.split() or [""])[0]

    def write(
        self, count: int, rng: random.Random, seen: set[str], should_stop: Callable[[], bool]
    ) -> list[Conversation]:
        """At most `count` conversations from groups not in `seen`."""
        openers = [rng.choice(OPENERS) if rng.random() < OPENED_SHARE else "" for _ in range(round(SURPLUS * count))]
        prompts = [rendered_tokens(self.model, self.header + opener) for opener in openers]
        written = self._write(prompts, rng, should_stop)
        conversations: dict[str, Conversation] = {}
        for index in sorted(written):
            turn = (openers[index] + written[index]).strip()
            later = (follow_up(rng),) if rng.random() < FOLLOW_UP_SHARE else ()
            conversation = Conversation((turn, *later), source=SOURCE)
            if is_usable(turn) and conversation.group not in seen:
                conversations.setdefault(conversation.group, conversation)
        return list(conversations.values())[:count]

    def follow(
        self, conversations: Sequence[list[Message]], rng: random.Random, should_stop: Callable[[], bool]
    ) -> list[str | None]:
        """The user's next turn in each of `conversations`, which end with an answer (Medusa 2.3.2: the model talks to
        itself); None if the model wrote none that can be used."""
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
        """The text of one turn after each of `prompts` that was reached before should_stop()."""
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
        """The turn's text; empty if it did not end or loops."""
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
