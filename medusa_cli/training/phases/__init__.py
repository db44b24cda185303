"""The phases of a run, in their order: each takes the values of earlier ones and returns its own. Imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from medusa_cli.models.base_file import BaseModel

from ..options import TrainOptions
from ..resuming import Interrupt


@dataclass(frozen=True)
class Setup:
    """What a run was started with: all phases share it. folder: keeps text, choices and checkpoints, so that the same
    call continues."""

    options: TrainOptions
    base: BaseModel
    folder: Path
    device: torch.device
    interrupt: Interrupt
