"""Curves, the live view, the report files and the choice of a draft vocabulary."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import fixtures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from killed_training import options, tiny_model
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint
from medusa_cli.converters.heads.formats import read_heads
from rich.console import Console
from typer.testing import CliRunner

from medusa_cli import cli
from medusa_cli.models import references
from medusa_cli.models.base_file import read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import progress, reporting, train
from medusa_cli.training.heads import draft_vocab
from medusa_cli.training.progress import MOST_POINTS, Curve, TrainingView, duration, sparkline
from medusa_cli.training.text.dataset import Span

# --- curve -----------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(curve: Curve, clock: Clock, first: int, last: int) -> None:
    for step in range(first, last + 1):
        clock.now += 2.0
        curve.add(step, float(step), 1.5 if step % 25 == 0 else None)


def test_points_are_means_and_evaluations_are_never_left_out(tmp_path: Path) -> None:
    clock = Clock()
    curve = Curve(tmp_path / "c.json", "plan", 100, 8, clock)
    curve.start(0)
    curve.add(1, math.nan)
    run(curve, clock, 2, 100)
    assert [point.step for point in curve.points] == [10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100]
    assert [point.step for point in curve.points if point.tokens_per_step == 1.5] == [25, 50, 75, 100]
    second = curve.points[1]
    assert (second.positions, second.seconds, second.loss) == (160, 38.0, 15.5)


def test_a_resumed_curve_goes_on_where_the_checkpoint_was(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "c.json"
    first = Curve(path, "plan", 100, 8, clock)
    first.start(0)
    run(first, clock, 1, 60)
    clock.now += 1000.0  # between two calls
    again = Curve(path, "plan", 100, 8, clock)
    again.start(42)
    assert again.points == [point for point in first.points if point.step <= 42]
    run(again, clock, 43, 100)
    assert [point.step for point in again.points] == [10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100]
    assert again.points[-1].seconds == pytest.approx(80 + 58 * 2)
    other = Curve(path, "another plan", 100, 8, clock)
    other.start(42)
    assert other.points == []


def test_a_long_run_has_no_more_points(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "c.json", "plan", 50_000, 8)
    for step in range(1, 50_001):
        curve.add(step, 1.0)
    assert MOST_POINTS / 2 < len(curve.points) <= MOST_POINTS + 1


# --- live view -------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 50))
def test_a_sparkline_fits_and_spans_the_characters(values: list[float], width: int) -> None:
    line = sparkline(values, width, progress.ASCII)
    assert len(line) == min(width, len(values))
    if len(set(line)) > 1:
        assert {progress.ASCII[0], progress.ASCII[-1]} <= set(line)


def test_the_last_value_is_always_shown() -> None:
    assert sparkline([5.0] * 99 + [1.0], 10)[-1] == "▁"
    assert [duration(59.6), duration(3723)] == ["1:00", "1:02:03"]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_panel_shows_loss_tokens_per_step_rate_and_time(tmp_path: Path, encoding: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding)
    console = Console(file=stream, force_terminal=True, width=100)
    view = TrainingView(console, Curve(tmp_path / "c.json", "plan", 100, 512), 0, 100, 512)
    with progress.live(view):
        for step in range(1, 51):
            if step == 40:
                view.evaluated(step, 3.25, 1.75)
            view.update(step, 3.25)
    stream.flush()
    text = raw.getvalue().decode(encoding)
    for part in ("Training heads", "3.250", "1.750 (best 1.750)", "50 of 100", "positions/s", "left at most"):
        assert part in text


def test_without_a_terminal_there_are_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=60)
    view = TrainingView(console, Curve(tmp_path / "c.json", "plan", 100, 512), 0, 100, 512)
    with progress.live(view):
        monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
        view.update(1, math.nan)
        monkeypatch.setattr(progress, "LINE_SECONDS", 1e9)
        view.evaluated(40, 3.25, 1.75)
        monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
        view.update(50, 3.0)
    assert isinstance(console.file, io.StringIO)
    start, first, second = console.file.getvalue().splitlines()
    assert start.startswith("Training heads: 1%, loss -, held out: not measured yet, ")
    assert first.startswith("Training heads: 40%, loss 3.250, held out 1.750 tokens per step (best 1.750), ")
    assert second.startswith("Training heads: 50%, loss 3.000, ")


# --- report files ----------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    points = [
        {"step": step, "positions": 8 * step, "seconds": 1.0, "loss": 5 / step, "tokens_per_step": tps}
        for step, tps in ((10, None), (20, 1.4), (30, 1.5))
    ]
    return {
        "model": {"name": "tiny"},
        "options": {"kind": "hydra"},
        "training": {"curve": points, "evaluation_nodes": 8},
        "accuracy": [[0.5, 0.2], [0.3, 0.1]],
        "tokens_per_step": {"4": 1.5, "8": 1.7},
    }


def test_the_report_lies_beside_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting.importlib.util, "find_spec", lambda name: None)
    written = reporting.write_record(document(), tmp_path / "heads.v1.gguf")
    assert written == [tmp_path / "heads.v1.train.json"]
    assert json.loads(written[0].read_text())["training"]["curve"][1]["tokens_per_step"] == 1.4
    with pytest.raises(ValueError, match="JSON"):
        reporting.write_record({**document(), "bad": math.nan}, tmp_path / "other.gguf")
    assert not (tmp_path / "other.train.json").exists()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = reporting.write_record(document(), tmp_path / "heads.gguf")
    assert written == [tmp_path / "heads.train.json", tmp_path / "heads.train.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_a_run_tells_everything(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base.gguf")
    console = Console(file=io.StringIO(), width=120)
    given = options(base, tmp_path, sidecar=False, draft_vocab=150, export_hf=tmp_path / "hf", console=console)
    result = train.run(given)
    told = json.loads((tmp_path / "out.train.json").read_text())
    assert told["options"]["kind"] == given.kind
    assert told["draft_vocabulary"]["size"] == 150
    assert told["tokens_per_step"] == {str(nodes): value for nodes, value in result.by_size.items()}
    assert sum(row["tokens"] for row in told["text"]["sources"]) == told["text"]["tokens"] >= 3000
    assert sum(row["share"] for row in told["text"]["sources"]) == pytest.approx(1)
    curve = told["training"]["curve"]
    assert curve[-1]["step"] == told["training"]["steps"]
    assert max(point["tokens_per_step"] or 0 for point in curve) == told["training"]["best"]["tokens_per_step"]
    assert [point["seconds"] for point in curve] == sorted(point["seconds"] for point in curve)
    assert read_heads(open_checkpoint(tmp_path / "hf")).head_count == 2
    assert isinstance(console.file, io.StringIO)
    assert "Text by source" in console.file.getvalue()
    with pytest.raises(MedusaError, match="draft_vocab 99"):
        train.run(options(base, tmp_path, draft_vocab=99))


def test_what_would_be_overwritten_is_refused(tmp_path: Path) -> None:
    base = tiny_model(tmp_path / "base.gguf")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine.txt").write_text("mine")
    recipe = tmp_path / "r.json"
    arguments = ["train", str(base), "-o", str(tmp_path / "o.gguf"), "--recipe", str(recipe)]
    for folder, message in ((tmp_path / "hf", "is not empty"), (base, "is a file")):
        recipe.write_text(json.dumps({"export_hf": str(folder)}))
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == 1
        assert message in result.stderr
    recipe.write_text(json.dumps({"adapter": str(base)}))
    result = CliRunner().invoke(cli.app, [*arguments, "--joint"])
    assert result.exit_code == 1
    assert "base.gguf exists: give another name" in result.stderr


def test_what_would_be_overwritten_is_refused_before_the_model_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(*_: object) -> None:
        raise AssertionError("the model was downloaded first")

    monkeypatch.setattr(references, "resolve", resolve)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine.txt").write_text("mine")
    recipe, output = tmp_path / "r.json", tmp_path / "o.gguf"
    for values, message in (
        ({"export_hf": str(tmp_path / "hf")}, "is not empty"),
        ({"adapter": str(recipe)}, "exists"),
    ):
        recipe.write_text(json.dumps(values))
        result = CliRunner().invoke(cli.app, ["train", "org/model", "-o", str(output), "--recipe", str(recipe)])
        assert result.exit_code == 1
        assert message in result.stderr


@pytest.mark.parametrize("option", ["--kind", "--heads"])
def test_values_that_no_run_can_use_are_usage_errors(tmp_path: Path, option: str) -> None:
    arguments = ["train", "model.gguf", "-o", str(tmp_path / "o.gguf"), option, "0"]
    assert CliRunner().invoke(cli.app, arguments).exit_code == 2


# --- draft vocabulary ------------------------------------------------------------------------------


def test_sizes_to_compare_follow_the_text() -> None:
    assert [draft_vocab.largest_size(400, tokens) for tokens in (600, 29_999, 30_000)] == [400, 400, 8192]
    assert draft_vocab.largest_size(9000, 300_000) == 9000
    assert draft_vocab.candidates(310) == [310]
    assert draft_vocab.candidates(1024) == [1024]
    assert draft_vocab.candidates(5000) == [1024, 2048, 4096, 4992]
    assert draft_vocab.candidates(100_000)[-2:] == [24576, 32768]


def test_costs_never_fall_with_the_size() -> None:
    assert draft_vocab.at_most_as_larger([1.0, 109.0, 2.0, 95.0, 3.0]) == [1.0, 2.0, 2.0, 3.0, 3.0]


def test_coverage_counts_held_out_tokens() -> None:
    ranked = np.array([7, 3, 9], np.int32)
    tokens = np.array([7, 7, 3, 9, 50, 1, 2, 2], np.int32)
    spans = [Span(0, 3, "a"), Span(4, 1, "b")]
    assert draft_vocab.coverage(ranked, tokens, spans, [1, 2, 3]) == [0.5, 0.75, 0.75]


def test_the_trade_off_follows_its_formula() -> None:
    first, second = draft_vocab.trade_offs([10, 20], [0.8, 1.0], [1.0, 3.0], 9.0, 2)
    assert first.tokens_per_step == pytest.approx(1 + 0.4 + 0.16)
    assert first.tokens_per_second == pytest.approx(156.0)
    assert second.tokens_per_second == pytest.approx(1000 * 1.75 / 12)
    same, rare = draft_vocab.trade_offs([10, 20], [0.8, 1.0], [1.0, 3.0], 9.0, 2, learned=0.8)
    assert same == first
    right = 0.5 * (0.8 + draft_vocab.RARE * 0.2)
    assert rare.tokens_per_step == pytest.approx(1 + right + right**2)


@pytest.mark.parametrize(
    ("speeds", "best"), [((166.2, 165.9, 162.7), 20), ((150.0, 165.9, 162.7), 20), ((9, 8, 7), 10)]
)
def test_of_sizes_that_are_nearly_as_fast_the_largest_is_taken(speeds: tuple[float, ...], best: int) -> None:
    rows = [
        draft_vocab.SizeTradeOff(size, 0.9, 1.0, 1.8, speed) for size, speed in zip((10, 20, 30), speeds, strict=True)
    ]
    assert draft_vocab.best_size(rows) == best


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_the_choice_is_measured_once_and_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(draft_vocab, "SIZES", (20, 40, 80))
    monkeypatch.setattr(draft_vocab, "ROWS", 20)
    base = read_base(fixtures.tiny_base(tmp_path / "base.gguf"))
    rng = np.random.default_rng(0)
    tokens, ranked = rng.integers(0, 320, 3000).astype(np.int32), rng.permutation(320).astype(np.int32)
    memory = tmp_path / "choice.json"

    def choose(heads: int = 2) -> draft_vocab.VocabularyChoice:
        spans = [Span(0, 3000, "a")]
        threads = {"n_gpu_layers": 0, "threads": 1}
        return draft_vocab.choose(base, ranked, 60, tokens, spans, kind=kind, heads=heads, memory=memory, **threads)

    choice = choose()
    assert [row.size for row in choice.rows] == [20, 40, 80]
    assert choice.size == draft_vocab.best_size(choice.rows)
    assert all(row.draft_ms > 0 for row in choice.rows)
    assert choice.verify_ms is not None
    assert [row.coverage for row in choice.rows] == sorted(row.coverage for row in choice.rows)
    assert [row[0].replace("*", "") for row in choice.as_table().rows] == ["20", "40", "80"]
    assert [row[0] for row in choice.as_table().rows if "*" in row[0]] == [f"*{choice.size}"]
    monkeypatch.setattr(draft_vocab, "_fastest", lambda loaded, state: 1e9)
    assert choose() == choice
    assert choose(heads=1) != choice
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.gguf", "choice.json"]
