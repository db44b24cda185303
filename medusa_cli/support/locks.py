"""Folders that one process at a time may write to."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from medusa_cli.support.atomic import explain_os_error
from medusa_cli.support.errors import MedusaError

LOCK, HOLDER = "lock", "holder"


@contextlib.contextmanager
def only_user(folder: Path, hint: str) -> Iterator[None]:
    """Keeps `folder`, made where it is missing, for this process and this person. A process that is killed lets go.

    MedusaError where another process has it: who, since when, and `hint` for what to do.
    """
    holder = folder / HOLDER
    lock = filelock.FileLock(folder / LOCK, timeout=0, mode=0o600)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # somebody else's folder, shared on purpose
            folder.chmod(0o700)
        lock.acquire()
    except filelock.Timeout:
        raise MedusaError(f"{folder} is in use by {_text(holder)}: {hint}") from None
    except OSError as error:
        raise explain_os_error(error, folder) from error
    try:
        with contextlib.suppress(OSError):  # a full disk ends the work itself, with a line of its own
            now = time.strftime("%Y-%m-%d %H:%M")
            holder.write_text(f"process {os.getpid()} on {platform.node()} since {now}", "utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink()
        lock.release()


def _text(holder: Path) -> str:
    try:
        return holder.read_text("utf-8")
    except (OSError, ValueError):
        return "another process"
