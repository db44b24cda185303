"""Whole trainings on a GPU that is only pretended: each tensor is where it has to be."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any

import killed_training
import pytest
import torch
from mtp_models import write_mtp_model
from pretended_cuda import pretended_cuda
from random_bases import random_base
from rich.console import Console

from medusa_cli.training import loop, train
from medusa_cli.training.backbone.fit import JointFit
from medusa_cli.training.options import RecipeFile, TrainOptions
from medusa_cli.training.streams.fit import StreamsFit

RUNS: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind, "tokens": 1500} for kind in ("medusa", "hydra", "hydra++", "recurrent")},
    "medusa and layers": {**killed_training.JOINT, "tokens": 1500},
    "hydra++ and layers": {**killed_training.JOINT, "kind": "hydra++", "tokens": 1500},
    "layers with windows": {
        **killed_training.JOINT,
        "tokens": 1500,
        "answers": "given",
        "file": RecipeFile(None, {"longest_answer": 64}),
    },
    "streams": {**killed_training.STREAMS, "tokens": 1500},
    "streams and layers": {**killed_training.SHARED, "tokens": 1500},
    "mtp": killed_training.MTP,
}


def options(run: str, folder: Path) -> TrainOptions:
    path, more = folder / "base.gguf", RUNS[run]
    if run == "mtp":
        base = write_mtp_model(path, "qwen35")
    elif "windows" in run:
        base = random_base(path, "gemma3", layers=2)
        data = folder / "answers.jsonl"
        random = Random(0)
        lines = [
            {"prompt": f"{number}?", "completion": "".join(random.choices(ascii_letters, k=40))} for number in range(60)
        ]
        data.write_text("\n".join(json.dumps(line) for line in lines))
        more = {**more, "data": data}
    else:
        base = killed_training.tiny_model(path)
    return killed_training.options(base, folder, console=Console(file=io.StringIO()), **more)


@pytest.mark.parametrize("run", [pytest.param(run, marks=[pytest.mark.slow] * (run == "mtp")) for run in RUNS])
def test_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    given = options(run, tmp_path)
    with pretended_cuda(monkeypatch):
        train.run(given)
    assert given.output.exists()
    record = json.loads(given.output.with_suffix(".train.json").read_text())
    assert '"cuda"' in json.dumps(record)


class Stopped(Exception):
    pass


def stop(*_: object) -> None:
    raise Stopped


@pytest.mark.parametrize(
    ("run", "fit"), [("medusa", loop.Loop), ("hydra++ and layers", JointFit), ("streams", StreamsFit)]
)
def test_goes_on_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str, fit: type[loop.Loop]
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)  # one at each step
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", math.inf)
    given = options(run, tmp_path)
    with pretended_cuda(monkeypatch):
        with monkeypatch.context() as stopping:
            stopping.setattr(fit, "save", fit.save)  # is undone in the end
            killed_training.on_call(fit, "save", 2, stop)
            with pytest.raises(Stopped):
                train.run(given)
        assert not given.output.exists()
        steps, restore = list[int](), loop.Loop.restore

        def watched(self: loop.Loop, path: Path) -> bool:
            restored = restore(self, path)
            steps.append(self.step)
            return restored

        monkeypatch.setattr(loop.Loop, "restore", watched)
        train.run(given)
    assert max(steps) > 0
    assert given.output.exists()


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
