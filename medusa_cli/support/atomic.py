"""Outputs that appear whole or not at all, as converters write them, and folders for what lies between."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # where the type checker finds the package that is installed as medusa_cli.converters
    from converters.ending import ending_signals_raise
    from converters.files import atomic_file, atomic_path, check_regular, explain_os_error, replace_synced
else:
    from medusa_cli.converters.ending import ending_signals_raise
    from medusa_cli.converters.files import atomic_file, atomic_path, check_regular, explain_os_error, replace_synced

__all__ = ["atomic_file", "atomic_path", "check_regular", "explain_os_error", "replace_synced", "scratch_folder"]


@contextlib.contextmanager
def scratch_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A temporary folder in `parent` that is gone afterwards, also when the process is told to end."""
    with ending_signals_raise(), tempfile.TemporaryDirectory(prefix=prefix, suffix=suffix, dir=parent) as scratch:
        yield Path(scratch)
