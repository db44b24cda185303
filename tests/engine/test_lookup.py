"""Prompt lookup: the matcher against a rescan of the text, what it learns, and losslessness on the fake model."""

from __future__ import annotations

import _native_testing as testing
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT, tree_choices

from medusa_cli import native

MIN, MAX = 2, 5


def rescan(tokens: list[int]) -> tuple[int, int]:
    """(length, end of the newest earlier occurrence) of the longest suffix that occurs twice."""
    for length in range(min(MAX, len(tokens) - 1), MIN - 1, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                return length, end
    return 0, 0


@given(tokens=st.lists(st.integers(0, 2), max_size=60))
def test_the_match_is_what_a_rescan_finds(tokens: list[int]) -> None:
    index = testing.LookupIndex(MIN, MAX)
    for count, token in enumerate(tokens, 1):
        index.append(token)
        assert index.match == rescan(tokens[:count])
    index.clear()
    assert index.match == (0, 0)


def test_the_continuation_goes_on_periodically() -> None:
    index = testing.LookupIndex(MIN, MAX)
    for token in [7, 1, 2, 3, 9, 1, 2]:
        index.append(token)
    assert index.match == (2, 3)
    assert index.continuation(3) == [3, 9, 1]
    assert index.continuation(8) == [3, 9, 1, 2, 3, 9, 1, 2]
    index.append(5)
    assert index.continuation(3) == []


def test_match_lengths_must_make_sense() -> None:
    for lengths in ((0, 3), (3, 2)):
        with pytest.raises(native.NativeError, match="match lengths"):
            testing.LookupIndex(*lengths)


def test_accuracy_is_learned_for_each_length_and_forgotten() -> None:
    accuracy = testing.LookupAccuracy(MIN, MAX)
    priors = [accuracy.probability(length) for length in range(MIN, MAX + 1)]
    assert priors == sorted(priors)
    for _ in range(100):
        accuracy.record(3, False)
    assert accuracy.probability(3) < 0.01
    assert accuracy.probability(2) == pytest.approx(priors[0])
    for _ in range(40):
        accuracy.record(3, True)
    assert accuracy.probability(3) > 0.8
    assert accuracy.probability(MAX + 4) == accuracy.probability(MAX)


@given(
    slope=st.floats(0.02, 1.0),
    plain_ms=st.floats(0.1, 1000.0),
    widths=st.lists(st.integers(1, 16), min_size=1, max_size=80),
)
def test_the_cost_of_a_node_is_learned(slope: float, plain_ms: float, widths: list[int]) -> None:
    prior = 0.15
    cost = testing.StepCost(prior)
    for width in widths:
        cost.record(width, plain_ms * (1 + slope * (width - 1)))
    assert min(slope, prior) * 0.999 <= cost.per_node <= max(slope, prior) * 1.001
    # How far the sizes are spread, the newest steps weighing most; the prior weighs as much as ten steps of two nodes.
    weights = 0.98 ** np.arange(len(widths))[::-1]
    if weights.sum() * np.cov(widths, aweights=weights, bias=True, ddof=0) > 600:
        assert cost.per_node == pytest.approx(slope, rel=0.35)


def test_the_cost_of_a_node_is_the_prior_until_widths_differ() -> None:
    cost = testing.StepCost(0.15)
    assert cost.per_node == 0.15
    for width in (1, 1, 1, 1):
        cost.record(width, 5.0)
    assert cost.per_node == pytest.approx(0.15)
    for width in (1, 16, 1, 16):
        cost.record(width, 20.0 if width == 1 else 1.0)
    assert 0 < cost.per_node < 0.15


def run(
    choices: list[list[int]],
    lookup: bool,
    *,
    seed: int,
    memory: int,
    vocab_size: int = 5,
    acceptance: float = 0.5,
    sampling: native.Sampling | None = None,
    max_tokens: int = 120,
    context_size: int = 512,
) -> tuple[native.Generation, testing.FakeSession]:
    session = testing.FakeSession(
        native.Tree(choices),
        vocab_size=vocab_size,
        acceptance=acceptance,
        seed=seed,
        lookup=lookup,
        memory=memory,
        context_size=context_size,
    )
    prompt = [token % vocab_size for token in PROMPT]
    generation = session.generate(prompt, max_tokens=max_tokens, sampling=sampling, ignore_eos=True)
    return generation, session


@given(
    choices=tree_choices(),
    seed=st.integers(0, 1000),
    memory=st.sampled_from([0, 1, 2]),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
)
@settings(max_examples=150)
def test_lookup_changes_no_token(
    choices: list[list[int]], seed: int, memory: int, temperature: float, acceptance: float
) -> None:
    sampling = native.Sampling(temperature=temperature, repeat_penalty=1.1, top_k=0, seed=seed)
    plain, _ = run([], False, seed=7, memory=memory, sampling=sampling)
    drafted, session = run(choices, True, seed=7, memory=memory, sampling=sampling, acceptance=acceptance)
    assert drafted.tokens == plain.tokens
    assert session.sequence(0) == session.cached_tokens
    assert session.cell_count == len(session.cached_tokens)
    stats = drafted.stats
    assert stats["tokens_per_step"] == pytest.approx(1 + sum(stats["acceptance_per_depth"]))
    assert stats["tree_nodes"] == max(map(len, drafted.parents))


def test_repeating_text_is_drafted_ever_further() -> None:
    drafted, _ = run([], True, seed=3, memory=1)
    widths = [len(parents) for parents in drafted.parents]
    assert widths[0] == 1
    assert max(widths) > 10
    assert drafted.stats["tokens_per_step"] > 4
    assert drafted.stats["steps"] == len(widths)


def test_matches_that_mislead_are_drafted_less_and_less() -> None:
    # The whole path decides: what followed a match says nothing about what follows now.
    drafted, _ = run([], True, seed=3, memory=0, vocab_size=16, max_tokens=1000, context_size=1100)
    nodes = [len(parents) - 1 for parents in drafted.parents]
    assert sum(nodes[:500]) > 0
    assert sum(nodes[-500:]) < 100


def test_a_lookup_token_that_a_head_drafts_too_is_one_node() -> None:
    # The heads are right throughout, and so is the lookup once the text repeats: chain_4 is a part of the lookup.
    chain = [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]
    drafted, _ = run(chain, True, seed=3, memory=1, acceptance=1.0)
    assert all(parents == list(range(-1, len(parents) - 1)) for parents in drafted.parents)
    assert max(map(len, drafted.parents)) > 8


def test_a_full_context_clips_the_lookups() -> None:
    plain, _ = run([], False, seed=3, memory=1, max_tokens=-1, context_size=60)
    drafted, session = run([[0], [1]], True, seed=3, memory=1, max_tokens=-1, context_size=60)
    assert plain.stop_reason == drafted.stop_reason == "context_full"
    assert drafted.tokens == plain.tokens
    assert len(session.cached_tokens) == 60


def test_a_second_turn_looks_up_the_first_one() -> None:
    session = testing.FakeSession(native.Tree([]), lookup=True, memory=1, vocab_size=32, seed=5)
    plain = testing.FakeSession(native.Tree([]), memory=1, vocab_size=32, seed=5)
    first = session.generate(PROMPT, max_tokens=12, ignore_eos=True)
    follow_up = [*PROMPT, *first.tokens, 9, PROMPT[-1]]
    for prompt, known in ((follow_up, True), (PROMPT[:2], False)):
        again = session.generate(prompt, max_tokens=12, ignore_eos=True)
        assert again.tokens == plain.generate(prompt, max_tokens=12, ignore_eos=True).tokens
        assert (len(again.parents[0]) > 1) == known  # the prompt's last token and the root stood in the first turn
    assert session.cached_tokens == session.sequence(0)
