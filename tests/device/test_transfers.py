"""What `medusa doctor` says that a step sends to the host, against what the pretended device counts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import device_cli
import pytest
import random_heads
from device_run import run
from fixtures import BASE_HIDDEN, BASE_VOCAB, tiny_base

from medusa_cli import native
from medusa_cli.decoding import trees
from medusa_cli.models import demo

TREES = {
    "16": native.Tree(trees.named(trees.DEFAULT_GPU).choices).clipped(3, BASE_VOCAB, 16),
    "wide": native.Tree([[n] for n in range(12)] + [[n, 0] for n in range(12)] + [[0, 0, 0]]),
}
NEEDS_DEVICE = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")


def on_host(told: dict[str, int]) -> int:
    """Bytes of a step that the host accepts and drafts."""
    return told["logits"] + told["states"] + told["heads"]


def counted(order: dict[str, Any]) -> float:
    """Bytes that a step sends, without those of the prompt."""
    short, long = run(**order, tokens=6), run(**order, tokens=30)
    sent = long["counters"]["to_host_bytes"] - short["counters"]["to_host_bytes"]
    return float(sent / (long["stats"]["steps"] - short["stats"]["steps"]))


@pytest.mark.slow
@NEEDS_DEVICE
@pytest.mark.parametrize(("kind", "prefix"), [("medusa", False), ("medusa", True), ("hydra", False), ("hydra++", True)])
@pytest.mark.parametrize("lm_head", ["own", "draft_vocab"])
@pytest.mark.parametrize("shape", list(TREES))
def test_the_formula_is_what_the_device_counts(
    tmp_path: Path, kind: Any, prefix: bool, lm_head: Any, shape: str
) -> None:
    tree = TREES[shape]
    base = str(tiny_base(tmp_path / "base.gguf"))
    heads = str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads(kind, lm_head, prefix=prefix)))
    order = {"model": base, "heads": heads, "tree": tree.choices, "prompt": "abc"}
    found = counted({**order, "temperature": 1.0, "top_k": 0})
    rows = BASE_VOCAB if lm_head == "own" else random_heads.DRAFT_VOCABULARY
    told = native.step_transfers(tree, BASE_VOCAB, BASE_HIDDEN, kind=kind, output_rows=rows, has_prefix=prefix)
    assert found == pytest.approx(on_host(told), rel=0.05)
    assert counted(order) == told["greedy"]
    sampled = told["sampled"]
    assert counted({**order, "temperature": 1.0}) == pytest.approx(sampled, rel=0.2)
    assert sampled <= 16384 * max(tree.size, 16) / 16


@NEEDS_DEVICE
def test_plain_decoding_sends_one_row_of_logits_or_a_token(tmp_path: Path) -> None:
    order = {"model": str(tiny_base(tmp_path / "base.gguf")), "prompt": "abc"}
    found = counted({**order, "temperature": 1.0, "top_k": 0})
    told = native.step_transfers(native.Tree([]), BASE_VOCAB, BASE_HIDDEN)
    assert found == on_host(told) == BASE_VOCAB * 4
    assert counted(order) == told["greedy"] == 12


@pytest.mark.parametrize(
    ("kind", "prefix", "heads"),
    [
        ("medusa", False, 4 * 2 * 100),
        ("medusa", True, 4 * (2 * 100 + 8)),
        ("hydra", False, 4 * 4 * 100),
        ("hydra++", True, 4 * (4 * 100 + 8)),
    ],
)
def test_what_a_tree_sends(kind: str, prefix: bool, heads: int) -> None:
    """One column of each of Medusa's heads; of Hydra's one below each parent: the root, and three nodes."""
    tree = native.Tree([[0], [1], [2], [0, 0], [1, 0], [2, 0]])
    told = native.step_transfers(tree, 50, 8, kind=kind, output_rows=100, has_prefix=prefix)
    assert (told["logits"], told["states"], told["heads"]) == (4 * 7 * 50, 4 * 7 * 8, heads)


@NEEDS_DEVICE
@pytest.mark.model
def test_doctor_names_what_runs_where(demo_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_cli.ENVIRONMENT, demo.DEMO_VARIABLE, str(demo_model_path))
    code, out, err = device_cli.run({}, "doctor", "demo")
    assert (code, err) == (0, "")
    assert "PRETENDED0: a GPU that is none (gpu, PRETENDED, 8.0 GiB of 8.0 GiB free)" in out
    assert "\nPRETENDED0: 30 of 30 layers, output matrix, draft heads\n" in out
    assert "\nCPU: embedding rows, trees, sampling, acceptance\n" in out
    assert "\nTo the host in a step of 16 nodes: 3.4 MB (logits 3.1 MB, states 36.9 kB, rows of the heads" in out
    assert "\nSteps are accepted and drafted in the model's graph, 96 bytes to the host at temperature 0 (" in out
    code, out, err = device_cli.run({"memory": 150 << 20}, "doctor", "demo")
    assert (code, err.count("\n")) == (0, 1)
    assert "of 30 layers, embedding rows, trees, sampling, acceptance\n" in out
