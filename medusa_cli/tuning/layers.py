"""`medusa tune` for drafters (MTP, EAGLE-3): decodes for real with and without them, and keeps the faster way."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import profile, runtime
from medusa_cli.decoding.drafting import Drafter, DraftPlan
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.decoding.settings import engine_default
from medusa_cli.decoding.trees import DYNAMIC, DynamicStart, TreeMethod
from medusa_cli.support import progress
from medusa_cli.support.errors import MedusaError
from medusa_cli.tuning import choose, decode
from medusa_cli.tuning.run import ANSWER_TOKENS, fitting_prompts

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native
    from medusa_cli.models.references import ModelRef

WITHOUT = "lookup"
"""What drafts where the layers do not: prompt lookup, and recycled tokens where the model takes trees."""


@dataclass(frozen=True)
class Opened:
    """A model with the layers that draft for it. small: their model, where that is another file."""

    name: str
    model: native.Model
    small: native.Model | None
    drafter: Drafter
    options: EngineOptions
    key: profile.Key

    def session(self, plan: DraftPlan) -> native.Session:
        return runtime.plan_session(self.model, None, plan, self.options, self.small)


def open_layers(ref: ModelRef, options: EngineOptions, console: Console) -> Opened:
    """Loads the model and its layers, those of `ref.drafter`."""
    layers = ref.drafter
    assert layers is not None
    own = layers.path == ref.path
    gpu_layers = options.n_gpu_layers
    model = runtime.load_model(ref.path, gpu_layers, console, options.device, drafts_for=ref.path if own else None)
    small = None
    if not own:
        small = runtime.load_model(layers.path, gpu_layers, console, options.device, drafts_for=ref.path)
    key = profile.key(model, layers.path, options)
    most = engine_default("n_ctx")
    sized = dataclasses.replace(options, ctx_size=min(model.n_ctx_train or most, most))
    return Opened(ref.name, model, small, Drafter(layers, 0), sized, key)


def tune(opened: Opened, minutes: float, file: Path | None, console: Console) -> dict[str, Any]:
    """Measures for about `minutes` and returns the profile. Nothing is stored."""
    began = time.monotonic()
    prompts = fitting_prompts(opened.model, file, opened.options.ctx_size - ANSWER_TOKENS)
    recycles = not opened.model.is_recurrent
    start, drafter = DynamicStart(), opened.drafter
    plans = {
        choose.PLAIN: DraftPlan(),
        WITHOUT: DraftPlan(lookup=True, recycling=recycles),
        DYNAMIC: DraftPlan(tree=start, tree_name=DYNAMIC, drafter=drafter),
        choose.WITH_LOOKUP: DraftPlan(tree=start, tree_name=DYNAMIC, drafter=drafter, lookup=True),
    }
    if recycles:
        with_all = DraftPlan(tree=start, tree_name=DYNAMIC, drafter=drafter, lookup=True, recycling=True)
        plans[choose.WITH_RECYCLING] = with_all
    sessions = {name: opened.session(plan) for name, plan in plans.items()}
    with progress.phase(console, "Decoding", "answers") as bar:
        total, note = len(prompts) * len(sessions), ", ".join(sessions)
        deadline = began + 60 * minutes
        decoded = decode.in_turn(sessions, prompts, ANSWER_TOKENS, deadline, lambda n: bar.update(n, total, note))
    if not decoded:
        raise MedusaError("the model's answers are too short to measure drafts on: give longer tasks with --text FILE")
    speeds = {name: found.speedup for name, found in decoded.items()}
    best, reason = verdict(speeds)
    learned = DynamicStart(sessions[choose.WITH_LOOKUP].calibration or [])
    return {
        "profile_format": profile.FORMAT,
        "key": opened.key,
        "model": {"name": opened.name, "description": opened.model.description},
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "tree": [],
        "dynamic": best not in (choose.PLAIN, WITHOUT),
        "recycling": best == choose.WITH_RECYCLING,
        "reason": reason,
        "method": TreeMethod.accuracies.value,
        "drafter": opened.drafter.ref.path.name,
        "accuracy": [],
        "texts": {"prompts": "made up" if file is None else str(file),
                  "count": len(decoded[choose.PLAIN].ratios), "positions": 0},
        "costs": [],
        "calibration": dataclasses.asdict(choose.Calibration()),
        "dynamic_start": dataclasses.asdict(learned),
        "cpu_speedup": None,
        "predicted": [],
        "measured": [
            {"name": name, "nodes": None, "prompts": len(found.ratios), "tokens_per_step": found.tokens_per_step,
             "tokens_per_second": found.tokens_per_second, "speedup": found.speedup}
            for name, found in decoded.items() if name != choose.PLAIN
        ],
    }  # fmt: skip


def verdict(speeds: Mapping[str, float]) -> tuple[str, str]:
    """The fastest way, and why. speeds: over plain decoding, by name, choose.PLAIN and WITHOUT among them."""
    best = max(speeds, key=lambda name: speeds[name])
    without = max(speeds[choose.PLAIN], speeds[WITHOUT])
    most = max(speed for name, speed in speeds.items() if name not in (choose.PLAIN, WITHOUT))
    if best in (choose.PLAIN, WITHOUT):
        return best, f"the drafter does not pay here: {most:.2f} of plain speed with it, {without:.2f} without"
    return best, f"the drafter pays: {most:.2f} of plain speed with it, {without:.2f} without"
