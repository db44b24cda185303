"""Reads files in pieces, writes files that appear whole or not at all, and words the errors of both."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from .errors import MedusaError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

CHUNK = 4 << 20


def explain_os_error(error: OSError, path: Path) -> MedusaError:
    """The one-line form of a failed file operation."""
    if error.errno == errno.ENOSPC:
        return MedusaError(f"{path}: no space left on the device, free some and run the command again")
    if error.errno is None:  # NumPy's way of saying that an array was only partly written
        return MedusaError(f"{path}: could not be written completely ({error}), is the device full?")
    return MedusaError(f"{path}: {error.strerror or error}")


def check_regular(path: Path) -> None:
    """MedusaError for pipes, sockets and devices, on which reading could wait forever. OSError if a check fails."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise MedusaError(f"{path}: not a regular file but a pipe, a socket or a device: give a file")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file for reading. MedusaError if that fails."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise explain_os_error(error, path) from error


def chunks(source: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """`count` bytes from `start` on. MedusaError if they end early."""
    source.seek(start)
    while count:
        data = source.read(min(CHUNK, count))
        if not data:
            raise MedusaError("the input file became shorter while it was read, run the command again")
        yield data
        count -= len(data)


@contextlib.contextmanager
def ending_signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP become SystemExit for a while, so that clean-up code runs; only the first one counts.

    Signals that are ignored (nohup) or handled otherwise are left alone, and nothing changes outside the main thread.
    """
    before = {}
    ended = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        if not ended:
            ended = True
            raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
        usual = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]
        before = {number: signal.signal(number, end) for number in usual}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def atomic_path(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it is synced and renamed on success, and removed on any error or signal.

    What processes that were killed have left of the same file is removed, except on Windows. mode: the file's
    permissions, less the umask.

    MedusaError if the folder does not exist or cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise MedusaError(f"{path}: is a directory, give a file name")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with ending_signals_raise():
        try:
            remove_unfinished(path.parent, f".{path.name}.", ".part")
            held = _created(temporary, mode)
        except OSError as error:
            raise explain_os_error(error, path) from error
        try:
            yield temporary
            replace_synced(temporary, path)
        except OSError as error:
            raise explain_os_error(error, path) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            if held is not None:
                os.close(held)


def _created(temporary: Path, mode: int) -> int | None:
    """Makes an empty file, and returns hold() of it.

    Not mkstemp: its files are private, and the umask cannot be read without changing it for all threads.
    """
    while True:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        with contextlib.suppress(FileNotFoundError):  # another process took it for unfinished in between
            return hold(temporary)


def hold(temporary: Path) -> int | None:
    """Tells remove_unfinished(), for as long as the descriptor is open, that a file or folder is in use. None: Windows.

    FileNotFoundError if it has just been removed.
    """
    if fcntl is None:
        return None
    held = os.open(temporary, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a file system without locks, on which nothing is removed, either
        fcntl.flock(held, fcntl.LOCK_EX)
    if temporary.exists():
        return held
    os.close(held)
    raise FileNotFoundError(temporary)


def remove_unfinished(folder: Path, prefix: str, suffix: str) -> None:
    """Removes temporary files and folders that killed processes have left: names are the two with 8 characters between.

    Not on Windows.
    """
    if fcntl is None:
        return
    name = re.compile(re.escape(prefix) + "[0-9a-z_]{8}" + re.escape(suffix))
    for found in filter(name.fullmatch, os.listdir(folder)):
        path = folder / found
        with contextlib.suppress(OSError):
            opened_path = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)  # it may be anything
            try:
                fcntl.flock(opened_path, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            finally:
                os.close(opened_path)


@contextlib.contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Like atomic_path, but yields the open binary file."""
    with atomic_path(path, mode) as temporary, temporary.open("wb") as file:
        yield file


def replace_synced(finished: Path, path: Path) -> None:
    """Gives a finished file its name, so that a power failure leaves either the old file or the whole new one."""
    with finished.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(finished, path)
    with contextlib.suppress(OSError):  # Windows cannot open folders, and some file systems cannot sync them
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
