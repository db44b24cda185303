"""Tiers 1 and 2 of losslessness: the algorithm on a deterministic fake model, exactly (docs/design.md, Lossless).

The fake hashes the whole path behind each node and keeps its cache as cells with sequence sets, edited only by the same
bookkeeping that drives llama.cpp's cache. A wrong mask, position or commit changes the text or raises.
"""

from __future__ import annotations

import threading
from collections import Counter
from itertools import product

import _native_testing as testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medusa_cli import native

PROMPT = [3, 1, 4, 1, 5]


def tree_choices(max_depth: int = 4, max_rank: int = 4, max_nodes: int = 24) -> st.SearchStrategy[list[list[int]]]:
    """Random sets of paths closed under taking parents."""
    path = st.lists(st.integers(0, max_rank - 1), min_size=1, max_size=max_depth)

    def close(paths: list[list[int]]) -> list[list[int]]:
        closed = {tuple(p[:n]) for p in paths for n in range(1, len(p) + 1)}
        return [list(p) for p in sorted(closed)][:max_nodes]

    return st.lists(path, max_size=10).map(close).map(keep_rooted)


def keep_rooted(choices: list[list[int]]) -> list[list[int]]:
    kept: set[tuple[int, ...]] = set()
    for choice in sorted(choices, key=len):
        if len(choice) == 1 or tuple(choice[:-1]) in kept:
            kept.add(tuple(choice))
    return [list(c) for c in sorted(kept)]


def run(
    choices: list[list[int]],
    *,
    acceptance: float = 0.5,
    seed: int = 0,
    sampling: native.Sampling | None = None,
    accept: native.Accept | None = None,
    max_tokens: int = 40,
    vocab_size: int = 32,
    sharpness: float = 8.0,
    context_size: int = 512,
) -> tuple[native.Generation, testing.FakeSession]:
    session = testing.FakeSession(
        native.Tree(choices),
        acceptance=acceptance,
        seed=seed,
        vocab_size=vocab_size,
        sharpness=sharpness,
        context_size=context_size,
    )
    generation = session.generate(PROMPT, max_tokens=max_tokens, sampling=sampling, accept=accept, ignore_eos=True)
    return generation, session


@given(choices=tree_choices(), acceptance=st.sampled_from([0.0, 0.5, 1.0]), seed=st.integers(0, 1000))
@settings(max_examples=150)
def test_greedy_equals_plain_decoding(choices: list[list[int]], acceptance: float, seed: int) -> None:
    plain, _ = run([], seed=seed)
    drafted, session = run(choices, acceptance=acceptance, seed=seed)
    assert drafted.tokens == plain.tokens
    assert drafted.text == plain.text
    # The cache after the last commit is the cache of the accepted path, in every sequence.
    assert session.sequence(0) == session.cached_tokens
    assert session.cached_tokens[: len(PROMPT)] == PROMPT
    assert session.cell_count == len(session.cached_tokens)


@given(
    choices=tree_choices(),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    penalty=st.sampled_from([1.0, 1.3]),
    acceptance=st.sampled_from([0.0, 0.7, 1.0]),
)
@settings(max_examples=150)
def test_exact_equals_plain_sampling_with_the_same_seed(
    choices: list[list[int]], seed: int, temperature: float, penalty: float, acceptance: float
) -> None:
    sampling = native.Sampling(temperature=temperature, repeat_penalty=penalty, top_k=12, seed=seed)
    plain, _ = run([], seed=7, sampling=sampling)
    drafted, _ = run(choices, seed=7, sampling=sampling, acceptance=acceptance)
    assert drafted.tokens == plain.tokens


def test_forced_acceptance_fills_every_step_and_none_at_zero() -> None:
    chain = [[0], [0, 0], [0, 0, 0]]
    all_right, _ = run(chain, acceptance=1.0)
    assert all_right.stats["tokens_per_step"] == pytest.approx(4.0)
    assert all_right.stats["acceptance_per_depth"] == [1.0, 1.0, 1.0]
    none_right, _ = run(chain, acceptance=0.0)
    assert none_right.stats["tokens_per_step"] == pytest.approx(1.0)
    assert none_right.stats["acceptance_per_depth"] == [0.0, 0.0, 0.0]
    assert none_right.stats["steps"] == 39  # the first of 40 tokens comes from the prompt


@given(choices=tree_choices(), seed=st.integers(0, 100))
@settings(max_examples=100)
def test_tokens_per_step_is_one_plus_the_sum_of_acceptances(choices: list[list[int]], seed: int) -> None:
    generation, _ = run(choices, acceptance=0.7, seed=seed)
    stats = generation.stats
    assert stats["tokens_per_step"] == pytest.approx(1 + sum(stats["acceptance_per_depth"]))


@given(choices=tree_choices(), seed=st.integers(0, 100), data=st.data())
@settings(max_examples=100)
def test_output_does_not_depend_on_the_order_of_siblings(
    choices: list[list[int]], seed: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(choices))
    ordered, _ = run(choices, acceptance=0.6, seed=seed)
    other, _ = run(shuffled, acceptance=0.6, seed=seed)
    assert other.tokens == ordered.tokens
    assert other.stats["tokens_per_step"] == ordered.stats["tokens_per_step"]


def longest_greedy_match(session: testing.FakeSession, choices: list[list[int]], context: list[int]) -> int:
    """Reference for acceptance 1: how deep the tree follows the argmax path (ranks of the fake are its true order)."""
    depth = 0
    node: list[int] = []
    while [*node, 0] in choices:  # rank 0 is the argmax
        node = [*node, 0]
        depth += 1
    return depth


@given(choices=tree_choices(), seed=st.integers(0, 100))
@settings(max_examples=60)
def test_accepted_path_is_the_longest_match(choices: list[list[int]], seed: int) -> None:
    generation, session = run(choices, acceptance=1.0, seed=seed)
    depth = longest_greedy_match(session, choices, PROMPT)
    assert generation.stats["tokens_per_step"] == pytest.approx(1 + depth)


@pytest.mark.parametrize("kind", ["exact", "typical"])
def test_distribution_of_three_grams(kind: str) -> None:
    """Chi-square of joint 3-grams: exact drafting against the model's own distribution, tiny vocabulary.

    Typical acceptance is lossy by design and must fail the same test, which shows that the test has power.
    """
    vocab, runs, prompt = 4, 4000, [3, 1, 2]
    session = testing.FakeSession(
        native.Tree([[0], [1], [0, 0], [0, 1], [1, 0]]), vocab_size=vocab, acceptance=1.0, seed=11, sharpness=2.0
    )
    accept = native.Accept(kind)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        sampling = native.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
        tokens = session.generate(prompt, max_tokens=3, sampling=sampling, accept=accept, ignore_eos=True).tokens
        counts[tuple(tokens)] += 1
    chi_square = 0.0
    for gram in product(range(vocab), repeat=3):
        probability, context = 1.0, list(prompt)
        for token in gram:
            sampling = native.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
            probability *= dict(testing.distribution(session.logits_after(context), sampling))[token]
            context.append(token)
        expected = runs * probability
        chi_square += (counts[gram] - expected) ** 2 / expected
    # 63 degrees of freedom: mean 63, 99.9th percentile 103.4.
    if kind == "exact":
        assert chi_square < 103.4
    else:
        assert chi_square > 103.4


def test_typical_at_temperature_zero_is_greedy() -> None:
    plain, _ = run([])
    typical, _ = run([[0], [1], [0, 0]], accept=native.Accept("typical"))
    assert typical.tokens == plain.tokens


def test_typical_accepts_exactly_what_passes_the_threshold() -> None:
    """With epsilon and delta at their extremes nearly all, or only the most probable, drafts pass."""
    sampling = native.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=1)
    loose, _ = run([[0], [0, 0]], acceptance=1.0, sampling=sampling, accept=native.Accept("typical", epsilon=1e-9))
    assert loose.stats["tokens_per_step"] == pytest.approx(3.0)
    rejected, _ = run(
        [[9], [8]], acceptance=1.0, sampling=sampling, accept=native.Accept("typical", epsilon=1.0, delta=1.0)
    )
    assert rejected.stats["tokens_per_step"] < 1.2


def test_a_step_that_accepts_nothing_costs_one_scan_of_the_cache() -> None:
    wide = [[rank] for rank in range(9)]
    session = testing.FakeSession(native.Tree(wide), acceptance=0.0)
    session.generate(PROMPT, max_tokens=10, ignore_eos=True)
    assert session.last is not None
    before, steps = session.cache_calls, session.last.stats["steps"]
    # 8 copies bring the leaves in step once; then each step removes the rejected nodes in a single call.
    assert before <= 8 + 1 + steps


def test_context_full_keeps_all_text_and_clips_the_tree() -> None:
    plain, _ = run([], max_tokens=-1, context_size=40)
    drafted, session = run([[0], [1], [0, 0], [0, 1], [0, 0, 0]], max_tokens=-1, context_size=40, acceptance=0.9)
    assert plain.stop_reason == drafted.stop_reason == "context_full"
    assert len(session.cached_tokens) == 40
    # One token more than fits: the last one was drawn from the last free cell's logits.
    assert len(PROMPT) + len(drafted.tokens) == 41
    assert drafted.tokens == plain.tokens


def test_prefix_is_reused_and_changes_nothing() -> None:
    session = testing.FakeSession(native.Tree([[0], [0, 0], [1]]), acceptance=0.7)
    first = session.generate(PROMPT, max_tokens=20, ignore_eos=True)
    again = session.generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert again.tokens == first.tokens
    assert again.reused_tokens == len(PROMPT) - 1
    follow_up = [*PROMPT, *first.tokens, 9, 8]
    warm = session.generate(follow_up, max_tokens=20, ignore_eos=True)
    fresh = testing.FakeSession(native.Tree([[0], [0, 0], [1]]), acceptance=0.7)
    cold = fresh.generate(follow_up, max_tokens=20, ignore_eos=True)
    assert warm.tokens == cold.tokens
    assert warm.reused_tokens >= len(PROMPT) + len(first.tokens) - 1
    assert cold.reused_tokens == 0


def test_stop_strings_end_inside_an_accepted_path() -> None:
    plain, _ = run([], max_tokens=60)
    stop = plain.text[20:23]
    session = testing.FakeSession(native.Tree([[0], [0, 0], [0, 0, 0]]), acceptance=1.0)
    streamed: list[str] = []
    stopped = session.generate(
        PROMPT, max_tokens=60, stop=[stop], ignore_eos=True, on_step=lambda p: streamed.extend(x.text for x in p)
    )
    assert stopped.stop_reason == "stop"
    assert stopped.text == plain.text[: plain.text.index(stop)]
    assert "".join(streamed) == stopped.text


def test_held_back_text_comes_out_at_the_end() -> None:
    plain, _ = run([], max_tokens=10)
    streamed: list[str] = []
    session = testing.FakeSession(native.Tree([]))
    held = session.generate(
        PROMPT,
        max_tokens=10,
        stop=[plain.text[-2:] + "\x01"],
        ignore_eos=True,
        on_step=lambda p: streamed.extend(x.text for x in p),
    )
    assert held.text == "".join(streamed) == plain.text


def test_end_of_generation_token_is_not_emitted() -> None:
    ignored, _ = run([], max_tokens=200, vocab_size=8)
    session = testing.FakeSession(native.Tree([[0], [0, 0]]), vocab_size=8, acceptance=1.0)
    ended = session.generate(PROMPT, max_tokens=200)
    assert ended.stop_reason == "eos"
    assert ended.tokens == ignored.tokens[: ignored.tokens.index(0)]


def test_an_exception_in_the_callback_ends_within_one_step_and_keeps_the_text() -> None:
    session = testing.FakeSession(native.Tree([[0]]), acceptance=0.0)
    seen: list[int] = []

    def fail_at_five(pieces: list[native.Piece]) -> None:
        seen.extend(piece.token for piece in pieces)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.generate(PROMPT, max_tokens=50, ignore_eos=True, on_step=fail_at_five)
    assert session.last is not None
    assert session.last.stop_reason == "cancelled"
    assert session.last.tokens == seen
    assert session.cached_tokens == session.sequence(0)
    plain, _ = run([], max_tokens=50)
    assert session.generate(PROMPT, max_tokens=50, ignore_eos=True).tokens == plain.tokens


def test_a_cancel_that_comes_before_an_answer_ends_it_and_no_other() -> None:
    session = testing.FakeSession(native.Tree([[0]]), acceptance=0.5)
    cancellation = native.Cancellation()
    cancellation.cancel()
    assert cancellation.requested
    answer = session.generate(PROMPT, max_tokens=50, ignore_eos=True, cancellation=cancellation)
    assert answer.stop_reason == "cancelled"
    assert len(answer.tokens) <= 1  # what reading the prompt gives
    other = session.generate(PROMPT, max_tokens=50, ignore_eos=True, cancellation=native.Cancellation())
    assert (other.stop_reason, len(other.tokens)) == ("length", 50)
    cancellation.cancel()
    assert session.generate(PROMPT, max_tokens=50, ignore_eos=True).stop_reason == "length"


def test_a_cancel_from_another_thread_ends_an_answer_within_a_step() -> None:
    session, cancellation = testing.FakeSession(native.Tree([[0]]), acceptance=0.5), native.Cancellation()
    seen: list[int] = []

    def on_step(pieces: list[native.Piece]) -> None:
        seen.extend(piece.token for piece in pieces)
        if len(seen) >= 5 and not cancellation.requested:
            canceller = threading.Thread(target=cancellation.cancel)
            canceller.start()
            canceller.join()

    answer = session.generate(PROMPT, max_tokens=50, ignore_eos=True, cancellation=cancellation, on_step=on_step)
    assert answer.stop_reason == "cancelled"
    assert answer.tokens == seen
    assert len(seen) in (5, 6)


def test_nobody_looks_at_a_session_while_it_generates() -> None:
    session = testing.FakeSession(native.Tree([[0]]), acceptance=0.5)
    session.generate(PROMPT, max_tokens=5, ignore_eos=True)
    looks = [lambda: session.last, lambda: session.cached_tokens, lambda: session.threads, session.reset]
    refused = []

    def on_step(pieces: list[native.Piece]) -> None:
        for look in looks:
            with pytest.raises(native.NativeError, match="is generating"):
                look()
            refused.append(look)

    session.generate(PROMPT, max_tokens=5, ignore_eos=True, on_step=on_step)
    assert len(refused) >= len(looks)
    for look in looks:
        look()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "prompt is empty"), ([1] * 512, "context holds 512"), ([99], "not in the vocabulary")],
)
def test_bad_prompts_are_one_clear_line(prompt: list[int], message: str) -> None:
    session = testing.FakeSession(native.Tree([]))
    with pytest.raises(native.NativeError, match=message) as caught:
        session.generate(prompt)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("rate", "tokens_per_step"), [(0.0, 1.0), (1.0, 4.0)])
@pytest.mark.parametrize("acceptance", [0.0, 1.0])
def test_synthetic_acceptance_is_the_rate_s_alone(rate: float, tokens_per_step: float, acceptance: float) -> None:
    accept = native.Accept("synthetic", synthetic_rate=rate)
    choices = [[0], [1], [0, 0], [1, 0], [0, 0, 0]]
    generation, session = run(choices, acceptance=acceptance, accept=accept, max_tokens=41)
    assert generation.stats["tokens_per_step"] == tokens_per_step
    assert generation.stats["accept"] == "synthetic"
    assert session.sequence(0) == session.cached_tokens


def test_synthetic_acceptance_accepts_each_depth_at_the_rate() -> None:
    accept = native.Accept("synthetic", synthetic_rate=0.5)
    generation, _ = run([[0], [0, 0]], accept=accept, max_tokens=400)
    first, second = generation.stats["acceptance_per_depth"]
    assert first == pytest.approx(0.5, abs=0.12)
    assert second == pytest.approx(0.25, abs=0.12)
    with pytest.raises(native.NativeError, match="synthetic_rate"):
        native.Accept("synthetic", synthetic_rate=1.5)
