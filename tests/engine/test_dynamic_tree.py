"""Trees grown per step: the algorithm against all sizes, what it learns, and losslessness on the fake model."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import _native_testing as testing
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT

from medusa_cli import native

ROOT = 9
Path = tuple[int, ...]
Table = dict[Path, list[tuple[int, float]]]
LINE = [(1, 1.0), (2, 1.1)]
"""Costs of trees in plain steps: 0.1 for each node."""


def cost(curve: list[tuple[int, float]] = LINE) -> testing.DraftCost:
    """Costs that hold throughout; the rate is one token per plain step."""
    return testing.DraftCost(curve, False)


@st.composite
def tables(draw: st.DrawFn, depth: int = 3, ranks: int = 2) -> Table:
    """What heads say below each path: descending probabilities that sum to less than 1."""
    table: Table = {}
    for length in range(depth):
        for ranked in itertools.product(range(ranks), repeat=length):
            first = draw(st.floats(0.01, 0.98))
            guesses = [(0, first), (1, (1 - first) * draw(st.floats(0.01, 0.9)))]
            path: Path = (ROOT, *ranked)
            table[path] = sorted(guesses, key=lambda guess: -guess[1])
    return table


def chances_of(
    table: Table, calibration: testing.HeadCalibration, slope: float, chain: Sequence[tuple[int, float]] = ()
) -> dict[Path, float]:
    """The chance that the whole of a path is right, for each that a tree may hold.

    Where the chain and the table name the same node, the likelier of the two speaks for it. What does not pay for
    itself (a chance of no more than `slope`) has no children but the chain's: levels are not asked for them.
    """
    node_worth = (1.0 + slope) - 1.0  # rounded as the engine does
    chances: dict[Path, float] = {(ROOT,): 1.0}
    chained: Path = (ROOT,)
    for depth in range(1, max(len(chain), max(map(len, table))) + 1):
        above = [path for path in table if len(path) == depth and chances.get(path, 0.0) > node_worth]
        if depth <= len(chain):
            token, q = chain[depth - 1]
            reached = chances[chained] * q
            chained = (*chained, token)
            chances[chained] = reached
        for path in above:
            for token, said in table[path]:
                longer: Path = (*path, token)
                p = chances[path] * calibration.probability(depth, said)
                chances[longer] = max(p, chances.get(longer, 0.0))
    del chances[(ROOT,)]
    return chances


def paths_of(parents: list[int], tokens: list[int]) -> list[Path]:
    paths: list[Path] = [(tokens[0],)]
    for node in range(1, len(parents)):
        paths.append((*paths[parents[node]], tokens[node]))
    return paths


@given(table=tables(), slope=st.floats(0.001, 0.6), room=st.integers(1, 20))
@settings(max_examples=200)
def test_the_tree_is_the_best_of_all_sizes(table: Table, slope: float, room: int) -> None:
    calibration = testing.HeadCalibration(3)
    growth = testing.DynamicTree(table, 3, ranks=2, width=4)
    parents, tokens, q, _ = growth.grow(ROOT, room, calibration, cost([(1, 1.0), (2, 1.0 + slope)]))
    assert math.prod(q) > 0
    check_best(paths_of(parents, tokens), chances_of(table, calibration, slope), slope, room)


def check_best(paths: list[Path], chances: dict[Path, float], slope: float, room: int) -> None:
    """No number of nodes brings more, and of that number these are the likeliest."""
    best = sorted(chances.values(), reverse=True)

    def worth(nodes: int) -> float:
        return 1 + sum(best[: nodes - 1]) - (1 + slope * (nodes - 1))

    sizes = [size for size in testing.DYNAMIC_SIZES if size <= min(room, len(best) + 1)]
    assert len(set(paths)) == len(paths)
    assert len(paths) in sizes
    assert worth(len(paths)) == pytest.approx(max(map(worth, sizes)), abs=1e-6)
    assert sum(chances[path] for path in paths[1:]) == pytest.approx(sum(best[: len(paths) - 1]), abs=1e-6)


THIN: Table = {
    (ROOT,): [(1, 0.495), (0, 0.01)],
    **{(ROOT, *ranked): [(0, 0.5), (1, 0.25)] for ranked in [(0,), (1,), (0, 1), (1, 0), (1, 1)]},
    (ROOT, 0, 0): [(0, 0.5), (1, 0.125)],
}
"""Some nodes do not pay for themselves, and their children would only fill up a step of the sizes."""


@given(
    table=tables(),
    slope=st.floats(0.001, 0.6),
    chain=st.lists(st.tuples(st.integers(0, 1), st.floats(0.01, 0.99)), min_size=1, max_size=6),
)
@settings(max_examples=200)
@example(table=THIN, slope=0.001953125, chain=[(1, 0.5)] + [(0, 0.5)] * 5)
def test_a_chain_is_weighed_beside_the_nodes_of_the_levels(
    table: Table, slope: float, chain: list[tuple[int, float]]
) -> None:
    calibration = testing.HeadCalibration(3)
    growth = testing.DynamicTree(table, 3, ranks=2, width=8)
    grown = growth.grow(ROOT, 30, calibration, cost([(1, 1.0), (2, 1.0 + slope)]), chain)
    check_best(paths_of(grown[0], grown[1]), chances_of(table, calibration, slope, chain), slope, 30)


def test_no_node_where_none_pays() -> None:
    table: Table = {(ROOT,): [(1, 0.2), (2, 0.1)]}
    parents, tokens, _, asked = testing.DynamicTree(table, 3).grow(
        ROOT, 64, testing.HeadCalibration(3), cost([(1, 1.0), (2, 2.0)])
    )
    assert (parents, tokens, asked) == ([-1], [ROOT], [1])


def test_only_levels_that_can_pay_are_asked_for() -> None:
    table = {(ROOT,): [(1, 0.9), (2, 0.05)], (ROOT, 1): [(3, 0.3), (4, 0.01)], (ROOT, 1, 3): [(5, 0.9)]}
    dear = cost([(1, 1.0), (2, 1.5)])
    parents, tokens, _, asked = testing.DynamicTree(table, 4, ranks=2).grow(ROOT, 64, testing.HeadCalibration(4), dear)
    assert asked == [1, 1]
    assert paths_of(parents, tokens) == [(ROOT,), (ROOT, 1)]


def test_a_level_that_takes_long_is_not_asked_for() -> None:
    table = {(ROOT,): [(1, 0.9)], (ROOT, 1): [(2, 0.9)]}
    calibration = testing.HeadCalibration(2)
    learned = testing.DraftCost(LINE, True)
    learned.record(1, 1, 1.0)
    _, _, _, asked = testing.DynamicTree(table, 2).grow(ROOT, 64, calibration, learned)
    assert asked == [1, 1]
    for _ in range(40):
        learned.record_level(2, 5.0)
    _, _, _, asked = testing.DynamicTree(table, 2).grow(ROOT, 64, calibration, learned)
    assert asked == [1]


def test_levels_are_weighed_once_a_step_was_timed() -> None:
    """Their milliseconds say nothing as long as those of a plain step are not known."""
    table = {(ROOT,): [(1, 0.9)], (ROOT, 1): [(2, 0.9)]}
    learned = testing.DraftCost(LINE, True)
    for _ in range(40):
        learned.record_level(2, 5.0)
    growth = testing.DynamicTree(table, 2)
    assert growth.grow(ROOT, 64, testing.HeadCalibration(2), learned)[3] == [1, 1]
    learned.record(1, 1, 100.0)
    assert growth.grow(ROOT, 64, testing.HeadCalibration(2), learned)[3] == [1, 1]
    dear = testing.DraftCost(LINE, True)
    for _ in range(40):
        dear.record_level(2, 5.0)
    dear.record(1, 1, 1.0)
    assert growth.grow(ROOT, 64, testing.HeadCalibration(2), dear)[3] == [1]


def test_a_level_gives_children_to_its_likeliest_nodes_alone() -> None:
    table: Table = {(ROOT,): [(token, 0.2 - 0.01 * token) for token in range(4)]}
    growth = testing.DynamicTree(table, 2, ranks=4, width=2)
    _, _, _, asked = growth.grow(ROOT, 64, testing.HeadCalibration(2), cost([(1, 1.0), (2, 1.001)]))
    assert asked == [1, 2]


def test_candidates_are_learned_whether_drafted_or_not() -> None:
    table = {(ROOT,): [(1, 0.3), (2, 0.02)], (ROOT, 1): [(3, 0.6)]}
    calibration = testing.HeadCalibration(2)
    growth = testing.DynamicTree(table, 2, ranks=2)
    before = [calibration.probability(1, 0.3), calibration.probability(1, 0.02), calibration.probability(2, 0.6)]
    for _ in range(50):
        growth.grow(ROOT, 1, calibration, cost())
        growth.learn([2, 7], calibration)
    assert calibration.probability(1, 0.02) > before[1]
    # The map ascends: where the less likely token always comes, the likelier one cannot be worth less.
    assert calibration.probability(1, 0.3) >= calibration.probability(1, 0.02)
    assert calibration.probability(2, 0.6) == before[2]
    growth.grow(ROOT, 1, calibration, cost())
    growth.learn([1, 3], calibration)
    assert calibration.probability(2, 0.6) > before[2]


@given(true=st.floats(0.02, 0.98), q=st.floats(0.001, 0.999))
@settings(max_examples=50)
def test_calibration_learns_how_often_a_token_comes(true: float, q: float) -> None:
    calibration = testing.HeadCalibration(1)
    for n in range(1500):
        calibration.record(1, q, math.floor((n + 1) * true) > math.floor(n * true))
    assert calibration.probability(1, q) == pytest.approx(true, abs=0.06)
    ascending = [calibration.probability(1, bin / 100) for bin in range(101)]
    assert ascending == sorted(ascending)
    assert 0 < ascending[0] <= ascending[-1] < 1
    assert calibration.probability(1, math.nan) == ascending[0]


def test_calibration_starts_from_a_table() -> None:
    learned = testing.HeadCalibration(2)
    for _ in range(300):
        learned.record(2, 0.5, False)
    again = testing.HeadCalibration(2, learned.table)
    assert again.table == [pytest.approx(row, abs=1e-6) for row in learned.table]
    with pytest.raises(native.NativeError, match="24 values"):
        testing.HeadCalibration(1, [[0.5]])


def test_costs_follow_the_steps() -> None:
    learned = testing.DraftCost([], True)
    for _ in range(60):
        for nodes, ms in ((1, 10.0), (4, 11.0), (8, 30.0)):
            for _ in range(3):
                learned.record(nodes, 1, ms)
    plain = learned.verify_ms(1, 2)
    assert learned.verify_ms(4, 2) / plain == pytest.approx(1.1, rel=0.1)
    assert learned.verify_ms(8, 1) / plain == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize("good_steps", [0, 5, 50])
def test_one_disturbed_step_does_not_make_drafts_too_dear(good_steps: int) -> None:
    learned = testing.DraftCost([], True)
    for _ in range(good_steps):
        learned.record(1, 1, 10.0)
        learned.record(8, 2, 15.0)
    learned.record(8, 2, 500.0)
    for _ in range(10):
        learned.record(1, 1, 10.0)
    assert learned.verify_ms(1, 1) == pytest.approx(10.0, rel=0.5)
    assert learned.verify_ms(8, 2) / learned.verify_ms(1, 1) < 2.7, "the price that no step has shown is 2.05"


def test_one_disturbed_level_is_not_too_dear_for_good() -> None:
    table = {(ROOT,): [(1, 0.9)], (ROOT, 1): [(2, 0.9)]}
    learned = testing.DraftCost(LINE, True)
    learned.record(1, 1, 1.0)
    learned.record_level(2, 500.0)
    for _ in range(5):
        growth = testing.DynamicTree(table, 2)
        assert growth.grow(ROOT, 64, testing.HeadCalibration(2), learned)[3] == [1, 1]


def test_a_new_graph_has_its_price() -> None:
    learned = testing.DraftCost(LINE, True)
    for _ in range(200):
        for leaves in (1, 2, 2, 2):
            learned.record(4, leaves, 10.0)
        for leaves in (1, 3, 3, 3):
            learned.record(4, leaves, 10.0)
    free = learned.verify_ms(4, 1) / learned.verify_ms(4, 3)
    for _ in range(200):
        for leaves in (1, 2, 2, 3, 3):
            learned.record(4, leaves, 10.0)
            learned.record(4, leaves, 8.0)
    assert free == pytest.approx(1.0, abs=0.02)
    assert learned.verify_ms(4, 1) / learned.verify_ms(4, 3) == pytest.approx(1.25, abs=0.08)


def test_the_rate_is_that_of_the_newest_steps_and_at_least_plain() -> None:
    learned = testing.DraftCost(LINE, True)
    learned.record(1, 1, 10.0)
    assert learned.rate == pytest.approx(0.1, rel=0.06)
    for _ in range(300):
        learned.record_step(12.0, 3)
    assert learned.rate == pytest.approx(0.25, rel=0.05)
    for _ in range(300):
        learned.record_step(40.0, 1)
    assert learned.rate == pytest.approx(0.1, rel=0.06)


def run(
    *,
    dynamic: bool,
    acceptance: float = 0.0,
    seed: int = 0,
    temperature: float = 0.0,
    lookup: bool = False,
    max_tokens: int = 60,
) -> tuple[native.Generation, testing.FakeSession]:
    session = testing.FakeSession(
        native.Tree([[0] * (n + 1) for n in range(4)] if dynamic else []),
        acceptance=acceptance,
        seed=seed,
        dynamic=dynamic,
        lookup=lookup,
        memory=3 if lookup else 0,
    )
    sampling = native.Sampling(temperature=temperature, top_k=12, seed=seed)
    generation = session.generate(PROMPT, max_tokens=max_tokens, sampling=sampling, ignore_eos=True)
    return generation, session


@given(
    acceptance=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 0.8]),
    lookup=st.booleans(),
)
@settings(max_examples=100)
def test_dynamic_trees_change_no_text(acceptance: float, seed: int, temperature: float, lookup: bool) -> None:
    plain = testing.FakeSession(native.Tree([]), seed=seed, memory=3 if lookup else 0).generate(
        PROMPT, max_tokens=60, sampling=native.Sampling(temperature=temperature, top_k=12, seed=seed), ignore_eos=True
    )
    grown, session = run(dynamic=True, acceptance=acceptance, seed=seed, temperature=temperature, lookup=lookup)
    assert grown.tokens == plain.tokens
    assert session.sequence(0) == session.cached_tokens
    assert session.cell_count == len(session.cached_tokens)


def test_trees_differ_from_step_to_step_and_pay_where_drafts_are_right() -> None:
    good, _ = run(dynamic=True, acceptance=1.0)
    assert good.stats["tokens_per_step"] > 2
    assert len({len(parents) for parents in good.parents}) > 1
    bad, _ = run(dynamic=True, acceptance=0.0, max_tokens=400)
    assert bad.stats["tokens_per_step"] == 1.0
    # What is never right is drafted less and less.
    drafted = [len(parents) - 1 for parents in bad.parents]
    assert statistics.mean(drafted[-100:]) < 0.5 * statistics.mean(drafted[:20])
