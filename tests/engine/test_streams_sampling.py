"""Streams above temperature 0, on a real model: each rule of acceptance says what it promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import _native_testing as testing
import numpy as np
import pytest
from medusa_cli.converters.heads.draft_heads import write_heads
from random_bases import random_base
from random_heads import random_streams
from stream_numpy import Base
from test_rejection import p_value
from test_streams import TEXT, TREE, Case

from medusa_cli import native
from medusa_cli.models.base_file import output_rows, read_base

PROMPT, TOKENS = TEXT[:20], 60
WAYS: dict[str, dict[str, Any]] = {
    "static": {"tree": TREE},
    "dynamic": {"dynamic": native.DynamicTree()},
    "recycling": {"dynamic": native.DynamicTree(), "recycling": True},
}


@pytest.fixture(scope="module", params=["lossless", "shared"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    path = random_base(tmp_path_factory.mktemp("sampling") / "base.gguf", "llama")
    return Case(path, random_streams(Base(path), rank=8 if request.param == "lossless" else 0))


def likely(case: Case, tokens: Sequence[int]) -> native.Heads:
    """Streams that draft these tokens alone, so that some of their drafts are right."""
    file = case.path.with_suffix(".likely.gguf")
    write_heads(file, replace(case.streams, d2t=np.array(sorted(set(tokens)), np.int32)))
    return native.Heads(case.model, str(file))


class Says:
    """The model's own logits, one text at a time."""

    def __init__(self, case: Case) -> None:
        self.reader = native.StatesReader(case.model, 200, outputs=True, n_threads=1)
        base = read_base(case.path)
        self.output = output_rows(base, np.arange(base.n_vocab))

    def after(self, text: Sequence[int]) -> Any:
        """[positions, V] behind each token."""
        states = self.reader.read(list(text)).post_norm
        assert states is not None
        return states @ self.output.T


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize(
    "chain", [{"temperature": 0.3, "top_k": 5}, {"temperature": 1.0, "repeat_penalty": 1.3}], ids=str
)
def test_exact_draws_what_plain_decoding_draws(case: Case, way: str, chain: dict[str, Any]) -> None:
    accepted = 0.0
    for seed in range(3):
        asked: dict[str, Any] = {"sampling": native.Sampling(seed=seed, **chain), "max_tokens": TOKENS}
        plain = native.Session(case.model).generate(PROMPT, ignore_eos=True, **asked)
        session = native.Session(case.model, likely(case, plain.tokens), **WAYS[way])
        drafted = session.generate(PROMPT, accept=native.Accept("exact"), ignore_eos=True, **asked)
        assert drafted.tokens == plain.tokens
        accepted += sum(drafted.stats["acceptance_per_depth"])
    assert accepted > 0 or "tree" not in WAYS[way]  # what is grown depends on the clock


def test_typical_takes_only_what_is_typical(case: Case) -> None:
    """Each accepted draft is likelier than min(epsilon, delta * exp(-entropy)), and each next root the likeliest."""
    epsilon, delta, temperature = 0.09, 0.3, 0.5
    says = Says(case)
    candidates = np.argsort(-says.after(PROMPT)[-1])[:6].tolist()
    session = native.Session(case.model, likely(case, candidates), tree=TREE)
    accept = native.Accept("typical", epsilon=epsilon, delta=delta, model_alone=True, greedy_root=True)
    sampling = native.Sampling(temperature=temperature, seed=1)
    answer = session.generate(PROMPT, max_tokens=TOKENS, sampling=sampling, accept=accept, ignore_eos=True)
    logits = says.after([*PROMPT, *answer.tokens])[len(PROMPT) - 1 :]
    at, taken = 1, 0
    for path in answer.paths:
        for _ in path[1:]:
            if at < len(answer.tokens):
                p = np.exp(logits[at] / temperature - np.logaddexp.reduce(logits[at] / temperature))
                entropy = -float((p * np.log(p + 1e-30)).sum())
                assert p[answer.tokens[at]] > min(epsilon, delta * math.exp(-entropy)) * 0.98
                at, taken = at + 1, taken + 1
        if at < len(answer.tokens):
            assert logits[at].max() - logits[at][answer.tokens[at]] < 0.02
            at += 1
    assert at == len(answer.tokens)
    assert taken > 3


@pytest.mark.parametrize("way", ["static", "dynamic"])
def test_rejection_keeps_the_distribution(case: Case, way: str) -> None:
    """Of the first two tokens of many answers, by chi-square."""
    chain: dict[str, Any] = {"temperature": 1.0, "top_k": 4, "top_p": 1.0, "min_p": 0.0}
    says, sampling, runs = Says(case), native.Sampling(**chain), 1500

    def after(text: list[int]) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = testing.distribution(says.after(text)[-1].tolist(), sampling, text)
        return found

    expected: dict[tuple[int, ...], float]
    expected = {(a, b): p * q for a, p in after(PROMPT) for b, q in after([*PROMPT, a])}
    session = native.Session(case.model, likely(case, [token for gram in expected for token in gram]), **WAYS[way])
    counts: Counter[tuple[int, ...]] = Counter()
    drafted = 0
    for seed in range(runs):
        answer = session.generate(
            PROMPT,
            max_tokens=2,
            sampling=native.Sampling(seed=seed, **chain),
            accept=native.Accept("rejection"),
            ignore_eos=True,
        )
        counts[tuple(answer.tokens)] += 1
        drafted += len(answer.paths[0]) - 1
    assert drafted > 0
    assert p_value(counts, expected, runs) > 1e-4
