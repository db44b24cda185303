"""The phases of a run, in order: each takes the results of earlier ones and returns its own. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from medusa_cli import native
from medusa_cli.models.base_file import BaseModel
from medusa_cli.support.progress import phase

from ..options import TrainOptions
from ..resuming import Interrupt


@dataclass(frozen=True)
class Setup:
    """What a run was started with, shared by all phases. folder: keeps text, choices and checkpoints, so that the same
    call continues."""

    options: TrainOptions
    base: BaseModel
    folder: Path
    device: torch.device
    interrupt: Interrupt

    def open(self, path: Path | None = None, next_layers: bool = False) -> native.Model:
        """Opens the base, or the model in `path`, in the engine. next_layers: with its layers for further tokens."""
        layers = self.options.n_gpu_layers
        return native.Model(str(path or self.base.path), n_gpu_layers=layers, next_layers=next_layers)

    @contextlib.contextmanager
    def counting(self, title: str, unit: str, total: int) -> Iterator[Callable[[int], None]]:
        """A progress bar. Yields a function that takes how much of `total` is done, and raises Stopped after Ctrl-C."""
        with phase(self.options.console, title, unit) as bar:

            def on_rows(done: int) -> None:
                bar.update(done, total)
                self.interrupt.check()

            yield on_rows
