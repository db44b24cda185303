"""Rejection sampling keeps the model's distribution: by enumeration below one node, by chi-square over whole steps."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter, defaultdict
from typing import Any

import _native_testing as testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import run, tree_choices

from medusa_cli import native

VOCAB = 5
Distribution = list[tuple[int, float]]
ALL = native.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@st.composite
def distributions(draw: st.DrawFn, least: int = 1) -> Distribution:
    """In token order."""
    tokens = sorted(draw(st.sets(st.integers(0, VOCAB - 1), min_size=least)))
    weights = [draw(st.integers(1, 20)) for _ in tokens]
    return [(token, weight / sum(weights)) for token, weight in zip(tokens, weights, strict=True)]


def ordered_draws(proposal: Distribution, count: int) -> list[tuple[float, tuple[int, ...]]]:
    """All draws without replacement, with their probabilities."""
    out = []
    for order in itertools.permutations(proposal, min(count, len(proposal))):
        chance, left = 1.0, 1.0
        for _, q in order:
            chance *= q / left
            left -= q
        out.append((chance, tuple(token for token, _ in order)))
    return out


def output(children: list[int], drawn: list[bool], proposal: Distribution, p: Distribution) -> dict[int, float]:
    """The distribution of the token after a node with these children, by the engine's own chances."""
    tested, residual = testing.rejection_chances(children, drawn, proposal, p)
    out: dict[int, float] = defaultdict(float)
    reached = 1.0
    for token, chance in tested:
        out[token] += reached * chance
        reached *= 1 - chance
    for token, share in residual:
        out[token] += reached * share
    return out


@given(p=distributions(), proposal=distributions(), count=st.integers(0, VOCAB), data=st.data())
@settings(max_examples=300)
def test_any_children_leave_the_distribution_as_it_is(
    p: Distribution, proposal: Distribution, count: int, data: st.DataObject
) -> None:
    """Over all draws, with point masses before them; one that a draw repeats is one child, tried as a point mass."""
    points = data.draw(st.lists(st.integers(0, VOCAB - 1), unique=True, max_size=3))
    total: dict[int, float] = defaultdict(float)
    for chance, draws in ordered_draws(proposal, count):
        children = [*points, *(token for token in draws if token not in points)]
        drawn = [token not in points for token in children]
        for token, share in output(children, drawn, proposal, p).items():
            total[token] += chance * share
    for token in range(VOCAB):
        assert total[token] == pytest.approx(dict(p).get(token, 0.0), abs=2e-6)


def test_the_enumeration_finds_rules_that_are_biased() -> None:
    """Draws tried as if they had been fixed keep it, as `exact` does; left out by their value, or drawn anew, not."""
    p, proposal = [(0, 0.5), (1, 0.3), (2, 0.2)], [(0, 0.2), (1, 0.2), (2, 0.6)]

    def error(keep: set[int], after_rejection: Distribution | None) -> float:
        total: dict[int, float] = defaultdict(float)
        for chance, draws in ordered_draws(proposal, 1):
            children = [token for token in draws if token in keep]
            tested, residual = testing.rejection_chances(children, [True] * len(children), proposal, p)
            passed = sum(share for _, share in tested)
            for token, share in [*tested, *((t, (1 - passed) * s) for t, s in after_rejection or residual)]:
                total[token] += chance * share
        return max(abs(total[token] - share) for token, share in p)

    assert error({0, 1, 2}, None) < 1e-6
    assert error({0, 1}, None) > 0.05  # the child is dropped where it turned out to be 2
    assert error({0, 1, 2}, p) > 0.05  # from p instead of the residual


@given(
    weights=st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12),
    temperature=st.floats(0.1, 3.0),
    top_k=st.integers(0, 12),
    top_p=st.one_of(st.just(0.0), st.floats(0.05, 1.0)),
    min_p=st.floats(0.0, 0.5),
)
def test_proposals_are_what_the_sampler_chain_makes_of_the_drafter(
    weights: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """The same as libllama's chain, which cuts in the same order; near its thresholds one token may differ."""
    sampling = native.Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    q = sorted((weight / sum(weights) for weight in weights), reverse=True)
    found = testing.proposal(list(range(len(q))), q, sampling)
    assert [token for token, _ in found] == list(range(len(found)))
    assert sum(share for _, share in found) == pytest.approx(1, abs=1e-5)
    chain = testing.distribution([math.log(share) for share in q], sampling)
    assert abs(len(found) - len(chain)) <= 1
    if len(found) == len(chain):
        assert [share for _, share in found] == pytest.approx([share for _, share in chain], abs=1e-4)


def test_draws_follow_the_law_of_draws_without_replacement_and_repeat_with_the_seed() -> None:
    proposal = [(3, 0.5), (1, 0.3), (4, 0.15), (0, 0.05)]
    runs = 6000
    counts = Counter(tuple(testing.draws(proposal, 2, 1, step)) for step in range(runs))
    expected = {draws: chance for chance, draws in ordered_draws(proposal, 2)}
    assert p_value(counts, expected, runs) > 1e-4
    assert testing.draws(proposal, 9, 7, 7) == testing.draws(proposal, 9, 7, 7)
    assert sorted(testing.draws(proposal, 9, 7, 7)) == [0, 1, 3, 4]
    assert len({tuple(testing.draws(proposal, 4, seed, 0)) for seed in range(40)}) > 8


# --- whole steps -----------------------------------------------------------------------------------


def p_value(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float], runs: int) -> float:
    """Of the chi-square test, cells below 5 expected put together; Wilson and Hilferty's approximation."""
    cells: list[tuple[float, float]] = []
    rest = [0.0, 0.0]
    assert sum(counts[gram] for gram in expected) == sum(counts.values()), "a gram that cannot be"
    for gram, chance in expected.items():
        if runs * chance >= 5:
            cells.append((counts[gram], runs * chance))
        else:
            rest = [rest[0] + counts[gram], rest[1] + runs * chance]
    if rest[1] >= 5:
        cells.append((rest[0], rest[1]))
    freedom = len(cells) - 1
    if freedom < 1:
        return 1.0
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    spread = 2 / (9 * freedom)
    z = ((chi_square / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2))


def p_value_of_three_grams(
    session: testing.FakeSession, kind: str, runs: int, *, prompt: list[int], **chain: Any
) -> float:
    """Of the first three tokens of `runs` answers, against the model's own distribution."""
    accept = native.Accept(kind)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(runs):
        sampling = native.Sampling(seed=seed, **chain)
        answer = session.generate(prompt, max_tokens=3, sampling=sampling, accept=accept, ignore_eos=True)
        counts[tuple(answer.tokens)] += 1
    expected: dict[tuple[int, ...], float] = {(): 1.0}
    sampling = native.Sampling(**chain)
    for _ in range(3):
        longer = {}
        for gram, chance in expected.items():
            logits = session.logits_after([*prompt, *gram])
            for token, share in testing.distribution(logits, sampling, [*prompt, *gram]):
                continued = (*gram, token)
                longer[continued] = chance * share
        expected = longer
    return p_value(counts, expected, runs)


CHAINS: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {"temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 1.5, "top_k": 3, "top_p": 1.0, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 4, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.6, "repeat_last_n": 3},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logit_bias": {1: 1.5, 2: -2.0, 4: -math.inf}},
]


@given(
    choices=tree_choices(max_depth=3, max_rank=4, max_nodes=12),
    chain=st.sampled_from(CHAINS),
    seed=st.integers(0, 1000),
    acceptance=st.sampled_from([0.0, 0.6, 1.0]),
)
@settings(max_examples=40)
def test_fixed_trees_keep_the_distribution(
    choices: list[list[int]], chain: dict[str, Any], seed: int, acceptance: float
) -> None:
    session = testing.FakeSession(
        native.Tree(choices), vocab_size=VOCAB, acceptance=acceptance, seed=seed, sharpness=3.0
    )
    assert p_value_of_three_grams(session, "rejection", 2000, prompt=[3, 1, 2], **chain) > 1e-6


@given(
    lookup=st.booleans(),
    recycling=st.booleans(),
    dynamic=st.booleans(),
    chain=st.sampled_from(CHAINS),
    seed=st.integers(0, 1000),
    acceptance=st.sampled_from([0.3, 1.0]),
)
@settings(max_examples=40)
def test_grown_trees_lookup_and_recycling_keep_the_distribution(
    lookup: bool, recycling: bool, dynamic: bool, chain: dict[str, Any], seed: int, acceptance: float
) -> None:
    """A model that looks two tokens back repeats itself, so that lookup and recycling find something."""
    session = testing.FakeSession(
        native.Tree([[0], [1], [0, 0]]) if not recycling or dynamic else native.Tree([]),
        vocab_size=VOCAB,
        acceptance=acceptance,
        seed=seed,
        sharpness=3.0,
        lookup=lookup,
        recycling=recycling,
        dynamic=dynamic,
        memory=2,
    )
    prompt = [3, 1, 2, 0, 3, 1, 2, 4, 3, 1]
    assert p_value_of_three_grams(session, "rejection", 2000, prompt=prompt, **chain) > 1e-6


SAMPLES = int(os.environ.get("MEDUSA_SAMPLES", "4000"))


@pytest.mark.parametrize("chain", range(len(CHAINS)))
@pytest.mark.parametrize(
    "drafting", [{}, {"dynamic": True}, {"lookup": True}, {"dynamic": True, "lookup": True, "recycling": True}], ids=str
)
def test_the_distribution_of_many_samples(drafting: dict[str, Any], chain: int) -> None:
    """MEDUSA_SAMPLES: how many; with -s, pytest shows the p values."""
    tree = native.Tree([[0], [1], [2], [0, 0], [0, 1], [1, 0]])
    session = testing.FakeSession(
        tree, vocab_size=VOCAB, acceptance=0.6, seed=11 + chain, sharpness=3.0, memory=2, **drafting
    )
    prompt = [3, 1, 2, 0, 3, 1, 2, 4, 3, 1]
    p = p_value_of_three_grams(session, "rejection", SAMPLES, prompt=prompt, **CHAINS[chain])
    accepted = session.last.stats["acceptance_per_depth"] if session.last else []
    print(f"\nchain {chain}, {drafting or 'fixed tree'}: p = {p:.3f}")
    assert p > 1e-4
    assert accepted


def test_paths_that_are_tested_apart_do_not_keep_the_distribution() -> None:
    """The nucleus rule of the Medusa repository takes the longest of them: the same test fails it, whole nucleus."""
    tree = native.Tree([[0], [1], [2], [0, 0], [0, 1], [1, 0]])
    found = {}
    for kind in ("exact", "rejection", "nucleus", "typical"):
        session = testing.FakeSession(tree, vocab_size=VOCAB, acceptance=1.0, seed=11, sharpness=2.0)
        found[kind] = p_value_of_three_grams(session, kind, 6000, prompt=[3, 1, 2], **CHAINS[0])
    assert min(found["exact"], found["rejection"]) > 1e-3
    assert max(found["nucleus"], found["typical"]) < 1e-12


@given(choices=tree_choices(), seed=st.integers(0, 500))
@settings(max_examples=60)
def test_a_seed_repeats_the_text_and_the_steps(choices: list[list[int]], seed: int) -> None:
    sampling = native.Sampling(temperature=0.9, seed=seed)
    first, _ = run(choices, sampling=sampling, accept=native.Accept("rejection"))
    again, session = run(choices, sampling=sampling, accept=native.Accept("rejection"))
    assert (first.tokens, first.paths) == (again.tokens, again.paths)
    assert first.stats["accept"] == "rejection"
    assert session.sequence(0) == session.cached_tokens


def test_at_temperature_zero_it_is_greedy() -> None:
    plain, _ = run([])
    drafted, _ = run([[0], [1], [0, 0]], accept=native.Accept("rejection"))
    assert drafted.tokens == plain.tokens


def test_draws_of_a_good_drafter_are_accepted_more_often_than_its_likeliest_tokens() -> None:
    """Where q is p and flat: the likeliest of n tokens comes with 1 / n, a draw is always accepted."""
    p = [(token, 1 / VOCAB) for token in range(VOCAB)]
    tested, _ = testing.rejection_chances([2], [True], p, p)
    assert tested == [(2, 1.0)]
    assert testing.rejection_chances([2], [False], [], p)[0] == [(2, pytest.approx(1 / VOCAB))]
