"""Logprobs of emitted tokens: the model's own, whatever drafts and however tokens are chosen."""

from __future__ import annotations

import _native_testing as testing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_engine_fake import PROMPT, tree_choices

from medusa_cli import native


@given(
    choices=tree_choices(),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    temperature=st.sampled_from([0.0, 1.0]),
    most=st.integers(0, 40),
)
def test_pieces_tell_the_models_own_chances(
    choices: list[list[int]], acceptance: float, temperature: float, most: int
) -> None:
    session = testing.FakeSession(native.Tree(choices), acceptance=acceptance, seed=3)
    sampling = native.Sampling(temperature=temperature, repeat_penalty=1.3, logit_bias={4: 2.0}, seed=5)
    pieces: list[native.Piece] = []
    session.generate(PROMPT, max_tokens=20, sampling=sampling, ignore_eos=True, logprobs=most, on_step=pieces.extend)
    text = list(PROMPT)
    for piece in pieces:
        if piece.token < 0:
            continue
        logits = np.asarray(session.logits_after(text), np.float64)
        logprobs = logits - np.logaddexp.reduce(logits)
        assert piece.logprob == pytest.approx(logprobs[piece.token], abs=1e-5)
        order = np.argsort(-logits, kind="stable")[:most].tolist()
        assert [token for token, _ in piece.top] == order
        assert [chance for _, chance in piece.top] == pytest.approx(logprobs[order], abs=1e-5)
        text.append(piece.token)


def test_pieces_tell_nothing_unless_asked() -> None:
    session = testing.FakeSession(native.Tree([[0]]))
    pieces: list[native.Piece] = []
    session.generate(PROMPT, max_tokens=5, on_step=pieces.extend)
    assert {(piece.logprob, len(piece.top)) for piece in pieces} == {(None, 0)}
