"""Answers that end because they only repeat themselves: where, which do not, and drafted as plain."""

from __future__ import annotations

import random

import _native_testing as testing
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT

from medusa_cli import native
from medusa_cli.decoding.figures import tokens_before_repeats

LONGEST, ROUNDS, TOKENS, FEW, MANY = 512, 20, 256, 4, 1280


def least(period: int) -> int:
    """The fewest tokens of a loop whose rounds have `period` tokens."""
    return max(TOKENS, min(ROUNDS * period, max(MANY, FEW * period)))


def end_of(text: list[int]) -> tuple[int, int] | None:
    """(length, tokens of a round) of the shortest beginning that ends in a loop, by the definition."""
    tokens, ends = np.array(text), []
    for period in range(1, min(LONGEST, len(text) - 1) + 1):
        same = np.concatenate(([0], np.cumsum(tokens[period:] == tokens[:-period])))
        repeated = least(period) - period
        found = np.flatnonzero(same[repeated:] - same[:-repeated] == repeated)
        if len(found):
            ends.append((int(found[0]) + least(period), period))
    return min(ends, default=None)


@given(
    start=st.lists(st.integers(0, 3), max_size=40),
    loop=st.lists(st.integers(0, 3), min_size=1, max_size=600),
    rounds=st.integers(1, 40),
    rest=st.lists(st.integers(0, 3), max_size=10),
)
@settings(max_examples=60)
def test_the_end_is_that_of_the_definition(start: list[int], loop: list[int], rounds: int, rest: list[int]) -> None:
    text = start + loop * rounds + rest
    assert testing.loop_end(text) == end_of(text)


def test_what_repeats_and_is_no_loop() -> None:
    table = [token for row in range(100) for token in (1, row, 1, row + 1, 2)]
    zeros = [0, 1] * 100  # a list of a hundred zeros
    code = [random.Random(line // 3).randrange(50) for line in range(900)]
    pages = list(range(600)) * 6  # more than 512 tokens a round
    few = list(range(60)) * 19
    verses = list(range(300)) * 4
    for text in (table, zeros, code, pages, few, verses):
        assert testing.loop_end(text) is None
    assert testing.loop_end([7] * 300) == (256, 1)
    assert testing.loop_end(list(range(60)) * 21) == (1200, 60)
    assert testing.loop_end(list(range(300)) * 5) == (1280, 300)
    assert testing.loop_end(list(range(512)) * 5) == (2048, 512)
    # Within a block of code, too: what stands before counts for nothing.
    assert testing.loop_end([9] * 3 + [1, 2, 3] * 100) == (259, 3)


def answer(
    seed: int, tree: list[list[int]], *, stop_loops: bool, temperature: float, dynamic: bool = False
) -> native.Generation:
    session = testing.FakeSession(
        native.Tree(tree), context_size=2048, seed=seed, memory=2, dynamic=dynamic, lookup=True
    )
    sampling = native.Sampling(temperature=temperature, top_k=4, seed=seed)
    return session.generate(PROMPT, max_tokens=1500, sampling=sampling, ignore_eos=True, stop_loops=stop_loops)


@pytest.mark.parametrize("temperature", [0.0, 0.02])
def test_drafted_and_plain_answers_end_at_the_same_token(temperature: float) -> None:
    ended = 0
    for seed in range(20):
        whole = answer(seed, [], stop_loops=False, temperature=temperature)
        plain = answer(seed, [], stop_loops=True, temperature=temperature)
        drafted = answer(seed, [[0], [1], [0, 0]], stop_loops=True, temperature=temperature)
        grown = answer(seed, [[0], [0, 0]], stop_loops=True, temperature=temperature, dynamic=True)
        found = end_of(whole.tokens)
        assert plain.tokens == drafted.tokens == grown.tokens
        assert plain.stop_reason == drafted.stop_reason == grown.stop_reason
        if found is None:
            assert plain.stop_reason == "length"
            continue
        ended += 1
        assert (len(plain.tokens), plain.loop_tokens) == found
        assert plain.stop_reason == "loop"
        kept = tokens_before_repeats(plain.tokens, plain.loop_tokens)
        assert plain.tokens[kept - found[1] : kept] * 2 == plain.tokens[kept - found[1] : kept + found[1]]
        assert kept <= found[0] - (least(found[1]) // found[1] - 1) * found[1]
    assert ended > 5
