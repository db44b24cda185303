"""Recurrent models: drafts as chains, and how a refused one is taken back; on the fake model and on small real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import _native_testing as testing
import pytest
from fixtures import tiny_recurrent, write_heads
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT
from test_rejection import p_value_of_three_grams

from medusa_cli import native

CHAIN = [[0] * (n + 1) for n in range(4)]
STEPS_BACK = 7
"""Snapshots: a draft has at most so many nodes."""


def fake(
    *,
    heads: bool = False,
    dynamic: bool = True,
    lookup: bool = False,
    recycling: bool = False,
    acceptance: float = 0.5,
    memory: int = 2,
    vocab_size: int = 32,
    context_size: int = 512,
    snapshots: int = 0,
) -> testing.FakeSession:
    return testing.FakeSession(
        native.Tree(CHAIN if heads else []),
        vocab_size=vocab_size,
        context_size=context_size,
        acceptance=acceptance,
        seed=11,
        lookup=lookup,
        memory=memory,
        dynamic=heads and dynamic,
        recycling=recycling,
        snapshots=snapshots,
    )


@given(
    heads=st.booleans(),
    dynamic=st.booleans(),
    lookup=st.booleans(),
    recycling=st.booleans(),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    memory=st.sampled_from([0, 1, 2]),
    vocab_size=st.sampled_from([3, 32]),
    temperature=st.sampled_from([0.0, 0.8]),
    snapshots=st.sampled_from([0, STEPS_BACK]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200)
def test_chains_change_no_text(
    heads: bool,
    dynamic: bool,
    lookup: bool,
    recycling: bool,
    acceptance: float,
    memory: int,
    vocab_size: int,
    temperature: float,
    snapshots: int,
    seed: int,
) -> None:
    sampling = native.Sampling(temperature=temperature, top_k=12, repeat_penalty=1.1, seed=seed)
    recycling = recycling and (dynamic or not heads)
    plain = fake(memory=memory, vocab_size=vocab_size)
    session = fake(
        heads=heads,
        dynamic=dynamic,
        lookup=lookup,
        recycling=recycling,
        acceptance=acceptance,
        memory=memory,
        vocab_size=vocab_size,
        snapshots=snapshots,
    )
    prompt = [token % vocab_size for token in PROMPT]
    for turn in range(3):
        expected = plain.generate(prompt, max_tokens=40, sampling=sampling, ignore_eos=True)
        drafted = session.generate(prompt, max_tokens=40, sampling=sampling, ignore_eos=True)
        assert drafted.tokens == expected.tokens
        for parents in drafted.parents:
            assert parents == list(range(-1, len(parents) - 1)), "a chain"
            assert len(parents) <= 1 + STEPS_BACK
        # What a step accepted may still wait to be decoded again.
        held = session.sequence(0)
        assert held == session.cached_tokens[: len(held)]
        assert len(held) == len(session.cached_tokens) or not snapshots
        # The next turn goes on from this one, or starts with something else.
        prompt = [*prompt, *drafted.tokens, 1] if turn == 0 else prompt[:5]


@pytest.mark.parametrize("snapshots", [0, STEPS_BACK])
def test_right_chains_are_accepted_whole(snapshots: int) -> None:
    session = fake(heads=True, dynamic=False, acceptance=1.0, snapshots=snapshots)
    drafted = session.generate(PROMPT, max_tokens=100, ignore_eos=True)
    assert drafted.stats["tokens_per_step"] == 1 + len(CHAIN)


@pytest.mark.parametrize("snapshots", [0, STEPS_BACK])
def test_a_full_context_clips_chains(snapshots: int) -> None:
    session = fake(heads=True, lookup=True, memory=1, context_size=60, snapshots=snapshots)
    drafted = session.generate(PROMPT, ignore_eos=True)
    plain = fake(memory=1, context_size=60).generate(PROMPT, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.stop_reason == "context_full"


def test_a_branching_tree_is_refused() -> None:
    session = testing.FakeSession(native.Tree([[0], [1]]), snapshots=0)
    with pytest.raises(native.NativeError, match="chain"):
        session.generate(PROMPT, max_tokens=4)


def test_a_small_recurrent_model_drafts_chains(tmp_path: Path) -> None:
    model = native.Model(str(tiny_recurrent(tmp_path / "mamba.gguf")))
    assert model.is_recurrent
    write_heads(tmp_path / "heads.gguf", heads=2, blocks=1, lm_head="base")
    heads = native.Heads(model, str(tmp_path / "heads.gguf"))
    with pytest.raises(native.NativeError, match="leave out --tree"):
        native.Session(model, heads, tree=native.Tree([[0], [1]]))
    expected = native.Session(model).generate([1, 2, 3], max_tokens=60, ignore_eos=True)
    for session in (
        native.Session(model, heads, tree=native.Tree([[0], [0, 0]])),
        native.Session(model, lookup=True, recycling=True),
    ):
        for _ in range(2):
            assert session.generate([1, 2, 3], max_tokens=60, ignore_eos=True).tokens == expected.tokens


@pytest.mark.parametrize(
    "drafting", [{}, {"dynamic": True}, {"lookup": True}, {"dynamic": True, "lookup": True, "recycling": True}], ids=str
)
@pytest.mark.parametrize("snapshots", [0, STEPS_BACK])
def test_rejection_sampling_keeps_the_distribution_in_chains(drafting: dict[str, Any], snapshots: int) -> None:
    """Where one path is all there is, whether lookup or the heads draft it must not depend on what was drawn."""
    session = testing.FakeSession(
        native.Tree([[0], [0, 0]]), vocab_size=5, acceptance=0.6, seed=11, sharpness=3.0, memory=1,
        snapshots=snapshots, **drafting,
    )  # fmt: skip
    prompt = [3, 1, 2, 0, 3, 1, 2, 4, 3, 1]
    assert p_value_of_three_grams(session, "rejection", 12000, prompt=prompt, temperature=1.0) > 1e-4
    assert session.last is not None
    assert session.last.stats["acceptance_per_depth"]
