"""Sampled answers on a device: the model's graph names the likeliest tokens of each row, and the heads draft in a graph
behind it. The same seed gives the host's text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _native_testing as testing
import numpy as np
import pytest
import random_heads
from device_run import run
from fixtures import tiny_base
from hypothesis import given, settings
from hypothesis import strategies as st
from test_in_graph import DEMO_MEDUSA, EVERYWHERE, UNEVEN, WIDE

NEEDS_DEVICE = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")
MOST_BYTES = 16384  # at 16 nodes
RANKED = 40


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra++", "recurrent"])
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = random_heads.random_heads(request.param, embedding_scale=2.0, from_answer=True)
    return str(random_heads.write(tmp_path_factory.mktemp("heads") / "heads.gguf", made))


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(1, 1500), st.integers(0, 1 << 30), st.sampled_from([0.0, 0.01, 1.0]))
def test_the_likeliest_tokens_are_the_host_s(rows: int, length: int, seed: int, grain: float) -> None:
    """grain: of logits that are rounded, so that many are equal."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, length)).astype(np.float32)
    if grain:
        logits = (np.round(logits / grain) * grain).astype(np.float32)
    if seed % 3 == 0:
        logits[0, rng.integers(length)] = np.nan
    for row, found in zip(logits, testing.ranked_in_graph(logits), strict=True):
        order = np.argsort(-row, kind="stable")[: RANKED + 1]
        tie = length > RANKED and row[order[RANKED - 1]] == row[order[RANKED]]
        if np.isnan(row).any() or tie:
            assert found == []
        else:
            assert found == [(int(token), float(row[token])) for token in order[:RANKED]]


@pytest.mark.slow
@NEEDS_DEVICE
@pytest.mark.parametrize(
    ("tree", "accept"),
    [(WIDE, "exact"), (WIDE, "typical"), (UNEVEN, "exact"), ("dynamic", "exact")],
    ids=["wide", "typical", "uneven", "dynamic"],
)
def test_the_same_seed_gives_the_host_s_text(base: str, heads: str, tree: Any, accept: str) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": tree, "prompt": "abc", "tokens": 60}
    order |= {"temperature": 1.0, "accept": accept}
    cpu, device = run(**order, device=False), run(**order)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    if tree != "dynamic":
        assert device["nodes"] == cpu["nodes"]
        assert device["stats"]["acceptance_per_depth"] == cpu["stats"]["acceptance_per_depth"]
    if tree == UNEVEN:
        decodes = device["stats"]["steps"] + 1
        assert device["counters"]["to_host_bytes"] <= MOST_BYTES * decodes
        # The model's graph and the heads'; before them the first tokens of the prompt.
        assert device["counters"]["graphs"] <= 2 * decodes + 1
        assert device["reused_graphs"] >= 0.9 * decodes
    assert set(device["operators"]) <= EVERYWHERE


@pytest.mark.slow
@NEEDS_DEVICE
@pytest.mark.model
@pytest.mark.parametrize("tree", [None, "dynamic"], ids=["16", "dynamic"])
def test_real_heads_sample_the_host_s_text(demo_model_path: Path, tree: Any) -> None:
    wide = [[0], [1], [2], [3], [4], [0, 0], [0, 1], [1, 0], [0, 2], [2, 0], [1, 1], [0, 0, 0], [0, 0, 1], [0, 1, 0]]
    order = {"model": str(demo_model_path), "heads": str(DEMO_MEDUSA), "tree": tree or [*wide, [1, 0, 0]]}
    order |= {"tokens": 40, "temperature": 0.8}
    cpu, device = run(**order, device=False), run(**order)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    if tree is None:
        assert max(device["nodes"]) == 16
        assert device["counters"]["to_host_bytes"] <= MOST_BYTES * (device["stats"]["steps"] + 1)


@NEEDS_DEVICE
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"top_k": 0}, "more than the 40 likeliest tokens are needed"),
        ({"top_k": 41}, "more than the 40 likeliest tokens are needed"),
        ({"accept": "nucleus"}, "more than the 40 likeliest tokens are needed"),
    ],
)
def test_other_samplers_are_the_host_s(base: str, tmp_path: Path, changed: dict[str, Any], reason: str) -> None:
    heads = str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads("hydra")))
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": UNEVEN, "prompt": "abc", "temperature": 1.0}
    device = run(**order, **changed)
    assert device["host_reason"] == reason
    assert device["tokens"] == run(**order, **changed, device=False)["tokens"]
