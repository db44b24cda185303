"""Spec-Bench's kinds, from a small made-up file in its layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_fakes import FakeWorker
from cli_fakes import base_gguf
from command_line import invoke

from medusa_cli.bench import spec_bench
from medusa_cli.bench.protocol import Outcome
from medusa_cli.bench.spec_bench import Question
from medusa_cli.prompts import bench_set

SAMPLE = Path(__file__).parents[1] / "data" / "spec_bench_sample.jsonl"


def question(category: str, speed: float, plain_speed: float, steps: int, committed: float) -> Question:
    """An answer of one token, which took the time for the prompt."""
    answer = Outcome(
        "x", "1", category, 0.0, 0, (0,), 1, "length", 1.0, 1.0, 1e3 / speed, steps, committed / steps, (), {}, 1,
        "greedy", 0,
    )  # fmt: skip
    return answer, plain_speed


def test_its_file_is_read_and_known() -> None:
    prompts = bench_set.read(SAMPLE)
    assert len(prompts) == 8
    assert spec_bench.is_its_file(prompt.category for prompt in prompts)
    found = spec_bench.figures([question(prompt.category, 20.0, 10.0, 5, 10.0) for prompt in prompts])
    assert list(found) == [*spec_bench.KINDS, spec_bench.OVERALL]
    assert [of["questions"] for of in found.values()] == [3, 1, 1, 1, 1, 1, 8]


def test_mt_bench_alone_is_not_its_file() -> None:
    assert not spec_bench.is_its_file(["writing", "math", "all"])
    assert not spec_bench.is_its_file(prompt.category for prompt in bench_set.built_in())


def test_medusa_bench_reports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = type("Worker", (FakeWorker,), {"calls": [], "specs": [], "open": 0})
    monkeypatch.setattr("medusa_cli.bench.measure.Worker", fresh)
    model, path = str(base_gguf(tmp_path / "tiny.gguf")), tmp_path / "b.json"
    arguments = ("bench", model, "--methods", "stock,plain", "--repeat", "1", "--json", str(path))
    code, out, error = invoke(*arguments, "--data", str(SAMPLE))
    assert code == 0, error
    assert "Spec-Bench: stock" in out
    found = json.loads(path.read_text())["spec_bench"]
    assert set(found) == {"stock"}
    # 20 tokens at 50 and at 100 tokens per second, and 100 ms for the prompt and the first one.
    assert found["stock"]["overall"] == {
        "questions": 8, "speedup": pytest.approx(0.3 / 0.5), "mean_accepted_tokens": pytest.approx(1.0),
    }  # fmt: skip
    code, out, _ = invoke("bench", model, "--methods", "stock,plain", "--repeat", "1", "--limit", "2")
    assert (code, "Spec-Bench" in out) == (0, False)


def test_figures_are_those_of_the_leaderboard() -> None:
    questions = [
        question("writing", 30.0, 10.0, 10, 20.0),
        question("coding", 10.0, 10.0, 30, 36.0),
        question("rag", 12.0, 6.0, 10, 15.0),
    ]
    found = spec_bench.figures(questions)
    # The ratio of mean speeds, not the mean of ratios; tokens over all steps.
    assert found["multi-turn conversation"] == {
        "questions": 2, "speedup": pytest.approx(2.0), "mean_accepted_tokens": pytest.approx(1.4),
    }  # fmt: skip
    assert found["retrieval-augmented"]["speedup"] == pytest.approx(2.0)
    assert found["overall"]["speedup"] == pytest.approx((52 / 3) / (26 / 3))
    assert found["overall"]["mean_accepted_tokens"] == pytest.approx(71 / 50)
    assert "translation" not in found
