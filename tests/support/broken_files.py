"""Writing and reading files that may be broken, for several test files."""

from __future__ import annotations

from pathlib import Path

import pytest
from medusa_cli.converters.checkpoints.checkpoint import open_checkpoint

from medusa_cli.support.errors import MedusaError


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def one_line(error: pytest.ExceptionInfo[MedusaError], *parts: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text


def read_or_refuse(path: Path) -> None:
    """Any error but a MedusaError that names the file goes through to the test."""
    try:
        checkpoint = open_checkpoint(path)
        loaded = {name: checkpoint.load(name) for name in checkpoint.tensors}
    except MedusaError as error:
        if str(path) not in str(error):
            raise
        return
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == {
        name: values.shape for name, values in loaded.items()
    }
