"""The engine on a GPU that is none: same text, true prices, transfers counted, faults that end in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import random_heads
from device_run import run
from fixtures import BASE_VOCAB, tiny_base

from medusa_cli.models import demo

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")

TREE = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]
DELAY_MS = 20


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


@pytest.fixture(scope="module", params=["medusa", "hydra", "hydra++", "recurrent"])
def heads(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("heads") / f"{request.param}.gguf"
    return str(random_heads.write(path, random_heads.random_heads(request.param)))


@pytest.mark.parametrize("gpu_layers", [-1, 1, 0])
def test_the_text_is_that_of_the_cpu(base: str, heads: str, gpu_layers: int) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": TREE, "prompt": "abc"}
    cpu, device = run(**order, device=False), run(**order, gpu_layers=gpu_layers)
    assert (cpu["gpu"], device["gpu"]) == (False, gpu_layers != 0)
    assert (cpu["backend"], device["backend"]) == ("CPU", "PRETENDED" if gpu_layers else "CPU")
    assert (device["device"] == "a GPU that is none") == (gpu_layers != 0)
    assert device["tokens"] == cpu["tokens"]
    assert device["nodes"] == cpu["nodes"]
    assert (device["counters"]["graphs"] > 0) == (gpu_layers != 0)


def test_transfers_are_counted(base: str, heads: str) -> None:
    found = run(model=base, heads=heads, tree=TREE, prompt="abc", temperature=1.0, top_k=0)
    rows = found["stats"]["steps"] * (len(TREE) + 1)
    # What the host samples from among all tokens crosses the bus: logits of every node, and the state that heads read.
    assert found["counters"]["to_host_bytes"] >= rows * BASE_VOCAB * 4
    assert 0 < found["counters"]["to_device_bytes"] < found["counters"]["to_host_bytes"]


def test_steps_take_as_long_as_the_device(base: str, heads: str) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": TREE, "prompt": "abc", "tokens": 8}
    found = run(**order, temperature=1.0, top_k=0, later={"delay_us": 1000 * DELAY_MS})
    steps, timings = found["stats"]["steps"], found["stats"]["timings_ms"]
    assert timings["verify"] >= DELAY_MS * steps
    # Medusa heads are one graph for all levels, the others one for each.
    levels = 1 if Path(heads).stem == "medusa" else max(len(choice) for choice in TREE)
    assert timings["draft"] >= DELAY_MS * steps * levels
    assert timings["accept"] < DELAY_MS


@pytest.mark.slow
@pytest.mark.model
def test_drafts_are_made_where_their_prices_pay(demo_model_path: Path) -> None:
    order: dict[str, Any] = {"model": str(demo_model_path), "heads": str(demo.DEMO_HEADS), "tree": "dynamic"}
    # Where heads are graphs of their own and take as long as the model, they are asked less and less.
    apart = {"temperature": 0.01, "top_k": 0}
    dear = run(**order, **apart, tokens=150, later={"delay_us": 1000 * DELAY_MS})
    asked = [nodes > 1 for nodes in dear["nodes"]]
    assert sum(asked[len(asked) // 2 :]) <= 0.2 * len(asked) / 2
    timings = dear["stats"]["timings_ms"]
    assert timings["draft"] <= 0.25 * timings["verify"]
    # Where only the model's graphs take longer, further nodes are nearly free.
    cheap = run(**order, tokens=80, later={"delay_us": 1000 * DELAY_MS, "delays_heads": False})
    cpu = run(**order, tokens=80, device=False)
    assert cheap["stats"]["tokens_per_step"] >= 0.95 * cpu["stats"]["tokens_per_step"]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(("per_token", "drafts"), [(0.02, True), (1.0, False)])
def test_dynamic_trees_find_out_what_nodes_cost(demo_model_path: Path, per_token: float, drafts: bool) -> None:
    plain_ms = 200  # long beside what drafts take, also where other programs run
    passes = [(n, int(1000 * plain_ms * (1 + per_token * (n - 1)))) for n in range(1, 33)]
    found = run(
        model=str(demo_model_path),
        heads=str(demo.DEMO_HEADS),
        tree="dynamic",
        tokens=60,
        later={"passes_us": passes},
    )
    learned = found["nodes"][len(found["nodes"]) // 2 :]
    nodes = sum(learned) / len(learned)
    if drafts:
        assert nodes >= 4
        assert found["stats"]["tokens_per_step"] >= 1.6
    else:
        assert nodes <= 1.4
        assert found["stats"]["timings_ms"]["verify"] <= 1.15 * plain_ms * len(found["tokens"])


@pytest.mark.slow
@pytest.mark.model
def test_the_cpu_is_weighed_against_a_device(demo_model_path: Path) -> None:
    order: dict[str, Any] = {"weigh_cpu": True, "model": str(demo_model_path), "heads": str(demo.DEMO_HEADS)}
    slow = run(**order, behaviour={"delay_us": 1000 * DELAY_MS})
    assert slow["cpu_speedup"] > 1.5
    assert slow["lines"] == [
        f"plain decoding is {slow['cpu_speedup']:.2f} times as fast on the CPU: run and tune this model with -ngl 0"
    ]
    # The device computes with llama.cpp's kernels, which are faster than these.
    fast = run(**order, isa="scalar")
    assert fast["cpu_speedup"] < 0.9
    assert fast["lines"] == []


@pytest.mark.parametrize("allocation", [1, 2, 3])
def test_an_allocation_that_fails_is_one_line(base: str, heads: str, allocation: int) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": "dynamic", "prompt": "abc"}
    found = run(**order, behaviour={"failing_allocation": allocation})
    if not found["error"]:  # no room for drafts in the model's graph: the host drafts
        assert found["host_reason"]
        assert found["tokens"] == run(**order)["tokens"]
        return
    assert "\n" not in found["error"]


def test_a_device_that_is_too_small_is_one_line(base: str) -> None:
    found = run(model=base, behaviour={"memory": 1 << 16})
    assert found["error"]
    assert "\n" not in found["error"]


@pytest.mark.parametrize("graph", [1, 7, 20])
def test_a_graph_that_fails_ends_the_answer_with_the_text_so_far(base: str, heads: str, graph: int) -> None:
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": TREE, "prompt": "abc"}
    whole, cut = run(**order), run(**order, later={"failing_graph": graph})
    assert cut["error"]
    assert "\n" not in cut["error"]
    assert cut["tokens"] == whole["tokens"][: len(cut["tokens"])]


def test_hydra_plus_needs_no_fused_attention(base: str, tmp_path: Path) -> None:
    heads = str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads("hydra++")))
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": TREE, "prompt": "abc"}
    fused, unfused = run(**order), run(**order, behaviour={"missing_operators": ["FLASH_ATTN_EXT"]})
    assert unfused["tokens"] == fused["tokens"] == run(**order, device=False)["tokens"]
    # The heads still run there: as many graphs, and what the tree is filled with comes to the host.
    assert unfused["counters"]["to_host_bytes"] >= fused["counters"]["to_host_bytes"]


@pytest.mark.parametrize("operator", ["ROPE", "SOFT_MAX"])
def test_an_operator_that_a_device_lacks_is_named(base: str, tmp_path: Path, operator: str) -> None:
    heads = str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads("hydra++")))
    # Where the host drafts: greedy steps in the model's graph need no SOFT_MAX.
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": TREE, "prompt": "abc", "top_k": 0}
    found = run(**order, temperature=1.0, behaviour={"missing_operators": [operator]})
    assert found["error"] == (
        f"PRETENDED0 does not support {operator}, which the heads need: use --no-spec or --device none"
    )


@pytest.mark.parametrize(("gpu_layers", "layers"), [(-1, 2), (1, 0)])
def test_heads_read_the_device_s_copy_of_a_tied_output_matrix(tmp_path: Path, gpu_layers: int, layers: int) -> None:
    base = str(tiny_base(tmp_path / "base.gguf", tied=True))
    heads = str(random_heads.write(tmp_path / "heads.gguf", random_heads.random_heads("medusa", "base")))
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": TREE, "prompt": "abc"}
    device = run(**order, gpu_layers=gpu_layers)
    assert device["devices"] == {"PRETENDED0": [layers, True], "CPU": [2 - layers, False]}
    assert device["tokens"] == run(**order, device=False)["tokens"]
