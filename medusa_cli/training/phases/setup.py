"""What a run was started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from medusa_cli.models.base_file import BaseModel

from ..interrupts import Interrupt
from ..options import TrainOptions


@dataclass(frozen=True)
class Setup:
    """All phases share it. folder: keeps text, choices and checkpoints, so that the same call continues."""

    options: TrainOptions
    base: BaseModel
    folder: Path
    device: torch.device
    interrupt: Interrupt
