"""Recurrent and hybrid models go back to checkpoints of their state: the text is that of a fresh session."""

from __future__ import annotations

import random
from pathlib import Path

import _native_testing as testing
import pytest
from fixtures import tiny_recurrent
from hypothesis import given, settings
from hypothesis import strategies as st

from medusa_cli import native

CHAIN = [[0] * (n + 1) for n in range(4)]
BEFORE_END = 8
LEAST = 32
"""As in native/decoding/sequence_memory.h."""


def text(length: int, seed: int = 0, vocabulary: int = 32) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(1, vocabulary) for i in range(length)]


def fake(snapshots: int, *, drafts: bool = True) -> testing.FakeSession:
    return testing.FakeSession(
        native.Tree(CHAIN if drafts else []), context_size=4096, snapshots=snapshots, lookup=drafts, memory=0
    )


@pytest.mark.parametrize("snapshots", [0, 7])
def test_the_next_turn_goes_on_where_the_answer_began(snapshots: int) -> None:
    session = fake(snapshots)
    prompt = text(200)
    first = session.generate(prompt, max_tokens=30, ignore_eos=True)
    # A template that leaves the thinking of earlier turns out: the answer is another one than was generated.
    answer = [*prompt[:-2], *first.tokens[10:], 5, 6, 7]
    second = session.generate(answer, max_tokens=30, ignore_eos=True)
    assert second.reused_tokens == len(prompt) - 1 - BEFORE_END
    assert second.tokens == fake(snapshots, drafts=False).generate(answer, max_tokens=30, ignore_eos=True).tokens


@pytest.mark.parametrize("snapshots", [0, 7])
def test_an_answer_is_written_again_without_reading_the_prompt_again(snapshots: int) -> None:
    session = fake(snapshots)
    prompt = text(100)
    first = session.generate(prompt, max_tokens=30, ignore_eos=True)
    again = session.generate(prompt, max_tokens=30, ignore_eos=True)
    assert again.reused_tokens == len(prompt) - 1 - BEFORE_END
    assert again.tokens == first.tokens


def test_short_prompts_are_read_again() -> None:
    session = fake(0)
    prompt = text(LEAST + BEFORE_END)
    session.generate(prompt, max_tokens=30, ignore_eos=True)
    assert session.generate(prompt, max_tokens=30, ignore_eos=True).reused_tokens == 0


@pytest.mark.parametrize("first", [2030, 2049, 2060])
def test_a_checkpoint_near_a_stride_hides_no_later_ones(first: int) -> None:
    session = testing.FakeSession(native.Tree([]), context_size=16384, snapshots=0, memory=1)
    prompt = text(9000)
    for length in (first, 5000, 9000):
        session.generate(prompt[:length], max_tokens=1, ignore_eos=True)
    again = session.generate([*prompt[:8995], 0, 1], max_tokens=1, ignore_eos=True)
    assert again.reused_tokens == 9000 - 1 - BEFORE_END


def test_long_prompts_have_checkpoints_on_the_way() -> None:
    session = testing.FakeSession(native.Tree([]), context_size=8192, snapshots=0, memory=1)
    prompt = text(5000)
    session.generate(prompt, max_tokens=1, ignore_eos=True)
    for same, reused in ((4500, 4096), (4000, 2048), (2000, 0)):
        edited = [*prompt[:same], 0, *prompt[same:]]
        assert session.generate(edited, max_tokens=1, ignore_eos=True).reused_tokens == reused


@given(
    snapshots=st.sampled_from([0, 7]),
    turns=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60), st.integers(1, 40)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100)
def test_edited_conversations_say_the_same(snapshots: int, turns: list[tuple[int, int, int]], seed: int) -> None:
    """Each turn keeps some of the text, adds some, and is answered by some tokens."""
    session, said = fake(snapshots), text(60, seed)
    sampling = native.Sampling(temperature=0.8, seed=seed)
    for number, (dropped, added, tokens) in enumerate(turns):
        said = said[: max(len(said) - dropped, 1)] + text(added, seed + number + 1)
        answer = session.generate(said, max_tokens=tokens, sampling=sampling, ignore_eos=True)
        fresh = fake(snapshots, drafts=False).generate(said, max_tokens=tokens, sampling=sampling, ignore_eos=True)
        assert answer.tokens == fresh.tokens
        said = said + answer.tokens


@pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="llama.cpp's kernels round by width")
@pytest.mark.parametrize("lookup", [False, True])
def test_a_small_real_model(tmp_path: Path, lookup: bool) -> None:
    model = native.Model(str(tiny_recurrent(tmp_path / "mamba.gguf")))
    session = native.Session(model, n_ctx=1024, lookup=lookup)
    said = text(120, vocabulary=model.n_vocab)
    for turn in range(6):
        sampling = native.Sampling(temperature=1.0, seed=turn)
        answer = session.generate(said, max_tokens=40, sampling=sampling, ignore_eos=True)
        fresh = native.Session(model, n_ctx=1024).generate(said, max_tokens=40, sampling=sampling, ignore_eos=True)
        assert answer.tokens == fresh.tokens
        assert (answer.reused_tokens > 0) == (turn > 0)
        said = [*said[:-3], *answer.tokens[20:], *text(50, turn + 1, model.n_vocab)]
