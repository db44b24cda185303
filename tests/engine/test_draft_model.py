"""A draft model: the authors' token counts, losslessness, and a cache that follows the text."""

from __future__ import annotations

import math
from pathlib import Path

import _native_testing as testing
import lossless
import pytest
from fixtures import tiny_base, tiny_recurrent
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT, tree_choices

from medusa_cli import native
from medusa_cli.decoding.prompts import chat_tokens


def chain(gamma: int) -> list[list[int]]:
    return [[0] * (n + 1) for n in range(gamma)]


def fake(
    choices: list[list[int]], acceptance: float, *, drafts: bool = True, dynamic: bool = False, seed: int = 3,
    vocab_size: int = 32, context_size: int = 512, lookup: bool = False, memory: int = 0,
) -> testing.FakeSession:  # fmt: skip
    return testing.FakeSession(
        native.Tree(choices if drafts else []), acceptance=acceptance, dynamic=dynamic and drafts, seed=seed,
        vocab_size=vocab_size, context_size=context_size, lookup=lookup and drafts, memory=memory, draft_model=drafts,
    )  # fmt: skip


@given(
    choices=tree_choices(),
    dynamic=st.booleans(),
    lookup=st.booleans(),
    acceptance=st.sampled_from([0.0, 0.6, 1.0]),
    temperature=st.sampled_from([0.0, 0.8]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100)
def test_drafts_change_no_text(
    choices: list[list[int]], dynamic: bool, lookup: bool, acceptance: float, temperature: float, seed: int
) -> None:
    sampling = native.Sampling(temperature=temperature, top_k=12, repeat_penalty=1.1, seed=seed)
    memory = 3 if lookup else 0
    plain = fake(choices, acceptance, drafts=False, seed=seed, memory=memory)
    session = fake(choices, acceptance, dynamic=dynamic, lookup=lookup, seed=seed, memory=memory)
    # The second prompt shares a beginning with the first text, the third one is that beginning alone.
    prompts = [PROMPT, [*PROMPT, 3, 1, 4], PROMPT[:2]]
    for prompt in prompts:
        expected = plain.generate(prompt, max_tokens=40, sampling=sampling, ignore_eos=True)
        drafted = session.generate(prompt, max_tokens=40, sampling=sampling, ignore_eos=True)
        assert drafted.tokens == expected.tokens
        assert session.sequence(0) == session.cached_tokens
        assert session.cell_count == len(session.cached_tokens)


@pytest.mark.parametrize("gamma", [1, 2, 5, 10, 20])
def test_a_chain_that_always_hits_brings_one_token_more_than_it_drafts(gamma: int) -> None:
    steps = 12
    tokens = 1 + steps * (gamma + 1)
    session = fake(chain(gamma), 1.0, context_size=tokens + 40)
    drafted = session.generate(PROMPT, max_tokens=tokens, ignore_eos=True)
    assert [len(path) for path in drafted.paths] == [gamma + 1] * steps
    # The draft model's cache stays in step with the next prompt, too: a mistake would cost hits.
    again = session.generate([*PROMPT, 9], max_tokens=gamma + 2, ignore_eos=True)
    assert [len(path) for path in again.paths] == [gamma + 1]


def test_dynamic_trees_of_a_model_that_is_always_right_reach_their_depth() -> None:
    drafted = fake(chain(5), 1.0, dynamic=True, context_size=900).generate(PROMPT, max_tokens=600, ignore_eos=True)
    # It learns that the first guess is always right, and that no other ever is.
    assert [len(path) for path in drafted.paths[-20:-1]] == [6] * 19
    assert [len(parents) for parents in drafted.parents[-20:-1]] == [6] * 19


@pytest.mark.parametrize(("alpha", "gamma"), [(0.6, 2), (0.8, 4), (0.9, 8)])
def test_tokens_per_step_are_those_of_the_paper(alpha: float, gamma: int) -> None:
    # Leviathan et al. 2023, eq. 1: (1 - alpha^(gamma + 1)) / (1 - alpha), where each draft is right with chance alpha.
    counts = []
    for seed in range(12):
        session = fake(chain(gamma), alpha, seed=seed, context_size=1300)
        counts += [len(path) for path in session.generate(PROMPT, max_tokens=1200, ignore_eos=True).paths[:-1]]
    expected = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    mean = sum(counts) / len(counts)
    deviation = math.sqrt(sum((count - mean) ** 2 for count in counts) / len(counts) / len(counts))
    assert abs(mean - expected) < 4 * deviation
    assert deviation < 0.03 * expected


def test_a_wider_tree_catches_what_the_best_guess_misses() -> None:
    # Where the fake is wrong, the best token comes last: of three, all three ranks always hold it.
    full = [[a] for a in range(3)] + [[a, b] for a in range(3) for b in range(3)]
    drafted = fake(full, 0.3, vocab_size=3).generate([1, 2, 0], max_tokens=61, ignore_eos=True)
    assert [len(path) for path in drafted.paths] == [3] * 20


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_full_context_clips_the_drafts(dynamic: bool) -> None:
    plain = fake([], 1.0, drafts=False, context_size=60).generate(PROMPT, ignore_eos=True)
    session = fake(chain(5), 1.0, dynamic=dynamic, context_size=60)
    drafted = session.generate(PROMPT, ignore_eos=True)
    assert plain.stop_reason == drafted.stop_reason == "context_full"
    assert drafted.tokens == plain.tokens
    assert len(session.cached_tokens) == 60


@pytest.mark.model
def test_the_demo_model_drafts_for_itself(demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path), n_gpu_layers=0)
    prompt = chat_tokens(model, [{"role": "user", "content": "Explain photosynthesis."}])
    expected = native.Session(model).generate(prompt, max_tokens=61)
    session = native.Session(model, tree=native.Tree(chain(3)), draft_model=model)
    for _ in range(2):
        drafted = session.generate(prompt, max_tokens=61)
        assert drafted.tokens == expected.tokens
        assert drafted.stats["acceptance_per_depth"] == [1.0, 1.0, 1.0]
    grown = native.Session(model, dynamic=native.DynamicTree(), draft_model=model, draft_max=4)
    wide = native.Session(model, tree=native.Tree([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]]), draft_model=model)
    for other in (grown, wide):
        result = lossless.compare(model, prompt, expected, other.generate(prompt, max_tokens=61))
        assert result.explained, result
    assert wide.last is not None
    assert wide.last.stats["acceptance_per_depth"][:2] == [1.0, 1.0]


def renamed(path: Path, text: str, other: str) -> Path:
    """The model with another text, as long as that, for one token."""
    before, after = (len(name).to_bytes(8, "little") + name.encode() for name in (text, other))
    data = path.read_bytes()
    assert data.count(before) == 1
    path.write_bytes(data.replace(before, after))
    return path


def test_a_draft_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    model = native.Model(str(tiny_base(tmp_path / "base.gguf")))
    other = native.Model(str(renamed(tiny_base(tmp_path / "other.gguf"), "cu", "cx")))
    tree = native.Tree(chain(2))
    with pytest.raises(native.NativeError, match=r"other.gguf has another token 300 \(cx, not cu\): give a draft"):
        native.Session(model, tree=tree, draft_model=other)
    recurrent = native.Model(str(tiny_recurrent(tmp_path / "recurrent.gguf")))
    with pytest.raises(native.NativeError, match="recurrent model, whose state cannot be rolled back"):
        native.Session(model, tree=tree, draft_model=recurrent)
    with pytest.raises(native.NativeError, match="lower --draft-max"):
        native.Session(model, dynamic=native.DynamicTree(), draft_model=model, draft_max=60)
    assert native.Session(model, tree=tree, draft_model=model).generate([1, 5], max_tokens=4).text
