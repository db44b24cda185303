"""Lets a run stop at any moment and continue later: Ctrl-C as a flag, and no leftovers of a run that was killed.

Choices are kept in small JSON files of the work folder (support/files.py).
"""

from __future__ import annotations

import contextlib
import glob
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

SCRATCH = "joining-"
"""Prefix of the temporary folder for files that are to become part of another."""
NEW_MODEL = ".joint.gguf"
"""Ending of a jointly trained model in the work folder, until it is part of the output."""


class Stopped(Exception):
    """Raised to leave work that Ctrl-C ends early."""


class Interrupt:
    """`requested` becomes true at the first Ctrl-C inside the block; a second one interrupts at once, as usual.

    Outside the main thread nothing is caught.
    """

    requested = False

    def check(self) -> None:
        """Raises Stopped if that was requested."""
        if self.requested:
            raise Stopped

    def __enter__(self) -> Interrupt:
        self._catches = threading.current_thread() is threading.main_thread()
        if self._catches:
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._catches:
            signal.signal(signal.SIGINT, self._previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


def remove_leftovers(folder: Path, outputs: Sequence[Path]) -> None:
    """Removes temporary files of `outputs`, and those in the work folder `folder` (which need not exist)."""
    parts = [*folder.glob(".*.part"), *folder.glob("*/.*.part"), *folder.glob(f"*{NEW_MODEL}")]
    for output in outputs:
        parts += output.absolute().parent.glob(f".{glob.escape(output.name)}.*.part")
    for part in parts:
        with contextlib.suppress(OSError):
            part.unlink()
    for scratch in folder.glob(f"{SCRATCH}*"):
        shutil.rmtree(scratch, ignore_errors=True)
