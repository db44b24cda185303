"""Texts of a grammar, drawn at random, and what a text is to one."""

from __future__ import annotations

import random

import _native_testing as testing

from medusa_cli import native

ENDING = b'"}]'
COMMON = b'"}],0159:aZT-.'


def states_of(gbnf: str) -> testing.GrammarStates:
    """How far texts come in a grammar."""
    return testing.GrammarStates(native.Grammar(gbnf))


def matches(states: testing.GrammarStates, text: str | bytes) -> bool:
    """Whether a whole text follows the grammar."""
    state = states.after(states.start, text.encode() if isinstance(text, str) else text)
    return state >= 0 and states.accepts(state)


def random_text(states: testing.GrammarStates, rng: random.Random, most: int = 2000) -> str | None:
    """A text of the grammar, which ends soon where that is possible; None: it did not end."""
    state, out = states.start, bytearray()
    while len(out) < most:
        if states.is_complete(state) or (states.accepts(state) and rng.random() < 0.3):
            return out.decode()
        following = states.following(state)
        preferred = [byte for byte in following if byte in (ENDING if len(out) > 150 else COMMON)]
        chosen = rng.choice(preferred if preferred and rng.random() < 0.8 else following)
        state = states.after(state, bytes([chosen]))
        out.append(chosen)
    return None
