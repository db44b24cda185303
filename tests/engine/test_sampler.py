"""The sampler chain by itself: penalties against their definition, temperatures next to zero, logits that are none."""

from __future__ import annotations

import math

import _native_testing as testing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native

TOKENS = 300


def defined(
    logits: list[float],
    history: list[int],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repeat_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
    repeat_last_n: int,
    logit_bias: dict[int, float],
) -> dict[int, float]:
    """llama.cpp's chain over the whole vocabulary: bias, penalties, top-k, top-p, min-p, temperature."""
    values = np.array(logits, dtype=np.float64)
    for token, bias in logit_bias.items():
        values[token] += bias
    window = history if repeat_last_n < 0 else history[len(history) - min(repeat_last_n, len(history)) :]
    for token in set(window):
        count = window.count(token)
        values[token] *= repeat_penalty if values[token] <= 0 else 1 / repeat_penalty
        values[token] -= count * frequency_penalty + presence_penalty
    order = [int(token) for token in np.argsort(-values, kind="stable")[: top_k or TOKENS]]
    p = np.exp(values[order] - values[order[0]])
    p /= p.sum()
    kept = 1
    while kept < len(order) and p[:kept].sum() < top_p:
        kept += 1
    kept = sum(p[:kept] >= min_p * p[0])
    warm = np.exp((values[order[:kept]] - values[order[0]]) / temperature)
    return dict(zip(order[:kept], (warm / warm.sum()).tolist(), strict=True))


@given(
    seed=st.integers(0, 1 << 30),
    history=st.lists(st.integers(0, TOKENS - 1), max_size=120),
    favoured=st.integers(0, 120),
    top_k=st.sampled_from([0, 1, 5, 40]),
    repeat_penalty=st.sampled_from([1.0, 1.05, 1.5, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    repeat_last_n=st.sampled_from([-1, 0, 16, 64]),
    bias=st.dictionaries(st.integers(0, TOKENS - 1), st.sampled_from([-math.inf, -3.0, 4.0]), max_size=3),
)
def test_penalties_mean_what_they_mean_over_the_whole_vocabulary(
    seed: int,
    history: list[int],
    favoured: int,
    top_k: int,
    repeat_penalty: float,
    frequency_penalty: float,
    presence_penalty: float,
    repeat_last_n: int,
    bias: dict[int, float],
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, TOKENS)
    # What was said is likely: more of it is lowered than there are candidates to spare.
    for token in history[:favoured]:
        row[token] = 10 + rng.random()
    logits = row.astype(np.float32).tolist()
    settings = {
        "temperature": 0.8, "top_k": top_k, "top_p": 0.97, "min_p": 0.01, "repeat_penalty": repeat_penalty,
        "frequency_penalty": frequency_penalty, "presence_penalty": presence_penalty, "repeat_last_n": repeat_last_n,
        "logit_bias": bias,
    }  # fmt: skip
    found = dict(testing.distribution(logits, native.Sampling(**settings), history))  # type: ignore[arg-type]
    expected = defined(logits, history, **settings)  # type: ignore[arg-type]
    # A token at the very edge of a nucleus may fall either way in single precision.
    unsure = set(found) ^ set(expected)
    assert all(expected.get(token, found.get(token, 0)) < 0.02 for token in unsure)
    if not unsure:
        assert found == pytest.approx(expected, abs=2e-5)
    greedy = testing.distribution(logits, native.Sampling(**{**settings, "temperature": 0.0}), history)  # type: ignore[arg-type]
    assert greedy == [(max(expected, key=lambda token: expected[token]), 1.0)]


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-45, 1e-40, 1e-38, 9e-6, math.nan])
@pytest.mark.parametrize("more", [{}, {"top_k": 0}, {"repeat_penalty": 1.1}])
def test_next_to_zero_the_likeliest_token_is_taken(temperature: float, more: dict[str, float]) -> None:
    logits = [80.0, 90.0, 89.999, -math.inf]
    sampling = native.Sampling(temperature=temperature, **more)  # type: ignore[arg-type]
    assert testing.distribution(logits, sampling) == [(1, 1.0)]


def test_from_the_lowest_temperature_on_tokens_are_drawn() -> None:
    shares = dict(testing.distribution([1.0, 1.0], native.Sampling(temperature=native.LOWEST_TEMPERATURE)))
    assert shares == {0: 0.5, 1: 0.5}
    assert testing.distribution([1.0, 1e30], native.Sampling(temperature=0.5, top_k=0)) == [(1, 1.0)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("more", [{}, {"top_k": 0}, {"repeat_penalty": 1.1}, {"logit_bias": {1: 2.0}}])
def test_no_number_is_an_error(temperature: float, more: dict[str, float]) -> None:
    sampling = native.Sampling(temperature=temperature, **more)  # type: ignore[arg-type]
    with pytest.raises(native.NativeError, match="the model's output is not a number"):
        testing.distribution([math.nan] * 100, sampling)
    found = testing.distribution([math.nan, 2.0, math.nan], sampling)
    assert found == [(1, 1.0)]


@pytest.mark.parametrize(
    ("number", "refused"),
    [
        ({"top_p": math.nan}, "top-p must be at least 0"),
        ({"top_p": -0.1}, "top-p must be at least 0"),
        ({"repeat_penalty": 0.0}, "above 0"),
        ({"repeat_penalty": math.nan}, "above 0"),
        ({"frequency_penalty": math.inf}, "must be finite"),
        ({"presence_penalty": math.nan}, "must be finite"),
    ],
)
def test_refuses_numbers_without_a_meaning(number: dict[str, float], refused: str) -> None:
    with pytest.raises(native.NativeError, match=refused):
        native.Sampling(**number)  # type: ignore[arg-type]


@pytest.mark.parametrize("top_p", [0.0, 1e-45])
def test_the_nucleus_holds_a_token(top_p: float) -> None:
    session = testing.FakeSession(native.Tree([[0], [1], [0, 0]]), seed=3)
    sampling = native.Sampling(temperature=0.7, top_p=top_p)
    answer = session.generate([1, 2, 3], max_tokens=8, sampling=sampling, accept=native.Accept("nucleus"))
    assert len(answer.tokens) == 8
