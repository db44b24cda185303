"""Choosing a tree with made-up costs, clocks, heads and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medusa_cli import native
from medusa_cli.decoding import devices, tree_search
from medusa_cli.decoding.devices import DeviceKind, Tile
from medusa_cli.decoding.trees import TreeMethod
from medusa_cli.tuning import choose, costs, decode, texts
from medusa_cli.tuning.choose import Calibration, Candidate, CostCurve

FOREVER = float("inf")
SIZES = devices.RULES[DeviceKind.cpu].sizes


def ranks(seed: int, right: float = 0.5, positions: int = 400, heads: int = 3) -> np.ndarray:
    """Positions whose token is at rank 0 with probability `right`, at rank 1 with half of the rest, else nowhere."""
    drawn = np.random.default_rng(seed).random((positions, heads))
    return np.where(drawn < right, 0, np.where(drawn < right + (1 - right) / 2, 1, tree_search.RANKS))


def fixed_trees(table: np.ndarray, held_out: list[np.ndarray]) -> list[Candidate]:
    """The likeliest trees by accuracies."""
    return choose.fixed_trees(choose.trees_by_size(TreeMethod.accuracies, table, [], SIZES), len(table), held_out)


def candidates_for(cost: Any, positions: Sequence[int] = (512,)) -> list[Candidate]:
    """All trees, where a pass over n tokens at p takes cost(n, p) ms."""
    table = tree_search.accuracy_table([ranks(0)])
    found = fixed_trees(table, [ranks(1)])
    curves = [CostCurve(p, {n: cost(n, p) for n in SIZES}) for p in positions]
    return choose.priced(found, curves, Calibration())


def predicted_verdict(candidates: Sequence[Candidate]) -> tuple[Candidate | None, str]:
    """The verdict when real decoding is as fast as predicted."""
    tried = choose.shortlist(candidates)
    found = choose.verdict(candidates, {candidate.name: candidate.speedup for candidate in tried})
    assert not found.dynamic
    return found.candidate, found.reason


def test_costs_that_grow_with_every_token_choose_plain_decoding() -> None:
    winner, reason = predicted_verdict(candidates_for(lambda n, p: 10.0 * n))
    assert winner is None
    assert reason.startswith("drafting does not pay on this machine: a chain of 2 nodes brings 1.")


def test_costs_that_do_not_grow_choose_the_largest_tree() -> None:
    candidates = candidates_for(lambda n, p: 10.0)
    winner, reason = predicted_verdict(candidates)
    # Three heads with two ranks that are ever right fill 2 + 4 + 8 nodes.
    assert winner is not None
    assert winner.nodes == max(candidate.nodes for candidate in candidates) == 15
    assert reason.startswith("drafting pays: a tree of 15 nodes brings ")


def test_costs_between_choose_a_tree_between() -> None:
    winner, _ = predicted_verdict(candidates_for(lambda n, p: 10.0 if n <= 4 else 10.0 * n / 4))
    assert winner is not None
    assert winner.nodes == 4
    assert winner.tokens_per_step == pytest.approx(winner.speedup)


def test_every_position_counts() -> None:
    def cost(n: int, position: int) -> float:
        return 10.0 + 0.6 * (position // 5000) * (n - 1)

    def best(*positions: int) -> int:
        return max(candidates_for(cost, positions), key=lambda candidate: candidate.speedup).nodes

    assert 1 < best(5000) < best(100, 5000) < best(100) == 15


def test_shortlist_is_the_best_and_its_neighbours() -> None:
    def made(nodes: int, tokens: float, chain: bool = False) -> Candidate:
        return Candidate([(0,) * (n + 1) if chain else (n + 1,) for n in range(nodes - 1)], tokens, [1.0])

    sizes = {2: 1.2, 3: 1.5, 4: 1.4, 8: 1.1}
    candidates = [made(nodes, tokens) for nodes, tokens in sizes.items()]
    assert [found.nodes for found in choose.shortlist(candidates)] == [2, 3, 4]
    assert [found.nodes for found in choose.shortlist([*candidates, made(16, 9.0)])] == [8, 16]
    assert [found.nodes for found in choose.shortlist([made(2, 9.0), *candidates[1:]])] == [2, 3]
    chains = [made(3, 1.3, chain=True), made(4, 1.35, chain=True)]
    names = [found.name for found in choose.shortlist([*candidates, *chains])]
    assert names == ["tree of 2", "tree of 3", "tree of 4", "chain of 4"]
    assert choose.shortlist([]) == []


def test_verdict_follows_the_measurement_not_the_prediction() -> None:
    candidates = candidates_for(lambda n, p: 10.0)
    names = [candidate.name for candidate in choose.shortlist(candidates)]
    found = choose.verdict(candidates, dict(zip(names, (1.31, 1.30), strict=False)))
    assert found.candidate is not None
    assert (found.candidate.name, found.dynamic) == (names[0], False)
    assert "real decoding ran at 1.31 of plain speed" in found.reason
    assert choose.verdict(candidates, dict.fromkeys(names, 0.9)).candidate is None
    assert choose.verdict([], {}).reason == "drafting does not pay: the heads are never right"
    dynamic = choose.verdict(candidates, {names[0]: 1.1, "dynamic": 1.2})
    assert dynamic.candidate is not None
    assert (dynamic.candidate.name, dynamic.dynamic) == (names[0], True)
    only = choose.verdict(candidates, {names[0]: 0.9, "dynamic": 1.2})
    assert (only.candidate, only.dynamic) == (None, True)
    assert "and at 1.20 with a tree grown in each step" in dynamic.reason
    assert not choose.verdict(candidates, {names[0]: 0.9, "dynamic": 0.95}).dynamic
    assert not only.recycling
    both = {names[0]: 1.1, "dynamic": 1.2, "dynamic+lookup": 1.3, "dynamic+lookup+recycling": 1.35}
    recycled = choose.verdict(candidates, both)
    assert recycled.dynamic
    assert recycled.recycling
    assert recycled.reason.endswith("; together with lookup, recycling raises that from 1.30 to 1.35")
    assert not choose.verdict(candidates, {**both, "dynamic+lookup+recycling": 1.3}).recycling
    assert not choose.verdict(candidates, {**both, names[0]: 1.25}).recycling


def test_relative_costs_are_means_over_the_positions() -> None:
    curves = [CostCurve(1, {1: 2.0, 2: 4.0, 3: 9.0}), CostCurve(2, {1: 4.0, 2: 32.0})]
    assert choose.relative_costs(curves) == [(1, 1.0), (2, pytest.approx(4.0))]
    assert choose.relative_costs([]) == []


def test_between_the_sizes_that_metal_is_measured_at_its_tile_decides() -> None:
    tile = Tile(9, 32)
    metal = CostCurve(1, {1: 2.0, 2: 3.0, 4: 6.0, 32: 8.0})
    # Up to 8 columns as from 2 to 4, from 9 on one tile.
    filled = [(1, 1.0), (2, 1.5), (4, 3.0), (8, 6.0), (9, 4.0), (32, 4.0)]
    assert choose.relative_costs([metal], tile) == [(n, pytest.approx(cost)) for n, cost in filled]
    assert choose.relative_costs([metal]) == [(n, pytest.approx(c)) for n, c in filled if n not in (8, 9)]
    assert choose.relative_costs([CostCurve(1, {1: 2.0, 2: 4.0})], tile) == [(1, 1.0), (2, pytest.approx(2.0))]


def test_trees_are_scored_on_text_that_did_not_make_them() -> None:
    table = tree_search.accuracy_table([ranks(0, right=0.9)])
    good, bad = (fixed_trees(table, [ranks(1, right=right)])[0].tokens_per_step for right in (0.9, 0.2))
    assert good == pytest.approx(1.9, abs=0.08)
    assert bad == pytest.approx(1.2, abs=0.08)
    made, held = choose.halves(
        [np.zeros((1, 1), int), np.zeros((0, 1), int), np.ones((1, 1), int), np.zeros((2, 1), int)]
    )
    assert [len(text) for text in made] == [1, 2]
    assert [text[0, 0] for text in held] == [1]


def test_priced_leaves_out_sizes_that_were_not_measured() -> None:
    trees = fixed_trees(tree_search.accuracy_table([ranks(0)]), [ranks(1)])
    curves = [CostCurve(1, {1: 2.0, 2: 3.0, 3: 4.0}), CostCurve(2, {1: 4.0, 2: 4.0})]
    calibration = Calibration(plain_factor=2.0, plain_rest_ms=1.0, draft_factor=3.0, draft_rest_ms=1.0)
    (found,) = choose.priced(trees, curves, calibration)
    assert found.nodes == 2
    assert found.costs == [(3 * 3 + 1) / (2 * 2 + 1), (3 * 4 + 1) / (2 * 4 + 1)]


class FakeTimer:
    """A pass over n tokens takes cost(n); the first of a call, and every pass of call number `slow`, ten times that."""

    def __init__(self, cost: Any, slow: int = -1) -> None:
        self.cost, self.slow = cost, slow
        self.asked: list[int] = []

    def time(self, width: int, *, passes: int) -> list[float]:
        factor = 10 if len(self.asked) == self.slow else 1
        self.asked.append(width)
        once = self.cost(width)
        return [10 * once, *[factor * once] * (passes - 1)]


def test_cost_curve_takes_medians_of_interleaved_rounds() -> None:
    timer = FakeTimer(lambda n: 5.0 + n, slow=5)
    curve = costs.cost_curve(timer, 512, (1, 2, 4), 9.0, FOREVER)
    assert timer.asked == [1, 2, 4] * costs.ROUNDS
    assert curve.verify_ms == {1: 6.0, 2: 7.0, 4: 9.0}


def test_cost_curve_stops_widening_where_no_tree_can_pay() -> None:
    timer = FakeTimer(lambda n: 1.0 * n)
    curve = costs.cost_curve(timer, 512, SIZES, 3.0, -FOREVER)
    assert list(curve.verify_ms) == [1, 2, 3, 4]
    assert timer.asked == [1, 2, 3, 4] * costs.MIN_ROUNDS


def test_calibration_compares_real_steps_with_bare_passes() -> None:
    def timings(verify: float, draft: float) -> dict[str, float]:
        return {"draft": draft, "verify": verify, "accept": 0.5, "commit": 0.25, "other": 0.25}

    real = [(1, timings(40.0, 0.0), 4), (4, timings(48.0, 3.0), 2), (12, timings(110.0, 7.0), 2), (4, timings(1, 1), 0)]
    found = costs.calibration(real, {1: 8.0, 4: 20.0, 12: 50.0})
    assert found == Calibration(10 / 8, 0.25, (24 / 20 + 55 / 50) / 2, (4 / 2 + 8 / 2) / 2)


class FakeHeads:
    """Two heads that guess state, state + 1, ... of the hidden state's only number."""

    head_count, output_rows, kind, has_prefix = 2, 4, "hydra", False

    def draft_tokens(self, hidden: np.ndarray, wanted: int, path: list[int]) -> list[list[int]]:
        assert (wanted, len(path)) == (4, 2)
        return [[int(hidden[0]) + rank for rank in range(wanted)] for _ in range(2)]


def test_ranks_of_compares_guesses_with_the_tokens_that_came() -> None:
    tokens = [9, 1, 2, 3, 7]
    states = np.array([[0], [2], [3], [0], [0]], np.float32)
    found = texts.ranks_of(cast("native.Heads", FakeHeads()), tokens, states)
    assert found.tolist() == [[1, 2], [0, 1], [0, tree_search.RANKS]]
    assert texts.ranks_of(cast("native.Heads", FakeHeads()), [1, 2], states).shape == (0, 2)


def test_made_up_prompts_are_not_the_benchmark_s() -> None:
    from medusa_cli.prompts import bench_set

    made = texts.prompts(None)
    assert len(made) == texts.PROMPTS
    assert not set(made) & {prompt.text for prompt in bench_set.built_in()}


class FakeSession:
    """Decodes at `speed`; prompt [n] is answered in n steps."""

    calls: list[tuple[float, int]]

    def __init__(self, speed: float, calls: list[tuple[float, int]]) -> None:
        self.speed, self.calls = speed, calls

    def reset(self) -> None:
        self.calls.append((self.speed, 0))

    def generate(self, prompt: Sequence[int], *, max_tokens: int, sampling: native.Sampling) -> Any:
        self.calls.append((self.speed, prompt[0]))
        return SimpleNamespace(
            stats={"steps": prompt[0], "tokens_per_second": self.speed * prompt[0], "tokens_per_step": 2.0}
        )


def test_sessions_answer_in_turn_and_short_answers_do_not_count() -> None:
    calls: list[tuple[float, int]] = []
    sessions: dict[str, Any] = {"plain": FakeSession(10.0, calls), "x": FakeSession(12.0, calls)}
    found = decode.in_turn(sessions, [[20], [3], [40]], 96, FOREVER)
    assert calls[:4] == [(10.0, 0), (10.0, 20), (12.0, 0), (12.0, 20)]
    assert calls[4:6] == [(12.0, 0), (12.0, 3)], "who goes first changes"
    assert found["x"].ratios == [1.2, 1.2]
    assert found["x"].tokens_per_step == 2.0
    assert decode.in_turn(sessions, [[3]], 96, FOREVER) == {}


def test_decoding_ends_at_the_deadline_but_not_before_a_few_prompts() -> None:
    sessions: dict[str, Any] = {"plain": FakeSession(10.0, []), "x": FakeSession(12.0, [])}
    found = decode.in_turn(sessions, [[20]] * 9, 96, -FOREVER)
    assert len(found["x"].ratios) == decode.MIN_PROMPTS


# --- trees by simulated decoding -------------------------------------------------------------------


def naive_growth(texts: list[np.ndarray], nodes: int) -> list[tuple[int, ...]]:
    """The same, word by word: every possible next node is tried by walking all texts."""
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < nodes - 1:
        found = {}
        for parent in [(), *chosen]:
            for rank in range(tree_search.RANKS if len(parent) < texts[0].shape[1] else 0):
                choice = (*parent, rank)
                often = sum(int((text[:, : len(choice)] == choice).all(axis=1).sum()) for text in texts)
                if choice not in chosen and often:
                    steps, _ = walked(texts, [*chosen, choice])
                    found[choice] = (steps, -often, len(choice), choice)
        if not found:
            break
        chosen.append(min(found, key=lambda choice: found[choice]))
    return chosen


def walked(texts: list[np.ndarray], choices: list[tuple[int, ...]]) -> tuple[int, int]:
    """Steps and positions."""
    steps = 0
    for text in texts:
        at = 0
        while at < len(text):
            right = [len(c) for c in choices if tuple(text[at, : len(c)]) == c]
            at += 1 + max(right, default=0)
            steps += 1
    return steps, sum(map(len, texts))


@given(seed=st.integers(0, 10_000), heads=st.integers(1, 3), nodes=st.integers(2, 6))
@settings(max_examples=25, deadline=None)
def test_simulated_growth_is_what_its_definition_says(seed: int, heads: int, nodes: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [rng.choice([0, 0, 1, 2, tree_search.RANKS], size=(length, heads)) for length in rng.integers(1, 30, 3)]
    grown = tree_search.grow_by_simulation(texts, nodes)
    assert grown == naive_growth(texts, nodes)
    native.Tree([list(choice) for choice in grown])


def test_simulated_trees_bring_the_more_the_larger_they_are() -> None:
    built_on, held_out = [ranks(seed) for seed in range(4)], [ranks(9)]
    table = tree_search.accuracy_table(built_on)
    trees = choose.trees_by_size(TreeMethod.simulate, table, built_on, (1, 2, 4, 8, 100))
    assert {size: len(tree) + 1 for size, tree in trees.items()} == {1: 1, 2: 2, 4: 4, 8: 8, 100: 15}
    tokens = [tree_search.simulate(built_on, tree)[0] for tree in trees.values()]
    assert tokens == sorted(tokens)
    # Positions are drawn alike, so that both ways find trees that are as good.
    ours = tree_search.simulate(held_out, tree_search.greedy_tree(table, 8))[0]
    assert tree_search.simulate(held_out, trees[8])[0] == pytest.approx(ours, rel=0.03)


def test_nothing_that_is_ever_right_is_an_empty_tree() -> None:
    assert tree_search.grow_by_simulation([np.full((5, 2), tree_search.RANKS)], 8) == []
