"""Dynamic trees, with and without prompt lookup, accepted and drafted in the model's own graph: the host's text, one
graph and a few kilobytes a step, graphs used again from step to step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import random_heads
from device_run import run
from fixtures import BASE_HIDDEN, BASE_VOCAB, tiny_base
from test_in_graph import EVERYWHERE, MOST_BYTES

from medusa_cli import native
from medusa_cli.models import demo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")
# Many nodes pay, though the heads are random: they are believed in, and nodes cost next to nothing.
GENEROUS = {"calibration": [[0.5] * 24] * 3, "costs": [[1, 1.0], [32, 1.001]]}
SLOW = {"delay_us": 5_000}  # each graph, whatever it has to do


def grown(vocabulary: int, heads: int, rows: int, kind: str, recycled: int = 0) -> int:
    """Bytes of a step with a dynamic tree, as the engine tells them."""
    sent = native.step_transfers(
        native.Tree([]), vocabulary, BASE_HIDDEN, kind=kind, head_count=heads, output_rows=rows, recycled=recycled
    )
    return sent["grown"]


def padded(nodes: int) -> int:
    return next(size for size in (1, 2, 4, 8) if size >= nodes) if nodes <= 8 else -(-nodes // 8) * 8


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra++", "recurrent"])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=["own", "draft_vocab"])
def lm_head(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def heads(kind: Any, lm_head: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    made = random_heads.random_heads(kind, lm_head, embedding_scale=2.0, from_answer=True)
    return str(random_heads.write(tmp_path_factory.mktemp("heads") / "heads.gguf", made))


@pytest.mark.slow
@pytest.mark.parametrize("lookup", [False, True], ids=["heads", "lookup"])
def test_a_grown_tree_is_one_graph_with_the_host_s_text(
    base: str, heads: str, kind: Any, lm_head: Any, lookup: bool
) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": "dynamic", "lookup": lookup, "prompt": "abc"}
    order |= {"tokens": 80, "start": GENEROUS}
    cpu, device = run(**order, device=False), run(**order, later=SLOW)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    steps = device["stats"]["steps"]
    decodes = steps + 2  # of the prompt: the last token, and those before it
    assert device["counters"]["graphs"] == decodes
    assert device["counters"]["to_host_bytes"] <= MOST_BYTES * (decodes - 1)
    rows = BASE_VOCAB if lm_head == "own" else random_heads.DRAFT_VOCABULARY
    sent = grown(BASE_VOCAB, 3, rows, kind)
    assert device["counters"]["to_host_bytes"] == sent * (decodes - 1)
    assert set(device["operators"]) <= EVERYWHERE
    # Many nodes, of ever other shapes, of a few sizes.
    sizes = [padded(nodes) for nodes in device["nodes"]]
    assert max(sizes) >= 16
    again = sum(size == before for size, before in zip(sizes[1:], sizes[:-1], strict=True))
    assert again >= 0.5 * steps
    assert device["reused_graphs"] >= 0.9 * again


def test_deep_trees_bring_no_more(base: str, tmp_path: Path) -> None:
    """Twelve heads: fewer nodes are asked below, so that the candidates stay below 4 KB."""
    heads = random_heads.random_heads("hydra", heads=12)
    order: dict[str, Any] = {"model": base, "heads": str(random_heads.write(tmp_path / "heads.gguf", heads))}
    order |= {"tree": "dynamic", "prompt": "abc", "tokens": 20}
    cpu, device = run(**order, device=False), run(**order)
    assert device["host_reason"] == "the vocabulary is smaller than what is found"  # of 320 tokens
    assert device["tokens"] == cpu["tokens"]
    assert grown(32000, 12, 32000, "hydra") <= MOST_BYTES


@pytest.mark.model
def test_real_heads_grow_their_trees(demo_model_path: Path) -> None:
    order: dict[str, Any] = {"model": str(demo_model_path), "heads": str(demo.DEMO_HEADS), "tree": "dynamic"}
    # Each pass takes so long that nodes are nearly free.
    device = run(**order, tokens=40, lookup=True, explain=True, later={"delay_us": 20_000})
    assert device["host_reason"] == ""
    assert device["explained"]
    assert device["stats"]["tokens_per_step"] > 1.3
    assert device["counters"]["to_host_bytes"] <= MOST_BYTES * (device["stats"]["steps"] + 1)
