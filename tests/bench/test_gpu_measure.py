"""benchmarks/gpu_measure.py on a tiny made-up model: what it finds, that nothing found is lost, and that it resumes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import _native_testing as testing
import gpu_measure
import gpu_steps
import made_up_model
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native

SCRIPT = Path(gpu_measure.__file__)
TINY = made_up_model.SIZES["tiny"]
CONTEXTS, WIDEST = (32, 64), 8
SETTINGS = ("--size", "tiny", "--contexts", ",".join(map(str, CONTEXTS)), "--widest", str(WIDEST), "--threads", "1")


def measure(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--json", str(folder / "gpu.json"), "--folder", str(folder), *SETTINGS]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)


def found(folder: Path) -> dict[str, Any]:
    steps: dict[str, Any] = json.loads((folder / "gpu.json").read_text())["steps"]
    return steps


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    base = folder / "tiny.gguf"
    made_up_model.write_base(base, TINY)
    for kind in gpu_steps.KINDS:
        made_up_model.write_heads(folder / f"tiny-{kind}.gguf", base, kind, TINY)
    return folder


def test_every_step_of_the_made_up_model_and_a_second_call(tmp_path: Path) -> None:
    done = measure(tmp_path, "--only", "model,passes,overhead,speed")
    assert done.returncode == 0, done.stderr
    first = found(tmp_path)
    assert [step["state"] for step in first.values()] == ["done"] * 4
    places = {(row["context"], row["nodes"]) for row in first["passes"]["rows"]}
    assert places == {(32, n) for n in range(1, 9)} | {(64, 1), (64, 8)}
    assert all(row["ms"] > 0 for row in first["passes"]["rows"])
    for row in first["overhead"]["rows"]:
        assert sum(row["parts_ms"].values()) == pytest.approx(row["step_ms"])
        assert row["beyond"] * row["pass_1_ms"] == pytest.approx(row["step_ms"] - row["pass_ms"])
    reached = [(row["wanted_tokens_per_step"], row["tokens_per_step"]) for row in first["speed"]["rows"]]
    assert len(reached) == 2 * 2 * 2  # sizes, kinds of heads, tokens per step
    assert all(tokens == pytest.approx(wanted, rel=0.15) for wanted, tokens in reached)
    for title in ("Passes over n tokens", "beyond the pass", "Speed over plain"):
        assert title in done.stdout

    again = measure(tmp_path, "--only", "model,passes,overhead,speed")
    assert (again.returncode, found(tmp_path)) == (0, first)
    other = measure(tmp_path, "--widest", "4")
    assert other.returncode == 1
    assert other.stderr.count("\n") == 1
    assert "results of other settings" in other.stderr


def test_what_was_found_survives_a_step_that_fails(made: Path, tmp_path: Path) -> None:
    for file in made.glob("*.gguf"):
        (tmp_path / file.name).symlink_to(file)
    broken = tmp_path / "tiny-hydra.gguf"
    broken.unlink()
    broken.write_bytes(b"GGUF")
    done = measure(tmp_path, "--only", "passes,overhead")
    assert done.returncode == 1
    steps = found(tmp_path)
    assert (steps["passes"]["state"], steps["overhead"]["state"]) == ("done", "failed")
    assert "tiny-hydra.gguf" in steps["overhead"]["why"]
    assert [row["heads"] for row in steps["overhead"]["rows"]] == ["medusa"]
    broken.unlink()
    broken.symlink_to(made / broken.name)
    assert measure(tmp_path, "--only", "passes,overhead").returncode == 0
    rows = found(tmp_path)["overhead"]["rows"]
    assert rows[0] == steps["overhead"]["rows"][0]
    places = [(row["context"], row["nodes"], row["heads"]) for row in rows]
    assert places == [(context, WIDEST, kind) for context in CONTEXTS for kind in gpu_steps.KINDS]


def test_no_time_is_no_result_and_no_failure(made: Path, tmp_path: Path) -> None:
    done = measure(tmp_path, "--only", "passes", "--minutes", "0.1")
    assert (done.returncode, found(tmp_path)["passes"]["why"]) == (0, "no time was left")
    missing = measure(tmp_path, "--only", "passes")
    assert (missing.returncode, found(tmp_path)["passes"]["state"]) == (0, "skipped")


@pytest.mark.parametrize(
    ("name", "row", "why"),
    [
        ("texts", {"tree": "8", "prompt": "3", "explained": False}, "not explained: 8/3"),
        ("tests", {"counts": {"passed": 3, "failed": 1}, "failed": ["tests/a.py::b"]}, "failed: tests/a.py::b"),
    ],
)
def test_a_wrong_text_and_a_failed_test_fail_the_step(name: str, row: dict[str, Any], why: str) -> None:
    step = {"state": "done", "why": "", "rows": [row]}
    gpu_measure.judge(name, step)
    assert (step["state"], step["why"]) == ("failed", why)


def test_the_made_up_model_has_the_recipe_s_types_and_finite_logits(made: Path, tmp_path: Path) -> None:
    base = made / "tiny.gguf"
    types = {tensor.name: tensor.type for tensor in native.read_gguf(str(base)).tensors}
    assert {types["output.weight"], types["blk.1.ffn_down.weight"], types["blk.1.attn_v.weight"]} == {"q6_K"}
    assert {types["token_embd.weight"], types["blk.1.attn_q.weight"], types["blk.1.ffn_up.weight"]} == {"q4_K"}
    model = native.Model(str(base), n_gpu_layers=0)
    logits = testing.teacher_forced(model, [1, 300, 301], prompt_length=3)[1]
    assert all(map(math.isfinite, logits))
    assert max(logits) > min(logits) + 0.1
    made_up_model.write_base(tmp_path / "same.gguf", TINY)
    assert (tmp_path / "same.gguf").read_bytes() == base.read_bytes()


@given(tokens=st.floats(1.0, 6.0), depth=st.integers(0, 5))
def test_the_rate_that_gives_so_many_tokens_per_step(tokens: float, depth: int) -> None:
    rate = gpu_steps.rate_for(tokens, depth)
    assert (rate is None) == (tokens > 1 + depth)
    if rate is not None:
        assert sum(rate**i for i in range(depth + 1)) == pytest.approx(tokens, abs=1e-6)
