"""Whole trainings on a GPU that is only pretended: each tensor is where it has to be."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import killed_training
import pytest
import torch
from mtp_models import write_mtp_model
from pretended_cuda import pretended_cuda
from rich.console import Console

from medusa_cli.training import train

RUNS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind, "tokens": 1500} for kind in ("medusa", "hydra", "hydra++", "recurrent")},
    "medusa and layers": {**killed_training.JOINT, "tokens": 1500},
    "hydra++ and layers": {**killed_training.JOINT, "kind": "hydra++", "tokens": 1500},
    "streams": {**killed_training.STREAMS, "tokens": 1500},
    "streams and layers": {**killed_training.SHARED, "tokens": 1500},
    "mtp": killed_training.MTP,
}


@pytest.mark.parametrize("run", [pytest.param(run, marks=[pytest.mark.slow] * (run == "mtp")) for run in RUNS])
def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    path = tmp_path / "base.gguf"
    base = write_mtp_model(path, "qwen35") if run == "mtp" else killed_training.tiny_model(path)
    given = killed_training.options(base, tmp_path, console=Console(file=io.StringIO()), **RUNS[run])
    with pretended_cuda(monkeypatch):
        train.run(given)
    assert given.output.exists()
    record = json.loads(given.output.with_suffix(".train.json").read_text())
    assert '"cuda"' in json.dumps(record)


def test_what_a_gpu_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_cuda(monkeypatch):
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
            here + there
        with pytest.raises(TypeError, match="numpy"):
            (2 * there).numpy()
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, generator=torch.Generator(), device="cuda")
        moved = torch.nn.Linear(3, 3).to("cuda")(there)
        moved.sum().backward()
        assert moved.device.type == "cuda"
        assert (here + moved.detach().cpu()).device.type == "cpu"
        there[0:2] = here[0:2]
        assert there[torch.tensor([0, 1])].is_cuda
