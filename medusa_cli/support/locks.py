"""What only one process at a time may write to: working folders and outputs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import filelock

from medusa_cli.support import paths
from medusa_cli.support.atomic import explain_os_error
from medusa_cli.support.errors import MedusaError

LOCK, HOLDER = "lock", "holder"
PATIENCE_SECONDS = 10.0
OTHER_NAME = "wait until it has ended, or give another name"


class InUse(MedusaError):
    """Another process has it; the message says who, since when, and what to do."""


@contextlib.contextmanager
def only_user(folder: Path, hint: str) -> Iterator[None]:
    """Reserves `folder`, made if missing, for this process and this user. A process that is killed releases it.

    InUse, with `hint` for what to do, if another process has it.
    """
    lock = _acquired(folder, str(folder), hint)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            (folder / HOLDER).unlink()
        lock.release()


@contextlib.contextmanager
def only_writer(*outputs: Path) -> Iterator[None]:
    """Reserves these outputs, files or folders that need not exist, for this process among all of this user's.

    The locks are in the user's state folder, so that nothing lies beside outputs; if it cannot be written, nothing is
    reserved. InUse if another process writes one of them.
    """
    try:
        place = paths.state_dir() / "writing"
        place.mkdir(parents=True, exist_ok=True)
        begin_or_end = filelock.FileLock(place / LOCK, timeout=PATIENCE_SECONDS)  # no waiting for a lock being removed
        held = _acquire_all({_place_of(path, place): str(path) for path in outputs}, begin_or_end)
    except InUse:
        raise
    except (MedusaError, OSError, NotImplementedError):
        held = None
    if held is None:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError), begin_or_end:
            held.close()


def _acquire_all(folders: Mapping[Path, str], begin_or_end: filelock.BaseFileLock) -> contextlib.ExitStack:
    with begin_or_end, contextlib.ExitStack() as acquired:
        for folder, name in sorted(folders.items()):
            lock = _acquired(folder, name, OTHER_NAME)
            acquired.callback(shutil.rmtree, folder, ignore_errors=True)
            acquired.callback(lock.release)
        return acquired.pop_all()


def _place_of(output: Path, place: Path) -> Path:
    """Where the lock of an output is, whichever path leads to the output."""
    name = os.path.join(os.path.realpath(output.parent), output.name)
    return place / hashlib.sha256(os.fsencode(name)).hexdigest()[:24]


def _acquired(folder: Path, name: str, hint: str) -> filelock.BaseFileLock:
    """The lock in `folder`, with a line beside it that says whose it is."""
    lock = filelock.FileLock(folder / LOCK, timeout=0, mode=0o600)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # somebody else's folder, shared on purpose
            folder.chmod(0o700)
        lock.acquire()
    except filelock.Timeout:
        raise InUse(f"{name} is in use by {_text(folder / HOLDER)}: {hint}") from None
    except OSError as error:
        raise explain_os_error(error, folder) from error
    with contextlib.suppress(OSError):  # a full disk ends the work itself, with a line of its own
        now = time.strftime("%Y-%m-%d %H:%M")
        (folder / HOLDER).write_text(f"process {os.getpid()} on {platform.node()} since {now}", "utf-8")
    return lock


def _text(holder: Path) -> str:
    try:
        return holder.read_text("utf-8")
    except (OSError, ValueError):
        return "another process"
