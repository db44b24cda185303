"""Trainings that begin with the heads of a file."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import BASE_HIDDEN
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads.draft_heads import write_heads
from rich.console import Console
from test_training_run import Engine, base, engine  # noqa: F401

from medusa_cli.support.errors import MedusaError
from medusa_cli.training import train
from medusa_cli.training.heads.layers import Heads, HeadShape, file_of
from medusa_cli.training.heads.start import weights_of
from medusa_cli.training.options import RecipeFile, TrainOptions
from medusa_cli.training.phases import fitting
from medusa_cli.training.recipes import START_RATE

KINDS = ["medusa", "hydra", "hydra++", "recurrent"]


def heads_of(kind: str, count: int = 3, seed: int = 1) -> Heads:
    blocks = {"medusa": 1, "hydra": 2, "hydra++": 4, "recurrent": 1}[kind]
    made = Heads(HeadShape(kind, count, BASE_HIDDEN, blocks, "context" if kind == "hydra++" else "none"))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for value in made.parameters():
            value.normal_(0, 0.1)
    return made


def written(path: Path, heads: Heads, weight_type: Any = "f16") -> Path:
    accuracy = np.full((heads.shape.count, 10), 0.05).tolist()
    content = file_of(
        heads,
        "draft_vocab",
        embedding_scale=1.0,
        weight_type=weight_type,
        d2t=np.arange(40, dtype=np.int32),
        accuracy=accuracy,
        tree=[[0], [0, 0]],
        base_name="tiny",
        base_fingerprint="",
    )
    write_heads(path, content)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_the_weights_that_were_written(tmp_path: Path, kind: str) -> None:
    heads = heads_of(kind)
    found = weights_of(written(tmp_path / "h.gguf", heads), heads_of(kind, seed=2))
    assert found.keys() == heads.state_dict().keys()
    for name, value in heads.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_other_heads_and_damaged_ones_are_one_line(tmp_path: Path) -> None:
    hydra = written(tmp_path / "hydra.gguf", heads_of("hydra"))
    for other in (heads_of("medusa"), heads_of("hydra", count=4)):
        with pytest.raises(MedusaError, match=r"hydra.gguf holds 3 hydra heads of 2 blocks, not"):
            weights_of(hydra, other)
    (tmp_path / "x.gguf").write_bytes(b"GGUF nothing")
    with pytest.raises(MedusaError):
        weights_of(tmp_path / "x.gguf", heads_of("hydra"))
    header = read_header(hydra)[0]
    at = next(one.offset for one in header.tensors if one.name == "medusa.1.block.0.residual.weight")
    content = bytearray(hydra.read_bytes())
    content[header.data_offset + at : header.data_offset + at + 2] = np.float16(np.nan).tobytes()
    (tmp_path / "nan.gguf").write_bytes(content)
    with pytest.raises(MedusaError, match="not finite"):
        weights_of(tmp_path / "nan.gguf", heads_of("hydra"))


def options(base: Path, folder: Path, start: Path | None, **more: Any) -> TrainOptions:  # noqa: F811
    return TrainOptions(
        model=base,
        output=folder / "out.gguf",
        sidecar=True,
        start=start,
        tokens=4000,
        draft_vocab=100,
        work_dir=folder / "work",
        console=Console(file=io.StringIO(), width=200),
        **{"heads": 2, **more},
    )


def said(made: TrainOptions) -> str:
    assert isinstance(made.console.file, io.StringIO)
    return made.console.file.getvalue()


def trained(made: TrainOptions) -> dict[str, Any]:
    made.output.unlink(missing_ok=True)
    train.run(made)
    found: dict[str, Any] = json.loads(made.output.with_suffix(".train.json").read_text("utf-8"))
    return found


def test_a_training_begins_with_them(tmp_path: Path, base: Path, engine: Engine) -> None:  # noqa: F811
    fresh = trained(options(base, tmp_path, None))
    start = tmp_path / "start.gguf"
    (tmp_path / "out.gguf").rename(start)
    slow = RecipeFile(values={"rate": 1e-9, "decay": 0.0})
    kept = trained(options(base, tmp_path, start, file=slow))
    assert kept["options"]["start"] == "start.gguf"
    assert kept["tokens_per_step"] == pytest.approx(fresh["tokens_per_step"], abs=0.02)
    assert trained(options(base, tmp_path, None, file=slow))["tokens_per_step"] != kept["tokens_per_step"]


def test_given_heads_are_trained_at_a_lower_rate(tmp_path: Path, base: Path) -> None:  # noqa: F811
    usual = options(base, tmp_path, None).recipe
    begun = options(base, tmp_path, tmp_path / "start.gguf").recipe
    assert begun == replace(usual, rate=START_RATE * usual.rate)
    asked = options(base, tmp_path, tmp_path / "start.gguf", file=RecipeFile(values={"rate": 0.002})).recipe
    assert asked.rate == 0.002


def test_heads_that_were_better_before_are_kept(
    tmp_path: Path,
    base: Path,  # noqa: F811
    engine: Engine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = tmp_path / "start.gguf"
    trained(options(base, tmp_path, None))
    (tmp_path / "out.gguf").rename(start)
    falling = iter(range(100, 0, -1))
    monkeypatch.setattr(fitting, "tokens_per_step", lambda texts, nodes: float(next(falling)))
    made = options(base, tmp_path, start)
    assert trained(made)["training"]["best"] == {"step": 0, "tokens_per_step": 100.0}
    assert "Before training: 100.000 tokens per step on held-out text with 8 nodes" in said(made)
    before, after = (weights_of(path, heads_of(made.kind, count=2)) for path in (start, made.output))
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-3, atol=1e-4, msg=name)


def test_heads_that_do_not_fit_are_refused_before_any_work(tmp_path: Path, base: Path, engine: Engine) -> None:  # noqa: F811
    start = written(tmp_path / "medusa.gguf", heads_of("medusa"))
    with pytest.raises(MedusaError, match="holds 3 medusa heads"):
        train.run(options(base, tmp_path, start))
    assert engine.texts == 0
    with pytest.raises(MedusaError, match="no such heads file"):
        options(base, tmp_path, tmp_path / "none.gguf").check()
    with pytest.raises(MedusaError, match="start applies to heads"):
        options(base, tmp_path, start, kind="streams").check()
