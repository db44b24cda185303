"""Copies of the Hugging Face fixtures, their conversion, and ways to damage them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from medusa_cli.converters.base import write_base
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint


def convert(folder: Path, target: Path, file_type: str = "F16", **options: Any) -> Path:
    write_base(open_checkpoint(folder), target, file_type, **options)
    return target


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], Any], dtype: Any = np.float32) -> None:
    """Changes the weights, which are stored as `dtype` from then on."""
    safetensors = pytest.importorskip("safetensors.numpy")
    checkpoint = open_checkpoint(folder)
    weights = {name: checkpoint.load(name).astype(dtype) for name in checkpoint.tensors}
    change(weights)
    safetensors.save_file(weights, folder / "model.safetensors")
