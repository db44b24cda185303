"""Conversations in which layers for further tokens (MTP) or EAGLE-3 draft, whatever was dropped, changed, answered
again, cut short or moved to another session before: each answer is that of a plain session that reads it from its
start, and what is drafted next is what a drafter drafts that has read the text at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENS
from eagle_models import write_eagle, write_target
from hypothesis import given, settings
from hypothesis import strategies as st
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model

from medusa_cli import native

CONTEXT = 512
CHAIN = [[0] * depth for depth in (1, 2, 3)]
TREE = [*CHAIN, [1], [0, 1], [1, 0], [2]]
MTP = ["qwen35", "glm4moe", "deepseek2", "step35", "gemma4"]
"""A hybrid's chain, trees, latent attention, several layers, and a cache that another model fills."""
EAGLE = ["plain", "wide", "qwen35"]
"""One that uses all that it can of its model, one that uses none of it, and a hybrid's."""
WINDOWED = ["step35"]
"""Those whose layers for further tokens have windows."""
NAMES = [*MTP, *(f"eagle3-{name}" for name in EAGLE)]

pytestmark = pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="llama.cpp's kernels round by width")


@dataclass(frozen=True)
class Pair:
    model: native.Model
    drafter: native.Model

    @property
    def only_chains(self) -> bool:
        return self.model.is_recurrent or (self.drafter is self.model and self.drafter.next_layers > 1)

    def opened(self, way: str, **drafts: Any) -> native.Session:
        """way: "chain", "tree" or "dynamic"."""
        if way == "dynamic":
            drafts["dynamic"] = native.DynamicTree()
        else:
            drafts["tree"] = native.Tree(CHAIN if self.only_chains or way == "chain" else TREE)
        return native.Session(self.model, drafter=self.drafter, n_ctx=CONTEXT, n_threads=1, **drafts)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    folder, known = tmp_path_factory.mktemp("pairs"), dict[str, Pair]()

    def loaded(path: Path, *, layers: bool) -> native.Model:
        native.quantize_model(str(path), str(path.with_suffix(".q.gguf")), file_type=15)  # Q4_K_M
        return native.Model(str(path.with_suffix(".q.gguf")), n_gpu_layers=0, next_layers=layers)

    def with_mtp(name: str) -> Pair:
        own = MTP_MODELS[name].layers > 0
        model = loaded(write_mtp_model(folder / f"{name}.gguf", name, agree=0.67), layers=own)
        mtp = model if own else loaded(write_assistant(folder / "mtp.gguf", agree=0.67), layers=True)
        return Pair(model, mtp)

    def with_eagle(name: str) -> Pair:
        target = write_target(folder / f"target-{name}.gguf", name, agree=True)
        eagle = write_eagle(folder / f"eagle3-{name}.gguf", name, agree=True)
        return Pair(loaded(target, layers=False), loaded(eagle, layers=True))

    def pair(name: str) -> Pair:
        if name not in known:
            eagle = name.removeprefix("eagle3-")
            known[name] = with_eagle(eagle) if eagle != name else with_mtp(name)
        return known[name]

    return pair


def text(length: int, seed: int) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(1, TOKENS) for i in range(length)]


def saved(session: native.Session) -> np.ndarray[Any, np.dtype[np.uint8]]:
    state = np.empty(session.state_size, np.uint8)
    session.save_state(state)
    return state


def moved(session: native.Session, into: native.Session, *, drafts: bool) -> native.Session:
    into.restore_state(session.cached_tokens, saved(session), drafts=drafts)
    assert into.cached_tokens == session.cached_tokens
    return into


UNREAD = -1


@dataclass(frozen=True)
class Turn:
    """dropped: tokens off the text's end; again: all of the last answer, too. changed: how far from the end a token is
    another. tokens: of the answer, which ends after `steps` if that is not 0; UNREAD: before its prompt is read. moves:
    to another session, 2: without the drafter's part."""

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
    steps=st.sampled_from([0, 0, 0, 1, 1, 3, UNREAD]),
    moves=st.sampled_from([0, 0, 0, 1, 1, 1, 2]),
)


def asked(said: list[int], answer: list[int], turn: Turn, seed: int) -> list[int]:
    """The next prompt: never empty, and with room for an answer."""
    if turn.again and answer:
        said = said[: -len(answer)]
    said = said[: max(len(said) - turn.dropped, 1)]
    if 0 < turn.changed <= len(said):
        said = [*said[: -turn.changed], 1 + said[-turn.changed] % (TOKENS - 1), *said[len(said) - turn.changed + 1 :]]
    return (said + text(turn.added, seed))[-(CONTEXT - 60) :]


def answered(session: native.Session, prompt: list[int], turn: Turn, sampling: native.Sampling) -> list[int]:
    cancellation, steps = native.Cancellation(), 0

    def stepped(_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == turn.steps:
            cancellation.cancel()

    def read(_: int, __: int) -> None:
        if turn.steps == UNREAD:
            cancellation.cancel()

    found = session.generate(
        prompt,
        max_tokens=turn.tokens,
        sampling=sampling,
        ignore_eos=True,
        cancellation=cancellation,
        on_step=stepped,
        on_prompt=read,
    )
    assert found.stats["drafts_ended"] is None
    assert turn.steps or len(found.tokens) == turn.tokens
    return found.tokens


def check_next_drafts(session: native.Session, fresh: native.Session, prompt: list[int]) -> None:
    """fresh: one of the same tree that has read nothing."""
    one, other = (of.generate(prompt, max_tokens=10, ignore_eos=True) for of in (session, fresh))
    assert (one.tokens, one.drafts) == (other.tokens, other.drafts)


@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("name", NAMES)
@given(
    ways=st.lists(st.sampled_from(["chain", "tree", "dynamic"]), min_size=1, max_size=3) | st.just(["chain"]),
    lookup=st.booleans(),
    recycling=st.booleans(),
    rows=st.sampled_from([None, 0, 96]),
    temperature=st.sampled_from([0.0, 0.8]),
    turns=st.lists(TURNS, min_size=2, max_size=6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=20)
def test_answers_and_drafts_are_those_of_fresh_sessions(
    pairs: Callable[[str], Pair],
    name: str,
    moves: bool,
    ways: list[str],
    lookup: bool,
    recycling: bool,
    rows: int | None,
    temperature: float,
    turns: list[Turn],
    seed: int,
) -> None:
    """Which of 96 rows are of the text depends on text that is gone; what recycles saves more, which others refuse.

    A drafter with windows begins anew after a cut beyond what they hold, and then drafts from less text.
    """
    pair, sampling = pairs(name), native.Sampling(temperature=temperature, seed=seed)

    def opened(number: int) -> native.Session:
        way = ways[number % len(ways)]
        return pair.opened(way, lookup=lookup, recycling=recycling and way == "dynamic", draft_rows=rows)

    session, said, answer = opened(0), text(70, seed), list[int]()
    for number, turn in enumerate(turns):
        if turn.moves and moves:
            session = moved(session, opened(number), drafts=turn.moves == 1)
        said = asked(said, answer, turn, seed + number + 1)
        answer = answered(session, said, turn, sampling)
        plain = native.Session(pair.model, n_ctx=CONTEXT, n_threads=1)
        expected = plain.generate(said, max_tokens=turn.tokens, sampling=sampling, ignore_eos=True).tokens
        assert answer == expected[: len(answer)], f"turn {number}"
        said = said + answer
    if recycling or rows == 96 or name in WINDOWED or (moves and any(turn.moves == 2 for turn in turns)):
        return
    if lookup or {*ways} != {"chain"}:
        session = moved(session, pair.opened("chain", draft_rows=rows), drafts=True)
    check_next_drafts(session, pair.opened("chain", draft_rows=rows), (said + text(3, seed))[-(CONTEXT - 60) :])


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
