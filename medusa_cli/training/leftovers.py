"""What a run that was killed left behind: unfinished files under temporary names, which no later run would ever use."""

from __future__ import annotations

import contextlib
import glob
import shutil
from pathlib import Path

SCRATCH = "joining-"
"""Prefix of the temporary folder for files on their way to become another."""
NEW_MODEL = ".joint.gguf"
"""Ending of a jointly trained model in the work folder, until it is part of the output."""


def remove_leftovers(folder: Path, output: Path) -> None:
    """Removes temporary files of `output` and in the work folder `folder` (which need not exist)."""
    parts = [*folder.glob(".*.part"), *folder.glob("*/.*.part"), *folder.glob(f"*{NEW_MODEL}")]
    parts += output.absolute().parent.glob(f".{glob.escape(output.name)}.*.part")
    with contextlib.suppress(OSError):
        for part in parts:
            part.unlink()
    for scratch in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(scratch, ignore_errors=True)
