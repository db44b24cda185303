"""Conversations in which layers for further tokens (MTP) draft: each answer is that of a plain session that reads it
from its start, whatever was dropped, changed, answered again, cut short or moved to another session before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENS
from hypothesis import given, settings
from hypothesis import strategies as st
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model

from medusa_cli import native

CONTEXT = 512
CHAIN = [[0] * depth for depth in (1, 2, 3)]
TREE = [*CHAIN, [1], [0, 1], [1, 0], [2]]
NAMES = ["qwen35", "glm4moe", "deepseek2", "step35", "gemma4"]
"""A hybrid's chain, trees, latent attention, several layers, and a cache that another model fills."""

pytestmark = pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="llama.cpp's kernels round by width")


@dataclass(frozen=True)
class Pair:
    model: native.Model
    mtp: native.Model

    @property
    def only_chains(self) -> bool:
        return self.model.is_recurrent or (self.mtp is self.model and self.mtp.next_layers > 1)

    def opened(self, way: str, **drafts: Any) -> native.Session:
        """way: "chain", "tree" or "dynamic"."""
        if way == "dynamic":
            drafts["dynamic"] = native.DynamicTree()
        else:
            drafts["tree"] = native.Tree(CHAIN if self.only_chains or way == "chain" else TREE)
        return native.Session(self.model, drafter=self.mtp, n_ctx=CONTEXT, n_threads=1, **drafts)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    folder, known = tmp_path_factory.mktemp("mtp"), dict[str, Pair]()

    def loaded(path: Path, *, layers: bool) -> native.Model:
        native.quantize_model(str(path), str(path.with_suffix(".q.gguf")), file_type=15)  # Q4_K_M
        return native.Model(str(path.with_suffix(".q.gguf")), n_gpu_layers=0, next_layers=layers)

    def pair(name: str) -> Pair:
        if name not in known:
            own = MTP_MODELS[name].layers > 0
            model = loaded(write_mtp_model(folder / f"{name}.gguf", name, agree=0.67), layers=own)
            mtp = model if own else loaded(write_assistant(folder / "mtp.gguf", agree=0.67), layers=True)
            known[name] = Pair(model, mtp)
        return known[name]

    return pair


def text(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(1, TOKENS) for i in range(length)]


def moved(session: native.Session, into: native.Session, *, drafts: bool) -> native.Session:
    state = np.empty(session.state_size, np.uint8)
    session.save_state(state)
    into.restore_state(session.cached_tokens, state, drafts=drafts)
    assert into.cached_tokens == session.cached_tokens
    return into


@dataclass(frozen=True)
class Turn:
    """dropped: tokens off the text's end; again: all of the last answer, too. changed: how far from the end a token is
    another. tokens: of the answer, which ends after `steps` if that is not 0. moves: to another session, 2: without
    the drafter's part."""

    dropped: int
    again: bool
    changed: int
    added: int
    tokens: int
    steps: int
    moves: int


TURNS = st.builds(
    Turn,
    dropped=st.sampled_from([0, 0, 0, 1, 2, 7, 60]),
    again=st.booleans(),
    changed=st.sampled_from([0, 0, 0, 1, 5, 40]),
    added=st.sampled_from([0, 1, 2, 9, 40]),
    tokens=st.integers(1, 40),
    steps=st.sampled_from([0, 0, 1, 3]),
    moves=st.sampled_from([0, 0, 1, 2]),
)


def asked(said: list[int], answer: list[int], turn: Turn, seed: int) -> list[int]:
    """The next prompt: never empty, and with room for an answer."""
    if turn.again and answer:
        said = said[: -len(answer)]
    said = said[: max(len(said) - turn.dropped, 1)]
    if 0 < turn.changed <= len(said):
        said = [*said[: -turn.changed], 1 + said[-turn.changed] % (TOKENS - 1), *said[len(said) - turn.changed + 1 :]]
    return (said + text(turn.added, seed))[-(CONTEXT - 60) :]


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(
    ways=st.lists(st.sampled_from(["chain", "tree", "dynamic"]), min_size=1, max_size=3),
    lookup=st.booleans(),
    recycling=st.booleans(),
    temperature=st.sampled_from([0.0, 0.8]),
    turns=st.lists(TURNS, min_size=2, max_size=6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=30)
def test_answers_are_those_of_a_fresh_plain_session(
    pairs: Callable[[str], Pair],
    name: str,
    moves: bool,
    ways: list[str],
    lookup: bool,
    recycling: bool,
    temperature: float,
    turns: list[Turn],
    seed: int,
) -> None:
    pair, sampling = pairs(name), native.Sampling(temperature=temperature, seed=seed)

    def opened(number: int) -> native.Session:
        way = ways[number % len(ways)]
        return pair.opened(way, lookup=lookup, recycling=recycling and way == "dynamic")

    session, said, answer = opened(0), text(70, seed), list[int]()
    for number, turn in enumerate(turns):
        if turn.moves and moves:
            session = moved(session, opened(number), drafts=turn.moves == 1)
        said = asked(said, answer, turn, seed + number + 1)
        cancellation, steps = native.Cancellation(), 0

        def stepped(_: Any, turn: Turn = turn, cancellation: native.Cancellation = cancellation) -> None:
            nonlocal steps
            steps += 1
            if steps == turn.steps:
                cancellation.cancel()

        found = session.generate(
            said, max_tokens=turn.tokens, sampling=sampling, ignore_eos=True, cancellation=cancellation, on_step=stepped
        )
        assert found.stats["drafts_ended"] is None
        plain = native.Session(pair.model, n_ctx=CONTEXT, n_threads=1)
        expected = plain.generate(said, max_tokens=turn.tokens, sampling=sampling, ignore_eos=True).tokens
        answer = found.tokens
        assert answer == expected[: len(answer)], f"turn {number}"
        assert turn.steps or len(answer) == turn.tokens
        said = said + answer


@pytest.mark.parametrize("name", NAMES)
def test_a_session_that_moves_drafts_as_if_it_had_stayed(pairs: Callable[[str], Pair], name: str) -> None:
    pair, prompt = pairs(name), text(200, 3)
    stays = pair.opened("chain")
    answer = stays.generate(prompt, max_tokens=40, ignore_eos=True)
    assert sum(map(len, answer.paths)) > 1.2 * len(answer.paths), "hardly any draft was right: the test proves nothing"
    moves = moved(stays, pair.opened("chain"), drafts=True)
    following = [*prompt, *answer.tokens, *text(20, 7)]
    one, other = (session.generate(following, max_tokens=60, ignore_eos=True) for session in (stays, moves))
    assert (one.tokens, one.drafts, one.paths) == (other.tokens, other.drafts, other.paths)
    without = moved(stays, pair.opened("chain"), drafts=False)
    again = without.generate([*following, *one.tokens, 9], max_tokens=20, ignore_eos=True)
    assert again.reused_tokens > 200, "the model's cache is of use without the drafter's"


@pytest.mark.parametrize("name", NAMES)
def test_a_session_moves_after_answers_of_any_length(pairs: Callable[[str], Pair], name: str) -> None:
    pair = pairs(name)
    for seed in range(20):
        session, said = pair.opened("chain"), text(70, seed)
        for tokens in (2, 1, 1 + seed % 4, 9):
            said = said + session.generate(said, max_tokens=tokens, ignore_eos=True).tokens
            session = moved(session, pair.opened("chain"), drafts=True) if tokens < 9 else session
