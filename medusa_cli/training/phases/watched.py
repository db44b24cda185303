"""What all trainings of drafts share: the checkpoint, the curve on the screen, Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from ..heads.fit import Best, CurvePoint, FitPlan
from ..report.curve import Curve, Point
from ..report.live import TrainingView, live
from ..report.messages import GIB, say, say_best
from ..streams.fit import StreamsPlan
from .setup import Setup


class Resumable(Protocol):
    """heads.fit.Fit or streams.fit.StreamsFit."""

    step: int
    best: Best

    @property
    def checkpoint_bytes(self) -> int: ...

    def restore(self, path: Path) -> bool: ...


def run_watched(
    setup: Setup, fit: Resumable, plan: FitPlan | StreamsPlan, run: Callable[..., bool]
) -> tuple[CurvePoint, list[Point]]:
    """Trains, or continues from the checkpoint of the same plan: the best evaluation, and all points so far.

    run: fit.run() with everything but what watches it. Stopped after Ctrl-C: the checkpoint is written.
    """
    console, name = setup.options.console, setup.options.name
    checkpoint = setup.folder / f"{name}.pt"
    if not fit.restore(checkpoint):
        say(console, f"Checkpoint: up to {fit.checkpoint_bytes / GIB:.2f} GiB in {setup.folder}")
    curve = Curve(setup.folder / f"{name}.curve.json", str(asdict(plan)), plan.steps, plan.batch)
    curve.start(fit.step)
    with live(TrainingView(console, curve, fit.step, plan.steps, plan.batch)) as view:
        run(
            checkpoint=checkpoint,
            on_step=view.update,
            on_evaluation=lambda point: view.evaluated(point.step, point.loss, point.tokens_per_step),
            should_stop=lambda: setup.interrupt.requested,
        )
    setup.interrupt.check()
    best = fit.best.curve[fit.best.at]
    say_best(console, best, fit.step, plan.steps)
    return best, curve.points
