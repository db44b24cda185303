"""Held-out text in joint training: what it says of fresh adapters, and which weights a run ends with."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from random_bases import random_base
from rich.console import Console
from test_training_joint import TOP, options, said, write_text

from medusa_cli.training import recipes, train
from medusa_cli.training.backbone.fit import JointFit
from medusa_cli.training.backbone.quality import HeldOut, HeldOutTexts
from medusa_cli.training.heads.layers import Heads
from medusa_cli.training.options import TrainOptions


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainOptions:
    """Four evaluations after the first."""
    quick = {name: replace(made, batch=96, rate=20 * made.rate) for name, made in recipes.JOINT_RECIPES.items()}
    monkeypatch.setattr(recipes, "JOINT_RECIPES", quick)
    monkeypatch.setattr(recipes, "JOINT_EVALUATIONS", 4)
    monkeypatch.setattr(recipes, "EVALUATED_STEPS", 2)
    made = options(tmp_path, random_base(tmp_path / "base.gguf", "qwen2"), joint_layers=TOP)
    write_text(made)
    return made


def scripted(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> list[dict[str, torch.Tensor]]:
    """Evaluations say `values`, in turn; what the heads were at each is returned, as it comes."""
    seen: list[dict[str, torch.Tensor]] = []
    real = HeldOutTexts.measure

    def measure(self: HeldOutTexts, step: int, through: Any, heads: Heads, before: Any) -> HeldOut:
        seen.append({name: value.clone() for name, value in heads.state_dict().items()})
        return replace(real(self, step, through, heads, before), tokens_per_step=values[len(seen) - 1])

    monkeypatch.setattr(HeldOutTexts, "measure", measure)
    return seen


def ended(monkeypatch: pytest.MonkeyPatch) -> list[JointFit]:
    """The run that came to its end."""
    runs: list[JointFit] = []
    real = JointFit.run

    def run(self: JointFit, *args: Any, **options: Any) -> bool:
        runs.append(self)
        return real(self, *args, **options)

    monkeypatch.setattr(JointFit, "run", run)
    return runs


@pytest.mark.parametrize(("values", "best"), [([9, 1, 3, 2, 1], 2), ([1, 2, 2, 1, 1], 1), ([0, 1, 2, 3, 4], 4)])
def test_a_run_ends_with_its_best_weights(
    given: TrainOptions, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int
) -> None:
    """The earliest of equals; heads that nothing was trained with yet are no candidates."""
    seen, runs = scripted(monkeypatch, values), ended(monkeypatch)
    weights: list[torch.Tensor] = []
    update = JointFit._update

    def keep(self: JointFit) -> None:
        update(self)
        weights.append(next(iter(self.adapters.b.values())).detach().clone())

    monkeypatch.setattr(JointFit, "_update", keep)
    train.run(given)
    fit = runs[-1]
    assert fit.held_out[0].step == 0
    assert len(seen) == len(fit.held_out) == 5
    step = fit.held_out[best].step
    assert torch.equal(next(iter(fit.adapters.b.values())), weights[step - 1])
    for name, value in fit.heads.state_dict().items():
        torch.testing.assert_close(value, seen[best][name], rtol=1e-2, atol=1e-2)  # rounded as the file holds them
    assert said(given).count("Held out, step") == 5


def test_continued_with_what_was_measured(given: TrainOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C behind the best evaluation: it is neither measured again nor forgotten."""
    runs = ended(monkeypatch)
    stops: list[int] = []
    seen = scripted(monkeypatch, [1, 5, 2, 3, 4])
    update = JointFit._update

    def stop(self: JointFit) -> None:
        update(self)
        if len(self.held_out) == 3 and not stops:
            stops.append(self.step)
            import signal

            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JointFit, "_update", stop)
    with pytest.raises(KeyboardInterrupt):
        train.run(given)
    train.run(replace(given, console=Console(file=io.StringIO())))
    fit = runs[-1]
    assert len(seen) == 5
    assert [found.tokens_per_step for found in fit.held_out] == [1, 5, 2, 3, 4]
    assert fit.best.curve[fit.best.at].step == fit.held_out[1].step


@pytest.mark.parametrize("rounds", [0.5, 3.0])
def test_rounds_over_the_text(given: TrainOptions, rounds: float) -> None:
    import json

    def steps(wanted: float | None) -> int:
        given.output.unlink(missing_ok=True)
        train.run(replace(given, joint_rounds=wanted, console=Console(file=io.StringIO())))
        plan = json.loads(given.output.with_suffix(".train.json").read_text())["joint"]["plan"]
        return int(plan["steps"])

    assert steps(rounds) == pytest.approx(steps(None) / recipes.JOINT_EPOCHS * rounds, abs=1)


def test_a_batch_in_parts_learns_as_one_in_one_piece(given: TrainOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over a batch's rows is that over its parts, each weighted by its rows."""

    def gradients(at_once: int) -> tuple[list[torch.Tensor], float]:
        monkeypatch.setattr(JointFit, "at_once", at_once)
        given.output.unlink(missing_ok=True)
        found: list[torch.Tensor] = []
        real = JointFit._update

        def keep(self: JointFit) -> None:
            if self.step == 0 and not found:
                found.extend(value.grad.clone() for value in self.adapters.parameters() if value.grad is not None)
            real(self)

        with monkeypatch.context() as patch:
            patch.setattr(JointFit, "_update", keep)
            runs = ended(patch)
            train.run(
                replace(
                    given,
                    joint_strategy="truth",
                    joint_batch=400,
                    joint_rounds=0.5,
                    work_dir=given.output.parent / f"work{at_once}",
                    console=Console(file=io.StringIO()),
                )
            )
        return found, runs[-1].curve[0].backbone

    monkeypatch.setattr(
        recipes,
        "JOINT_RECIPES",
        {name: replace(made, dropout=0.0, heads_weight=0.0) for name, made in recipes.JOINT_RECIPES.items()},
    )
    for number in (60, 10**6):
        write_text(replace(given, work_dir=given.output.parent / f"work{number}"))
    (parts, loss), (whole, same) = gradients(60), gradients(10**6)
    assert loss == pytest.approx(same, rel=1e-4)
    for one, other in zip(parts, whole, strict=True):
        assert (one - other).norm() <= 0.01 * other.norm()  # probabilities are rounded to the output's type
