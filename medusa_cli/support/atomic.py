"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from medusa_cli.support.errors import MedusaError


def explain_os_error(error: OSError, path: Path) -> MedusaError:
    """The one-line form of a failed file operation."""
    if error.errno == errno.ENOSPC:
        return MedusaError(f"{path}: no space left on the device, free some and run the command again")
    if error.errno is None:  # NumPy's way to say that an array was written in part
        return MedusaError(f"{path}: could not be written completely ({error}), is the device full?")
    return MedusaError(f"{path}: {error.strerror or error}")


@contextlib.contextmanager
def atomic_path(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yields a temporary path beside `path`; it is synced and renamed on success and removed on any error.

    mode: the file's permissions, less those of the umask. Until it is whole, nobody else may read it.

    Raises MedusaError when the folder does not exist or cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise MedusaError(f"{path}: is a directory, give a file name")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise explain_os_error(error, path) from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise explain_os_error(error, path) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


@contextlib.contextmanager
def atomic_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """As atomic_path, but yields the open binary file."""
    with atomic_path(path, mode) as temporary, temporary.open("wb") as file:
        yield file


def _umask() -> int:
    """The process's umask: mkstemp makes private files, while an output file should look like any other."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
