"""A session's state as bytes: a restored session says what one says that was never closed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _native_testing as testing
import numpy as np
import pytest
from architectures import ARCHITECTURES, TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st
from random_heads import random_heads, write
from random_models import write_random_model

from medusa_cli import native

CHAIN = [[0] * (n + 1) for n in range(4)]
TREES: list[list[list[int]]] = [[], CHAIN, [[0], [1], [0, 0], [0, 1], [1, 0]], [[0], [1], [2], [3]]]
KERNELS = native.kernel_info()["selected"] is not None


def saved(session: Any) -> tuple[list[int], np.ndarray[Any, np.dtype[np.uint8]]]:
    out = np.empty(session.state_size, np.uint8)
    session.save_state(out)
    return session.cached_tokens, out


def moved(session: Any, into: Any) -> Any:
    into.restore_state(*saved(session))
    assert into.cached_tokens == session.cached_tokens
    return into


def text(length: int, seed: int = 0, vocabulary: int = 32) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(1, vocabulary) for i in range(length)]


@given(
    snapshots=st.sampled_from([None, 0, 7]),
    draft_model=st.booleans(),
    recycling=st.booleans(),
    turns=st.lists(
        st.tuples(st.integers(0, 120), st.integers(0, 60), st.integers(1, 40), st.sampled_from(TREES), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150)
def test_conversations_go_on_in_other_sessions(
    snapshots: int | None, draft_model: bool, recycling: bool, turns: list[tuple[Any, ...]], seed: int
) -> None:
    """Each turn may move to another session, drops some of the text, adds some, and is answered by some tokens."""

    def fake(tree: list[list[int]]) -> testing.FakeSession:
        tree = CHAIN if snapshots is not None or draft_model or recycling else tree
        return testing.FakeSession(
            native.Tree(tree), context_size=4096, snapshots=snapshots, lookup=True, memory=0, dynamic=recycling,
            recycling=recycling, draft_model=draft_model,
        )  # fmt: skip

    session, said = fake(CHAIN), text(60, seed)
    sampling = native.Sampling(temperature=0.8, seed=seed)
    for number, (dropped, added, tokens, tree, moves) in enumerate(turns):
        session = moved(session, fake(tree)) if moves else session
        said = said[: max(len(said) - dropped, 1)] + text(added, seed + number + 1)
        answer = session.generate(said, max_tokens=tokens, sampling=sampling, ignore_eos=True)
        fresh = testing.FakeSession(native.Tree([]), context_size=4096, memory=0)
        assert answer.tokens == fresh.generate(said, max_tokens=tokens, sampling=sampling, ignore_eos=True).tokens
        said = said + answer.tokens


def test_a_restored_session_reads_nothing_again() -> None:
    session, into = (testing.FakeSession(native.Tree(CHAIN), context_size=1024, memory=0) for _ in range(2))
    prompt = text(200)
    answer = session.generate(prompt, max_tokens=30, ignore_eos=True)
    following = [*prompt, *answer.tokens, *text(10, 5)]
    moved(session, into)
    assert into.generate(following, max_tokens=5, ignore_eos=True).reused_tokens == len(session.cached_tokens)


def test_what_does_not_fit_is_refused_and_leaves_nothing() -> None:
    session = testing.FakeSession(native.Tree(CHAIN), context_size=1024, memory=0)
    session.generate(text(200), max_tokens=30, ignore_eos=True)
    tokens, state = saved(session)
    small = testing.FakeSession(native.Tree(CHAIN), context_size=128, memory=0)
    other = testing.FakeSession(native.Tree(CHAIN), context_size=1024, memory=0)
    for into, cached, bytes_ in (
        (small, tokens, state),
        (other, tokens[:-1], state),
        (other, tokens, state[: len(state) // 2]),
        (other, tokens, state[:2]),
    ):
        with pytest.raises(native.NativeError, match="does not fit"):
            into.restore_state(cached, bytes_)
        assert into.cached_tokens == []
        into.generate(text(50), max_tokens=5, ignore_eos=True)
    with pytest.raises(native.NativeError, match="became larger"):
        session.save_state(np.empty(8, np.uint8))
    session.generate([*tokens, 5], max_tokens=5, ignore_eos=True)


def test_an_empty_session_is_saved_and_restored() -> None:
    session = moved(*(testing.FakeSession(native.Tree(CHAIN)) for _ in range(2)))
    assert session.generate(text(20), max_tokens=5, ignore_eos=True).reused_tokens == 0


MODELS = ["llama", "gemma3", "gpt-oss", "qwen35", "nemotron_h", "falcon-h1", "mamba2", "rwkv7", "deepseek2", "lfm2"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], native.Model]:
    folder = tmp_path_factory.mktemp("models")

    def model(name: str) -> native.Model:
        path: Path = folder / f"{name}.gguf"
        if not path.exists():
            full = folder / f"{name}.f32.gguf"
            write_random_model(full, ARCHITECTURES[name], seed=1)
            native.quantize_model(str(full), str(path), file_type=15)  # Q4_K_M
        return native.Model(str(path))

    return model


@pytest.mark.skipif(not KERNELS, reason="llama.cpp's kernels round by width")
@pytest.mark.parametrize("cache", ["f16", "q8_0"])
@pytest.mark.parametrize("name", MODELS)
def test_real_memories(name: str, cache: str, files: Callable[[str], native.Model]) -> None:
    """Turns whose cut goes far behind the place where the state was saved, and behind a sliding window."""
    model = files(name)

    def opened(**drafts: Any) -> native.Session:
        return native.Session(model, n_ctx=1024, type_k=cache, type_v=cache, **drafts)

    session, said = opened(lookup=True), text(150, vocabulary=TOKENS)
    for turn in range(6):
        sampling = native.Sampling(temperature=1.0, seed=turn)
        session = moved(session, opened(lookup=turn % 2 == 1, recycling=turn % 3 == 0))
        answer = session.generate(said, max_tokens=40, sampling=sampling, ignore_eos=True)
        fresh = opened().generate(said, max_tokens=40, sampling=sampling, ignore_eos=True)
        assert answer.tokens == fresh.tokens
        assert (answer.reused_tokens > 0) == (turn > 0)
        dropped = 60 if turn % 3 == 2 else 3
        said = [*said[:-dropped], *answer.tokens[20:], *text(70, turn + 1, TOKENS)]


@pytest.mark.parametrize("name", ["llama", "qwen35"])
def test_a_prefix_layer_comes_back(name: str, files: Callable[[str], native.Model], tmp_path: Path) -> None:
    """Its cells are those of a session that was never closed, so it drafts the same."""
    model = files(name)
    path = write(tmp_path / "heads.gguf", random_heads("hydra++", "base", hidden=model.n_embd))
    heads, tree = native.Heads(model, str(path)), native.Tree(CHAIN[:3])

    def opened() -> native.Session:
        return native.Session(model, heads, tree=tree, n_ctx=1024)

    stays, prompt = opened(), text(300, vocabulary=TOKENS)
    answer = stays.generate(prompt, max_tokens=30, ignore_eos=True)
    moves = moved(stays, opened())
    following = [*prompt, *answer.tokens, *text(20, 7, TOKENS)]
    one, other = (session.generate(following, max_tokens=40, ignore_eos=True) for session in (stays, moves))
    assert one.tokens == other.tokens
    assert one.paths == other.paths
    assert np.array_equal(saved(stays)[1], saved(moves)[1]), "the same cells, prefix layers' among them"
    # Of other heads: they start anew, the cache stays.
    plain = native.Session(model, n_ctx=1024, lookup=True)
    plain.restore_state(*saved(stays), drafts=False)
    assert plain.cached_tokens == stays.cached_tokens
    assert moved(plain, opened()).generate([*following, 5], max_tokens=5, ignore_eos=True).reused_tokens > 300


def test_a_draft_model_comes_back(files: Callable[[str], native.Model]) -> None:
    model = files("llama")

    def opened() -> native.Session:
        return native.Session(model, draft_model=model, draft_max=3, tree=native.Tree(CHAIN[:3]), n_ctx=1024)

    session, prompt = opened(), text(200, vocabulary=TOKENS)
    answer = session.generate(prompt, max_tokens=30, ignore_eos=True)
    following = [*prompt, *answer.tokens, *text(20, 7, TOKENS)]
    into = moved(session, opened())
    expected = session.generate(following, max_tokens=30, ignore_eos=True)
    again = into.generate(following, max_tokens=30, ignore_eos=True)
    assert again.tokens == expected.tokens
    assert again.paths == expected.paths
    assert max(map(len, again.paths)) == 4, "it drafts for itself"


def test_damaged_bytes_end_nothing(files: Callable[[str], native.Model]) -> None:
    """What a checksum would not let through: lengths, counts and positions at will."""
    model = files("llama")
    session = native.Session(model, n_ctx=512, recycling=True)
    session.generate(text(100, vocabulary=TOKENS), max_tokens=10, ignore_eos=True)
    tokens, state = saved(session)
    draw = random.Random(1)
    for _ in range(300):
        damaged = state.copy()
        for _ in range(draw.choice([1, 1, 4])):
            damaged[draw.choice([draw.randrange(min(400, len(state))), draw.randrange(len(state))])] = draw.randrange(
                256
            )
        into = native.Session(model, n_ctx=512, recycling=True)
        try:
            into.restore_state(tokens, damaged[: draw.choice([len(state), draw.randrange(len(state))])])
        except native.NativeError:
            assert into.cached_tokens == []
