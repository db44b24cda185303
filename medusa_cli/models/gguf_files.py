"""Paths that should be GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import check_name, check_regular

if TYPE_CHECKING:
    from medusa_cli import native


def read_header(path: Path) -> native.GgufFile:
    """The checked GGUF header of `path`. MedusaError or NativeError, one line, if there is none."""
    check_is_file(path)
    from medusa_cli import native

    return native.read_gguf(str(path))


def check_is_file(path: Path) -> None:
    """MedusaError unless `path` is a file that begins as a GGUF does."""
    if path.is_dir():
        inside = sorted(entry.name for entry in path.glob("*.gguf"))
        hint = f"such as {path / inside[0]}" if inside else "this one holds none"
        raise MedusaError(f"{path} is a directory: give a GGUF file, {hint}")
    try:
        check_regular(path)
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise MedusaError(f"no such file: {path}: give a GGUF file, org/repo on the Hub, or `demo`") from error
    except OSError as error:
        raise MedusaError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if magic != b"GGUF":
        raise MedusaError(f"{path} is not a GGUF file: give a model in llama.cpp's format")
    check_name(path)
