"""What the model's own graph does beside accepting and drafting: it names likely tokens for recycling, reads the prompt
for Hydra++, leaves drafts out of plain steps, and stays within two splits and one wait a step.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import random_heads
from device_run import run
from fixtures import BASE_HIDDEN, BASE_VOCAB, tiny_base
from test_grown_in_graph import GENEROUS, SLOW, grown, padded
from test_in_graph import EVERYWHERE, MOST_BYTES, UNEVEN, WIDE

from medusa_cli import native

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the device needs POSIX memory protection")
LONG = "The quick brown fox jumps over the lazy dog and runs. " * 5


def greedy(choices: list[list[int]], kind: str | None, recycled: int = 0) -> int:
    """Bytes of a step with this tree, as the engine tells them."""
    tree = native.Tree(choices)
    return native.step_transfers(tree, BASE_VOCAB, BASE_HIDDEN, kind=kind, recycled=recycled)["greedy"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf"))


@pytest.fixture(scope="module")
def write(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Random heads as a file: their path."""
    folder = tmp_path_factory.mktemp("heads")

    def written(kind: Any, **how: Any) -> str:
        name = "-".join([kind, *(f"{key}={value}" for key, value in how.items())])
        return str(random_heads.write(folder / f"{name}.gguf", random_heads.random_heads(kind, **how)))

    return written


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, "medusa", "hydra", "hydra++", "recurrent"])
@pytest.mark.parametrize("lookup", [False, True], ids=["alone", "lookup"])
def test_recycled_tokens_are_learned_from_the_graph(base: str, write: Any, kind: Any, lookup: bool) -> None:
    order: dict[str, Any] = {"model": base, "recycling": True, "lookup": lookup, "prompt": "abc", "tokens": 80}
    if kind:
        order |= {"heads": write(kind, from_answer=kind == "hydra++"), "tree": "dynamic", "start": GENEROUS}
    cpu, device = run(**order, device=False), run(**order, later=SLOW)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    assert device["stats"]["tokens_per_step"] > 1
    decodes = device["stats"]["steps"] + 2  # of the prompt: the last token, and those before it
    assert device["counters"]["graphs"] == decodes
    assert device["counters"]["waits"] <= decodes
    sizes = [1, *(padded(nodes) for nodes in device["nodes"])]
    sent = [grown(BASE_VOCAB, 3, BASE_VOCAB, kind, n) if kind else greedy([], None, n) for n in sizes]
    assert max(sent) <= MOST_BYTES
    # A step that rests brings no drafts.
    assert device["counters"]["to_host_bytes"] <= sum(sent)
    if kind is None:
        assert device["counters"]["to_host_bytes"] == sum(sent)
    assert set(device["operators"]) <= EVERYWHERE


def test_sampled_answers_recycle_the_same_tokens(base: str) -> None:
    order: dict[str, Any] = {"model": base, "recycling": True, "prompt": "abc", "tokens": 80, "temperature": 0.7}
    cpu, device = run(**order, device=False), run(**order, later=SLOW)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    assert device["counters"]["to_host_bytes"] <= 83 * 4 * sum(map(padded, [1, *device["nodes"]]))


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "prefix"), [("medusa", False), ("hydra", False), ("hydra++", True), ("medusa", True)])
def test_plain_steps_draft_nothing(base: str, write: Any, kind: Any, prefix: bool, temperature: float) -> None:
    """After two plain steps the heads draft as if there had been none."""
    heads = write(kind, prefix=prefix, from_answer=prefix)
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": WIDE, "prompt": "abc", "tokens": 60}
    order |= {"temperature": temperature}
    script = [False] * 2 + [True] * 3
    device = run(**order, script=script)
    assert device["host_reason"] == ""
    assert device["tokens"] == run(**order, device=False)["tokens"]
    # Greedy: the first step that wants drafts has none, but makes some; so has the one behind the prompt's end.
    drafts = [True] if temperature == 0 else []
    asked = [script[step % len(script)] for step in range(len(device["nodes"]))]
    expected = [n and (temperature > 0 or step == 0 or asked[step - 1]) for step, n in enumerate(asked)]
    assert [nodes > 1 for nodes in device["nodes"]] == expected
    whole = run(**order)
    if temperature == 0:
        steps = len(asked)
        sent = greedy(WIDE, kind)
        drafting = sum([*drafts, *asked])
        assert device["counters"]["to_host_bytes"] == drafting * sent + (steps - drafting + 1) * 12
    assert device["counters"]["to_host_bytes"] < whole["counters"]["to_host_bytes"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("tree", [WIDE, UNEVEN, "dynamic"], ids=["wide", "uneven", "dynamic"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["hydra++", "medusa"])
def test_heads_that_read_the_prompt_do_so_in_the_graph(
    base: str, write: Any, tree: Any, kind: Any, temperature: float
) -> None:
    heads = write(kind, prefix=True, embedding_scale=2.0)
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": tree, "prompt": LONG, "temperature": temperature}
    order |= {"tokens": 60, "start": GENEROUS}
    cpu, device = run(**order, device=False), run(**order, later=SLOW)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    if tree != "dynamic":
        assert device["nodes"] == cpu["nodes"]
        assert device["stats"]["acceptance_per_depth"] == cpu["stats"]["acceptance_per_depth"]
    # Of the prompt but for its last token nothing comes to the host, nor are there logits.
    rows = [1, *(device["nodes"] if tree != "dynamic" else map(padded, device["nodes"]))]
    assert device["counters"]["logits"] == sum(rows)
    if tree != "dynamic" and not temperature:
        assert device["counters"]["to_host_bytes"] == len(rows) * greedy(tree, kind)
    assert set(device["operators"]) <= EVERYWHERE


@pytest.mark.parametrize("from_answer", [False, True])
def test_a_prefix_layer_keeps_its_cells_from_answer_to_answer(base: str, write: Any, from_answer: bool) -> None:
    """Greedy, sampled, on the host: one cache serves all."""
    heads = write("hydra++", embedding_scale=2.0, from_answer=from_answer)
    order: dict[str, Any] = {"model": base, "heads": heads, "tree": WIDE, "prompt": "abc", "conversation": True}
    cpu, device = run(**order, device=False), run(**order)
    assert device["answers"] == cpu["answers"]
    assert device["shapes"] == cpu["shapes"]


@pytest.mark.slow
@pytest.mark.parametrize("tree", [WIDE, UNEVEN, "dynamic"], ids=["wide", "uneven", "dynamic"])
@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++", "recurrent"])
def test_drawn_drafts_are_the_host_s(base: str, write: Any, tree: Any, kind: Any) -> None:
    """Rejection sampling: the same seed gives the text of whole rows."""
    order: dict[str, Any] = {"model": base, "heads": write(kind), "tree": tree, "prompt": "abc", "tokens": 60}
    order |= {"temperature": 1.0, "accept": "rejection", "start": {**GENEROUS, "learns_costs": False}}
    cpu, device = run(**order, device=False), run(**order)
    assert device["host_reason"] == ""
    assert device["tokens"] == cpu["tokens"]
    assert device["nodes"] == cpu["nodes"]
    assert device["stats"]["acceptance_per_depth"] == cpu["stats"]["acceptance_per_depth"]
    if tree == UNEVEN:
        assert device["counters"]["to_host_bytes"] <= 16384 * (device["stats"]["steps"] + 1)
    assert set(device["operators"]) <= EVERYWHERE


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"heads": "medusa", "tree": WIDE},
        {"heads": "hydra", "tree": UNEVEN},
        {"heads": "hydra++", "tree": UNEVEN},
        {"heads": "recurrent", "tree": UNEVEN},
        {"heads": "hydra", "tree": "dynamic", "lookup": True, "recycling": True},
        {"heads": "medusa", "tree": WIDE, "temperature": 1.0},
    ],
    ids=["plain", "medusa", "hydra", "hydra++", "recurrent", "dynamic", "sampled"],
)
def test_two_splits_one_graph_one_wait(base: str, write: Any, changed: dict[str, Any]) -> None:
    if "heads" in changed:
        changed = {**changed, "heads": write(changed["heads"])}
    order: dict[str, Any] = {"model": base, "prompt": LONG, "tokens": 40, **changed}
    device = run(**order, splits=True, later=SLOW)
    assert device["host_reason"] == ""
    # One on the CPU, which has the rows of the embedding matrix.
    assert len(device["splits"]) > 3
    assert max(device["splits"]) == 2
    graphs = device["counters"]["graphs"]
    assert device["counters"]["waits"] <= graphs
    if "temperature" not in changed:
        prompt = 1 + -(-(device["prompt_tokens"] - 1) // 64) if "hydra++" in changed.get("heads", "") else 2
        assert graphs == device["stats"]["steps"] + prompt
