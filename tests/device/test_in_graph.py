"""Acceptance and drafts in the model's own graph: the host's results, one graph a step, a few bytes to the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import _native_testing as testing
import device_acceptance
import numpy as np
import pytest
import random_heads
from device_run import run
from fixtures import BASE_VOCAB, tiny_base
from hypothesis import given, settings
from hypothesis import strategies as st

from medusa_cli import native
from medusa_cli.decoding import trees

NEEDS_DEVICE = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")
# So many candidates that some are right by chance, though the heads are random.
WIDE = [[n] for n in range(31)] + [[n, 0] for n in range(20)] + [[n, 0, 0] for n in range(12)]
UNEVEN = [[2], [0], [2, 1], [0, 0], [2, 0], [0, 3], [2, 0, 1], [0, 3, 0]]
MOST_BYTES = 4096
DEMO_MEDUSA = Path(__file__).parents[1] / "data" / "demo-medusa.gguf"

# What CUDA, Metal and Vulkan all have, by their supports_op() in llama.cpp's source: operators, and the type they read.
# Products and GET_ROWS of weights come in the types of the model.
EVERYWHERE = {
    *(f"{name} f32" for name in (
        "ABS", "ADD", "ARGMAX", "ARGSORT", "CLAMP", "CONCAT", "CONT", "GET_ROWS", "LEAKY_RELU", "MUL", "POOL_1D",
        "RELU", "REPEAT", "RESHAPE", "RMS_NORM", "ROPE", "SCALE", "SET_ROWS", "SILU", "STEP", "SUB", "SUM_ROWS", "VIEW",
        "FLASH_ATTN_EXT", "PERMUTE", "SWIGLU", "SOFT_MAX",
    )),
    *(f"MUL_MAT {type_}" for type_ in ("f32", "f16")),
    "ARANGE", "CPY f16 f32", "CPY f32 f16", "CPY f32 f32", "CPY f32 i32", "CPY i32 f32", "GET_ROWS i32",
    *(f"{name} {type_}" for name in ("PERMUTE", "RESHAPE", "VIEW") for type_ in ("i32", "f16")),
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


KINDS = [
    ("medusa", "own", False),
    ("medusa", "draft_vocab", True),
    ("hydra", "own", False),
    ("hydra", "draft_vocab", False),
    ("hydra++", "own", True),
    ("recurrent", "base", False),
    ("recurrent", "draft_vocab", False),
]


@pytest.fixture(scope="module", params=KINDS, ids=lambda one: "-".join(map(str, one)))
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Kind, output matrices, whether behind a prefix layer that reads the answer."""
    kind, lm_head, prefix = request.param
    made = random_heads.random_heads(kind, lm_head, embedding_scale=2.0, prefix=prefix, from_answer=prefix)
    return str(random_heads.write(tmp_path_factory.mktemp("heads") / "heads.gguf", made))


@pytest.mark.slow
@NEEDS_DEVICE
def test_random_trees_are_accepted_as_on_the_host() -> None:
    command = [sys.executable, device_acceptance.__file__, "400", "25"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["trees"] == 10_000
    assert found["deep"] > 4000
    assert found["nan"] > 1000


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(1, 2000), st.data())
def test_the_largest_numbers_are_found_in_order(rows: int, length: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, min(length, 20)))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    numbers = rng.standard_normal((rows, length)).astype(np.float32)
    expected = np.argsort(-numbers, axis=1, kind="stable")[:, :count]
    assert (testing.largest_in_graph(numbers, count) == expected).all()
    # Among equals, and without any number, whichever: but each place once.
    numbers = np.round(numbers)
    numbers[0] = np.nan
    for places in testing.largest_in_graph(numbers, count):
        assert len(set(places)) == count
        assert set(places) <= set(range(length))


@NEEDS_DEVICE
@pytest.mark.parametrize("tree", [WIDE, UNEVEN], ids=["wide", "uneven"])
def test_a_step_is_one_graph_with_the_host_s_text(base: str, heads: str, tree: list[list[int]]) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": tree, "prompt": "abc", "tokens": 120}
    cpu, device = run(**order, device=False), run(**order)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    assert device["nodes"] == cpu["nodes"]
    assert device["stats"]["acceptance_per_depth"] == cpu["stats"]["acceptance_per_depth"]
    assert tree is not WIDE or device["stats"]["tokens_per_step"] > 1
    decodes = device["stats"]["steps"] + 2  # of the prompt: the last token, and those before it
    assert device["counters"]["graphs"] == decodes
    assert device["counters"]["to_host"] == decodes - 1
    assert device["counters"]["to_host_bytes"] <= MOST_BYTES * (decodes - 1)
    assert device["reused_graphs"] >= 0.9 * decodes
    assert set(device["operators"]) <= EVERYWHERE


@NEEDS_DEVICE
def test_plain_decoding_is_in_the_graph_too(base: str) -> None:
    order: dict[str, Any] = {"model": base, "prompt": "abc", "tokens": 40}
    device = run(**order)
    assert device["host_reason"] == ""
    assert device["tokens"] == run(**order, device=False)["tokens"]


@NEEDS_DEVICE
def test_drafting_takes_its_time_within_the_verification(base: str, heads: str) -> None:
    delay_ms = 20
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": UNEVEN, "prompt": "abc", "tokens": 8}
    found = run(**order, later={"delay_us": 1000 * delay_ms})
    steps, timings = found["stats"]["steps"], found["stats"]["timings_ms"]
    assert timings["verify"] >= delay_ms * steps
    assert timings["draft"] + timings["accept"] < delay_ms


@NEEDS_DEVICE
@pytest.mark.model
def test_real_heads_draft_the_same_tree(demo_model_path: Path) -> None:
    tree = native.Tree(trees.named(trees.DEFAULT_GPU).choices).clipped(3, BASE_VOCAB, 12)
    order = {"model": str(demo_model_path), "heads": str(DEMO_MEDUSA), "tree": tree.choices, "tokens": 40}
    cpu, device = run(**order, device=False), run(**order)
    assert device["tokens"] == cpu["tokens"]
    assert device["stats"]["acceptance_per_depth"] == cpu["stats"]["acceptance_per_depth"]
    assert device["stats"]["tokens_per_step"] > 1.3
    assert device["counters"]["to_host_bytes"] <= MOST_BYTES * (device["stats"]["steps"] + 1)


@NEEDS_DEVICE
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gpu_layers": 0}, "the output matrix is on the CPU"),
        ({"behaviour": {"missing_operators": ["POOL_1D"]}}, "PRETENDED0 lacks POOL_1D"),
    ],
)
def test_where_it_cannot_be_the_host_does_it(base: str, heads: str, changed: dict[str, Any], reason: str) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": UNEVEN, "prompt": "abc", **changed}
    device = run(**order)
    assert device["host_reason"] == reason
    assert device["tokens"] == run(**order, device=False)["tokens"]


@NEEDS_DEVICE
@pytest.mark.parametrize(
    ("drafter", "reason"),
    [
        ("draft_model", "drafts come from a draft model, or from layers for further tokens"),
        ("lookahead", "lookahead decoding reads the logits of all its branches"),
    ],
)
def test_drafters_that_the_graph_does_not_have(base: str, drafter: str, reason: str) -> None:
    order: dict[str, Any] = {"model": base, "drafter": drafter, "prompt": "abc"}
    device = run(**order)
    assert device["host_reason"] == reason
    assert device["tokens"] == run(**order, device=False)["tokens"]


@NEEDS_DEVICE
def test_hydra_s_copy_of_the_embeddings_needs_memory(base: str, tmp_path: Path) -> None:
    heads = str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads("hydra")))
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": UNEVEN, "prompt": "abc"}
    # After the weights and the heads.
    device = run(**order, behaviour={"failing_allocation": 3})
    assert device["host_reason"] == "no memory for a copy of the token embeddings on the device"
    assert device["tokens"] == run(**order, device=False)["tokens"]


@pytest.mark.slow
@NEEDS_DEVICE
@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("graph", [1, 2, 9])
def test_a_fault_keeps_the_text(base: str, heads: str, graph: int, lost: bool) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": WIDE, "prompt": "abc"}
    whole, cut = run(**order), run(**order, later={"failing_graph": graph, "lost": lost})
    assert cut["error"]
    assert "\n" not in cut["error"]
    assert len(cut["tokens"]) < len(whole["tokens"])
    assert cut["tokens"] == whole["tokens"][: len(cut["tokens"])]


@pytest.mark.slow
@NEEDS_DEVICE
def test_one_session_changes_between_graph_and_host(base: str, heads: str) -> None:
    """Sampled, penalized, cancelled, up to the end of the context: the answers of the CPU."""
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": WIDE, "prompt": "abc", "conversation": True}
    cpu, device = run(**order, device=False), run(**order)
    assert device["answers"] == cpu["answers"]
    assert device["reasons"] == ["", "", "", "logits are penalized or biased", "", ""]
    assert [stop for _, stop in cpu["answers"]] == [*["length"] * 4, "cancelled", "context_full"]
