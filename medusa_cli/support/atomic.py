"""Outputs that appear whole or not at all, as converters write them, and folders for intermediate files."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the type checker finds the package here that is installed as medusa_cli.converters
    from converters import files
else:
    from medusa_cli.converters import files

CHUNK, atomic_file, atomic_path, check_regular = files.CHUNK, files.atomic_file, files.atomic_path, files.check_regular
explain_os_error, opened, replace_synced = files.explain_os_error, files.opened, files.replace_synced
ending_signals_raise = files.ending_signals_raise


@contextlib.contextmanager
def scratch_folder(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A temporary folder in `parent` that is gone afterwards, even when the process is told to end.

    Those that killed processes have left are removed first, except on Windows.
    """
    files.remove_unfinished(parent, prefix, suffix)
    with files.ending_signals_raise(), tempfile.TemporaryDirectory(suffix, prefix, parent) as scratch:
        held = files.hold(Path(scratch))
        try:
            yield Path(scratch)
        finally:
            if held is not None:
                os.close(held)
