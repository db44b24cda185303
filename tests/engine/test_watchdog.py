"""The watchdog: its policy on a fake clock, and what switching does to the text.

A simulated step costs a plain one times a ratio when it drafts, plus something for the new graph after a switch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _native_testing as testing
import pytest
from fixtures import tiny_base, write_heads
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT, tree_choices

from medusa_cli import native

SWITCH = 0.05
DEPTH = 3
LIMIT = 1.03


@dataclass
class Machine:
    """Times of steps. ratio: a drafting step, in plain ones. acceptance, unit_ms: at a position of the text."""

    ratio: float
    acceptance: Callable[[int], float]
    seed: int = 0
    noise: float = 0.0
    unit_ms: Callable[[int], float] = lambda position: 10.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.position = 0
        self.drafted = self.steps = 0

    def generate(self, policy: testing.Watchdog, tokens: int) -> float:
        """Time of a generation with the policy, relative to plain decoding at the same speed of the machine."""
        policy.begin_generation()
        end, spent, plain = self.position + tokens, 0.0, 0.0
        before: bool | None = None
        while self.position < end:
            speculative = policy.speculate()
            unit = self.unit_ms(self.position)
            cost = unit * ((self.ratio if speculative else 1.0) + (SWITCH if before not in (None, speculative) else 0))
            cost *= max(0.5, self.random.gauss(1.0, self.noise))
            committed = 1
            while speculative and committed <= DEPTH and self.random.random() < self.acceptance(self.position):
                committed += 1
            policy.report(speculative, cost, committed)
            before = speculative
            spent, plain = spent + cost, plain + unit * committed
            self.position += committed
            self.steps, self.drafted = self.steps + 1, self.drafted + speculative
        return spent / plain


def always(acceptance: float) -> Callable[[int], float]:
    return lambda position: acceptance


def relative_cost(ratio: float, acceptance: float) -> float:
    """Of a token when every step drafts."""
    return ratio / sum(acceptance**depth for depth in range(DEPTH + 1))


@given(
    ratio=st.floats(1.0, 3.0),
    lengths=st.lists(st.integers(96, 1500), min_size=1, max_size=8),
    acceptance=st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=150)
def test_useless_heads_never_cost_more_than_three_percent(ratio: float, lengths: list[int], acceptance: float) -> None:
    machine, watchdog = Machine(ratio, always(acceptance)), testing.Watchdog()
    for length in lengths:
        assert machine.generate(watchdog, length) <= LIMIT


@pytest.mark.parametrize("ratio", [1.05, 1.4, 2.0, 3.0])
@pytest.mark.parametrize("unit_ms", ["even", "growing", "slow spells"])
def test_useless_heads_on_a_machine_that_is_not_steady(ratio: float, unit_ms: str) -> None:
    shapes: dict[str, Callable[[int], float]] = {
        "even": lambda position: 10.0,
        "growing": lambda position: 10.0 + position / 200,
        "slow spells": lambda position: 15.0 if position // 150 % 2 else 10.0,
    }
    for seed in range(10):
        machine = Machine(ratio, always(0.0), seed, noise=0.05, unit_ms=shapes[unit_ms])
        watchdog = testing.Watchdog()
        assert machine.generate(watchdog, 2000) <= LIMIT
        assert machine.drafted > 0


def test_failed_trials_wait_longer_each_time() -> None:
    machine, watchdog = Machine(1.4, always(0.0)), testing.Watchdog()
    shares = []
    for _ in range(4):
        before = machine.drafted
        machine.generate(watchdog, 1000)
        shares.append(machine.drafted - before)
    assert shares[0] > shares[-1]
    assert 0 < sum(shares) < 40


@pytest.mark.parametrize(("ratio", "acceptance"), [(1.05, 0.4), (1.4, 0.6), (1.4, 0.8), (2.0, 0.8)])
def test_good_heads_draft_nearly_always(ratio: float, acceptance: float) -> None:
    relative = []
    for seed in range(10):
        machine, watchdog = Machine(ratio, always(acceptance), seed, noise=0.05), testing.Watchdog()
        machine.generate(watchdog, 500)
        relative.append(machine.generate(watchdog, 4000))
    assert sorted(relative)[5] <= 1.03 * relative_cost(ratio, acceptance)


def test_the_next_answer_starts_with_what_was_learnt() -> None:
    machine, watchdog = Machine(1.4, always(0.8)), testing.Watchdog()
    machine.generate(watchdog, 500)
    machine.drafted = machine.steps = 0
    machine.generate(watchdog, 30)
    assert machine.drafted == machine.steps


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_that_changes_within_a_text_is_noticed(seed: int) -> None:
    length = 3000
    for first, second in [(0.8, 0.0), (0.0, 0.8)]:
        machine = Machine(1.4, always(first), seed, noise=0.03)
        watchdog = testing.Watchdog()
        machine.generate(watchdog, length)
        before = machine.drafted
        machine.acceptance = always(second)
        relative = machine.generate(watchdog, length)
        if second:
            assert relative < 0.9
            assert machine.drafted > before + 300
        else:
            assert relative <= LIMIT


def test_a_single_slow_step_does_not_end_a_success() -> None:
    machine, watchdog = Machine(1.4, always(0.8)), testing.Watchdog()
    machine.generate(watchdog, 1000)
    while not watchdog.speculate():
        watchdog.report(False, 10.0, 1)
    watchdog.report(True, 2000.0, 2)
    assert watchdog.speculate()


@given(
    choices=tree_choices().filter(bool),
    pattern=st.lists(st.booleans(), min_size=1, max_size=12),
    acceptance=st.sampled_from([0.0, 0.6, 1.0]),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_switching_at_any_step_changes_no_token(
    choices: list[list[int]], pattern: list[bool], acceptance: float, temperature: float, seed: int
) -> None:
    sampling = native.Sampling(temperature=temperature, seed=seed)
    plain = testing.FakeSession(native.Tree([]), seed=seed).generate(
        PROMPT, max_tokens=40, sampling=sampling, ignore_eos=True
    )
    session = testing.FakeSession(native.Tree(choices), seed=seed, acceptance=acceptance)
    testing.script(session, pattern)
    switched = session.generate(PROMPT, max_tokens=40, sampling=sampling, ignore_eos=True, watchdog=True)
    assert switched.tokens == plain.tokens
    assert session.sequence(0) == session.cached_tokens
    assert session.cell_count == len(session.cached_tokens)
    stats = switched.stats
    assert stats["plain_steps"] == sum(not pattern[i % len(pattern)] for i in range(stats["steps"]))
    if stats["plain_steps"] < stats["steps"]:
        assert stats["tokens_per_step"] == pytest.approx(1 + sum(stats["acceptance_per_depth"]))
    else:
        assert stats["tokens_per_step"] == 0.0


def test_without_being_asked_for_every_step_drafts() -> None:
    session = testing.FakeSession(native.Tree([[0], [0, 0]]), acceptance=0.0)
    testing.script(session, [False])
    drafted = session.generate(PROMPT, max_tokens=20, ignore_eos=True)
    assert (drafted.stats["plain_steps"], drafted.stats["tree_nodes"]) == (0, 3)
    watched = session.generate(PROMPT, max_tokens=20, ignore_eos=True, watchdog=True)
    assert (watched.stats["plain_steps"], watched.stats["tree_nodes"]) == (19, 1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    """With this seed its text repeats a token now and then."""
    return native.Model(str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf", seed=2)))


@pytest.mark.parametrize("pattern", [[True], [False, True], [True, False, False, True]])
def test_a_draft_after_plain_steps_sees_the_newest_hidden_state(
    tiny: native.Model, tmp_path: Path, pattern: list[bool]
) -> None:
    """Heads of zeros draft what the base says last, the root, once more: right exactly where a token repeats."""
    write_heads(tmp_path / "heads.gguf", heads=1, blocks=1, lm_head="base", bias=False, fill=0.0)
    heads = native.Heads(tiny, str(tmp_path / "heads.gguf"))
    prompt = [5, 9, 17, 200]
    plain = native.Session(tiny).generate(prompt, max_tokens=120, ignore_eos=True)
    session = native.Session(tiny, heads, tree=native.Tree([[0]]))
    testing.script(session, pattern)
    watched = session.generate(prompt, max_tokens=120, ignore_eos=True, watchdog=True)
    assert watched.tokens == plain.tokens
    text, at, right, wrong = plain.tokens, 0, 0, 0
    for step, path in enumerate(watched.paths):
        if pattern[step % len(pattern)] and at + 1 < len(text):
            repeats = text[at + 1] == text[at]
            assert (len(path) == 2) == repeats
            right, wrong = right + repeats, wrong + (not repeats)
        at += len(path)
    assert right > 0 < wrong


def test_plain_decoding_has_nothing_to_watch(tiny: native.Model) -> None:
    stats = native.Session(tiny).generate([5, 9], max_tokens=20, ignore_eos=True, watchdog=True).stats
    assert (stats["tokens_per_step"], stats["steps"], stats["plain_steps"]) == (1.0, 19, 0)
