"""Typical acceptance as published, and the Medusa repository's nucleus rule, against references in Python."""

from __future__ import annotations

import math

import _native_testing as testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT, tree_choices

from medusa_cli import native

TOKENS = 24


def softmax(logits: list[float], temperature: float) -> list[float]:
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    return [weight / sum(weights) for weight in weights]


def order(p: list[float]) -> list[int]:
    return sorted(range(len(p)), key=lambda token: -p[token])


def published_typical(
    session: testing.FakeSession, choices: list[list[int]], temperature: float, epsilon: float, delta: float
) -> list[int]:
    """Medusa 2.3.1 with a greedy root, where the drafter's ranks are the model's own."""
    after = lambda tokens: softmax(session.logits_after(tokens), temperature)  # noqa: E731
    text = [*PROMPT, order(after(PROMPT))[0]]
    while len(text) < len(PROMPT) + TOKENS:
        best: tuple[int, float, list[int]] = (0, 0.0, [])
        passed: dict[tuple[int, ...], tuple[float, list[int]]] = {(): (0.0, [])}
        for choice in sorted(choices, key=len):
            if tuple(choice[:-1]) not in passed:
                continue
            likelihood, path = passed[tuple(choice[:-1])]
            p = after([*text, *path])
            entropy = -sum(x * math.log(x) for x in p if x > 0)
            token = order(p)[choice[-1]]
            if p[token] > min(epsilon, delta * math.exp(-entropy)):
                found = (likelihood + math.log(p[token]), [*path, token])
                passed[tuple(choice)] = found
                best = max(best, (len(choice), *found), key=lambda b: b[:2])
        text += best[2]
        text.append(order(after(text))[0])
    return text[len(PROMPT) :][:TOKENS]


@given(
    choices=tree_choices(max_depth=3, max_rank=3, max_nodes=10),
    temperature=st.sampled_from([0.5, 1.0]),
    epsilon=st.sampled_from([0.05, 0.09, 0.3]),
    seed=st.integers(0, 100),
)
@settings(max_examples=60)
def test_typical_as_published(choices: list[list[int]], temperature: float, epsilon: float, seed: int) -> None:
    """The chain's truncation, penalty and seed have no say."""
    session = testing.FakeSession(native.Tree(choices), acceptance=1.0, seed=seed, sharpness=4.0, vocab_size=8)
    accept = native.Accept("typical", epsilon=epsilon, delta=math.sqrt(epsilon), model_alone=True, greedy_root=True)
    sampling = native.Sampling(temperature=temperature, top_k=2, repeat_penalty=1.5, seed=seed)
    found = session.generate(PROMPT, max_tokens=TOKENS, sampling=sampling, accept=accept, ignore_eos=True)
    assert found.tokens == published_typical(session, choices, temperature, epsilon, math.sqrt(epsilon))


@given(
    choices=tree_choices(max_depth=3, max_rank=4, max_nodes=10), top_p=st.floats(0.05, 0.95), seed=st.integers(0, 100)
)
@settings(max_examples=60)
def test_all_tokens_of_the_nucleus_rule_lie_in_the_nucleus(choices: list[list[int]], top_p: float, seed: int) -> None:
    session = testing.FakeSession(native.Tree(choices), acceptance=0.7, seed=seed, sharpness=3.0, vocab_size=8)
    sampling = native.Sampling(temperature=0.8, top_k=1, top_p=top_p, seed=seed)
    found = session.generate(
        PROMPT, max_tokens=TOKENS, sampling=sampling, accept=native.Accept("nucleus"), ignore_eos=True
    )
    assert found.stats["accept"] == "nucleus"
    text = list(PROMPT)
    for token in found.tokens:
        p = softmax(session.logits_after(text), 0.8)
        likelier = sum(p[other] for other in order(p)[: order(p).index(token)])
        assert likelier <= top_p + 1e-5
        text.append(token)


def test_a_nucleus_of_one_token_is_greedy() -> None:
    session = testing.FakeSession(native.Tree([[0], [0, 0], [1]]), acceptance=1.0)
    plain = session.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True, accept=native.Accept("greedy"))
    sampling = native.Sampling(temperature=1.0, top_p=0.01, seed=5)
    found = session.generate(
        PROMPT, max_tokens=TOKENS, sampling=sampling, accept=native.Accept("nucleus"), ignore_eos=True
    )
    assert found.tokens == plain.tokens
    assert found.stats["tokens_per_step"] == pytest.approx(3.0, abs=0.2)


@pytest.mark.parametrize("kind", ["exact", "rejection"])
def test_a_greedy_root_belongs_to_the_lossy_rules(kind: str) -> None:
    session = testing.FakeSession(native.Tree([[0], [1]]), acceptance=0.5)
    sampling = native.Sampling(temperature=2.0, seed=3)
    texts = [
        session.generate(
            PROMPT, max_tokens=TOKENS, sampling=sampling, ignore_eos=True, accept=native.Accept(kind, greedy_root=given)
        ).tokens
        for given in (False, True)
    ]
    assert texts[0] == texts[1]
