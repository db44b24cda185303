"""Recycling: the model's own likeliest tokens as drafts; losslessness and gain, on the fake model and a real one."""

from __future__ import annotations

from pathlib import Path

import _native_testing as testing
import lossless
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT

from medusa_cli import native
from medusa_cli.decoding.prompts import chat_tokens
from medusa_cli.models import demo

CHAIN = [[0] * (n + 1) for n in range(4)]


def fake(
    *,
    recycling: bool = True,
    heads: bool = False,
    lookup: bool = False,
    acceptance: float = 0.5,
    memory: int = 2,
    vocab_size: int = 32,
    context_size: int = 512,
) -> testing.FakeSession:
    return testing.FakeSession(
        native.Tree(CHAIN if heads else []),
        vocab_size=vocab_size,
        context_size=context_size,
        acceptance=acceptance,
        seed=11,
        lookup=lookup,
        memory=memory,
        dynamic=heads,
        recycling=recycling,
    )


@given(
    heads=st.booleans(),
    lookup=st.booleans(),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    memory=st.sampled_from([0, 1, 2, 3]),
    vocab_size=st.sampled_from([3, 5, 32]),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_recycling_changes_no_text(
    heads: bool, lookup: bool, acceptance: float, memory: int, vocab_size: int, temperature: float, seed: int
) -> None:
    sampling = native.Sampling(temperature=temperature, top_k=12, repeat_penalty=1.1, seed=seed)
    plain = fake(recycling=False, memory=memory, vocab_size=vocab_size)
    session = fake(heads=heads, lookup=lookup, acceptance=acceptance, memory=memory, vocab_size=vocab_size)
    # A second answer is drafted from what was learned in the first one.
    for length in (len(PROMPT), 2):
        prompt = [token % vocab_size for token in PROMPT[:length]]
        expected = plain.generate(prompt, max_tokens=60, sampling=sampling, ignore_eos=True)
        drafted = session.generate(prompt, max_tokens=60, sampling=sampling, ignore_eos=True)
        assert drafted.tokens == expected.tokens
        assert session.sequence(0) == session.cached_tokens
        assert session.cell_count == len(session.cached_tokens)
        assert drafted.stats["tokens_per_step"] == pytest.approx(1 + sum(drafted.stats["acceptance_per_depth"]))


def test_text_that_repeats_itself_is_drafted() -> None:
    session = fake(context_size=700)
    drafted = session.generate(PROMPT, max_tokens=400, ignore_eos=True)
    assert len(drafted.parents[0]) == 1
    assert drafted.stats["tokens_per_step"] > 1.2
    # It knows another answer's text, too.
    again = session.generate(PROMPT, max_tokens=40, ignore_eos=True)
    assert again.tokens == drafted.tokens[:40]
    assert len(again.paths) < len(fake().generate(PROMPT, max_tokens=40, ignore_eos=True).paths)


def test_what_the_model_found_likely_is_sampled_later() -> None:
    # Lookup drafts one continuation; of what is drawn at random the table holds the others, too.
    sampling = native.Sampling(temperature=1.0, top_k=0, seed=3)
    drafted = fake(memory=1, context_size=1100).generate(PROMPT, max_tokens=1000, sampling=sampling, ignore_eos=True)
    assert drafted.stats["tokens_per_step"] > 1.2


@pytest.mark.parametrize("heads", [False, True])
def test_a_full_context_clips_the_drafts(heads: bool) -> None:
    plain = fake(recycling=False, memory=1, context_size=60).generate(PROMPT, ignore_eos=True)
    session = fake(heads=heads, memory=1, context_size=60)
    drafted = session.generate(PROMPT, ignore_eos=True)
    assert plain.stop_reason == drafted.stop_reason == "context_full"
    assert drafted.tokens == plain.tokens
    assert len(session.cached_tokens) == 60


def test_recycled_tokens_below_bad_heads_still_draft() -> None:
    # The heads are never right: what is accepted is the table's.
    drafted = fake(heads=True, acceptance=0.0, context_size=700).generate(PROMPT, max_tokens=400, ignore_eos=True)
    assert drafted.stats["tokens_per_step"] > 1.2


def test_heads_that_are_not_asked_leave_recycled_tokens_alone() -> None:
    # A level of the heads takes as long as many steps, and is never right: soon it is hardly ever asked for.
    heads_ms = 2.0
    session = testing.FakeSession(
        native.Tree(CHAIN), context_size=700, acceptance=0.0, seed=11, memory=2, dynamic=True, recycling=True,
        heads_ms=heads_ms,
    )  # fmt: skip
    drafted = session.generate(PROMPT, max_tokens=400, ignore_eos=True)
    plain = fake(recycling=False, context_size=700).generate(PROMPT, max_tokens=400, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.stats["timings_ms"]["draft"] < heads_ms * len(drafted.paths)
    assert drafted.stats["tokens_per_step"] > 1.2


@pytest.mark.model
@pytest.mark.parametrize("with_heads", [False, True])
def test_the_demo_model_says_the_same(demo_model_path: Path, with_heads: bool) -> None:
    model = native.Model(str(demo_model_path), n_gpu_layers=0)
    heads = native.Heads(model, str(demo.DEMO_HEADS)) if with_heads else None
    # Prices that hold: whether learned ones ask for drafts depends on the clock.
    prices = native.DynamicTree(costs=[(1, 1.0), (8, 1.4), (16, 2.0)], learns_costs=False)
    dynamic = prices if with_heads else None
    drafting = native.Session(model, heads, dynamic=dynamic, recycling=True)
    prompt = chat_tokens(model, [{"role": "user", "content": "Explain photosynthesis."}])
    expected = native.Session(model).generate(prompt, max_tokens=64)
    # The second time from a table that knows the text.
    for _ in range(2):
        drafting.reset()
        actual = drafting.generate(prompt, max_tokens=64)
        result = lossless.compare(model, prompt, expected, actual)
        assert result.explained, result
    assert sum(actual.stats["acceptance_per_depth"]) > 0, "nothing was drafted: the comparison proves nothing"
