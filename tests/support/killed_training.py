"""A training run that kills itself at a given moment, as kill -9 would: a program for test_training_failures."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures
import torch
from medusa_cli.converters.heads import single_file, write

from medusa_cli.decoding import tree_search
from medusa_cli.training import loop, train
from medusa_cli.training.backbone import quality, rewriting, states
from medusa_cli.training.backbone.fit import JointFit
from medusa_cli.training.mtp.fit import MtpFit
from medusa_cli.training.options import RecipeFile, TrainOptions
from medusa_cli.training.streams.fit import StreamsFit
from medusa_cli.training.text import corpus, dataset

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def tiny_model(path: Path) -> Path:
    """Random weights: sampled answers are noise, greedy ones loop and are cut."""
    return fixtures.tiny_base(path, chat_template=TEMPLATE, context=1024)


def options(base: Path, folder: Path, **changes: Any) -> TrainOptions:
    fields: dict[str, Any] = {
        "model": base,
        "output": folder / "out.gguf",
        "sidecar": True,
        "heads": 2,
        "tokens": 3000,
        "threads": 1,
        "parallel": 4,
        "work_dir": folder / "work",
    }
    return TrainOptions(**{**fields, **changes})


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def on_call(owner: Any, name: str, number: int, act: Callable[..., Any] = die) -> None:
    """The `number`-th call of owner.name becomes act()."""
    real, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return act(*args, **kwargs) if calls == number else real(*args, **kwargs)

    setattr(owner, name, counted)


def half_saved(state: Any, path: Path) -> None:
    Path(path).write_bytes(b"half")
    die()


def half_kept(_: Any, path: Path) -> None:
    (path.parent / f".{path.name}.killed.part").write_bytes(b"half")
    die()


def half_joined(model: Path, heads: Path, output: Path, *rest: Any) -> None:
    (output.parent / f".{output.name}.killed.part").write_bytes(b"half")
    die()


PHASES: dict[str, Callable[[], None]] = {
    "generate": lambda: on_call(corpus.Corpus, "add", 12),
    "shard": lambda: on_call(corpus.Corpus, "_write_manifest", 5),
    "prepare": lambda: on_call(dataset, "draft_vocabulary", 1),
    "teacher": lambda: on_call(torch, "softmax", 1),
    "fit": lambda: on_call(loop, "learning_rate", 14),
    "checkpoint": lambda: on_call(torch, "save", 4, half_saved),
    "measure": lambda: on_call(tree_search, "predicted_tokens_per_step", 1),
    "write": lambda: on_call(write, "_encoded", 4),
    "join": lambda: on_call(single_file, "join", 1, half_joined),
}


JOINT_PHASES: dict[str, Callable[[], None]] = {
    "states": lambda: on_call(states, "as_stored", 7),
    "heads": lambda: on_call(loop, "learning_rate", 8),
    "together": lambda: on_call(JointFit, "_update", 8),
    "held out": lambda: on_call(quality.HeldOutTexts, "measure", 2),
    "checkpoint": lambda: on_call(JointFit, "save", 3, half_kept),
    "merge": lambda: on_call(rewriting, "_encoded", 3),
    "compare": lambda: on_call(quality, "compare", 1),
    "join": lambda: on_call(single_file, "join", 1, half_joined),
}
JOINT: dict[str, Any] = {"kind": "medusa", "sidecar": False, "joint": True, "joint_layers": 1}

STREAMS_PHASES: dict[str, Callable[[], None]] = {
    "states": lambda: on_call(states, "as_stored", 7),
    "fit": lambda: on_call(StreamsFit, "_update", 8),
    "checkpoint": lambda: on_call(StreamsFit, "save", 3, half_kept),
    "measure": lambda: on_call(tree_search, "predicted_tokens_per_step", 1),
    "write": lambda: on_call(write, "_encoded", 4),
}
STREAMS: dict[str, Any] = {"kind": "streams", "streams_layers": 1}
SHARED_PHASES: dict[str, Callable[[], None]] = {
    "together": lambda: on_call(StreamsFit, "_update", 8),
    "checkpoint": lambda: on_call(StreamsFit, "save", 3, half_kept),
    "merge": lambda: on_call(rewriting, "_encoded", 3),
    "compare": lambda: on_call(quality, "compare", 1),
    "join": lambda: on_call(single_file, "join", 1, half_joined),
}
SHARED: dict[str, Any] = {"kind": "streams", "streams_layers": 1, "sidecar": False, "joint": True}
MTP_PHASES: dict[str, Callable[[], None]] = {
    "prompts": lambda: on_call(states, "as_stored", 7),
    "fit": lambda: on_call(MtpFit, "_update", 8),
    "checkpoint": lambda: on_call(MtpFit, "save", 3, half_kept),
    "measure": lambda: on_call(tree_search, "predicted_tokens_per_step", 1),
    "write": lambda: on_call(rewriting, "_encoded", 30),
}
MTP: dict[str, Any] = {
    "kind": "mtp",
    "sidecar": False,
    "heads": 4,
    "tokens": 1500,
    "parallel": 16,
    "file": RecipeFile(None, {"rate": 1e-3, "longest_answer": 64}),
}
RUNS = {
    "heads": (PHASES, {}),
    "joint": (JOINT_PHASES, JOINT),
    "streams": (STREAMS_PHASES, STREAMS),
    "shared": (SHARED_PHASES, SHARED),
    "mtp": (MTP_PHASES, MTP),
}


def main() -> None:
    base, folder, phase, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], (sys.argv[4:] or ["heads"])[0]
    corpus.SHARD_SECONDS = -1.0  # each answer is a shard, each step a checkpoint
    loop.CHECKPOINT_SECONDS, loop.CHECKPOINT_SHARE = -1.0, math.inf
    phases, changes = RUNS[what]
    phases[phase]()
    train.run(options(base, folder, **{"sidecar": phase != "join", **changes}))


if __name__ == "__main__":
    main()
