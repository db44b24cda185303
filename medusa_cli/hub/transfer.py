"""What all downloads share, from the Hub and of the demo: a growing file with a checksum, and words for failures."""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from medusa_cli.support.errors import MedusaError
from medusa_cli.support.units import size

CHUNK = 1 << 18
SLACK = 64 << 20
"""Bytes of the disk that a download leaves free."""
GIT_SHA1 = re.compile(r"[0-9a-f]{40}")


class Growing:
    """A file that grows at its end: counts and hashes what it holds, beginning with the bytes already there.

    size: bytes of the whole. digest: its sha256, or git's sha1. on_bytes: called with how much is there.
    """

    def __init__(self, raw: BinaryIO, size: int, digest: str, on_bytes: Callable[[int], None]) -> None:
        self._raw, self._size, self._wanted, self._on_bytes = raw, size, digest, on_bytes
        self._begin()
        raw.seek(0)
        while block := raw.read(CHUNK):
            self._digest.update(block)
            self.length += len(block)
        if self.length > size:
            self.restart()
        on_bytes(self.length)

    @property
    def complete(self) -> bool:
        """Whether there is nothing more to come."""
        return self.length >= self._size

    def _begin(self) -> None:
        self.length = 0
        git = GIT_SHA1.fullmatch(self._wanted)
        self._digest = hashlib.sha1(b"blob %d\0" % self._size) if git else hashlib.sha256()

    def restart(self) -> None:
        """Drops what is there: everything is sent again."""
        self._raw.seek(0)
        self._raw.truncate(0)
        self._begin()

    def write(self, data: bytes) -> None:
        """Adds `data` at the end."""
        self._raw.write(data)
        self._digest.update(data)
        self.length += len(data)
        self._on_bytes(self.length)

    def check(self, path: Path, name: str, who: str, hint: str) -> None:
        """MedusaError if the file at `path` is not the `name` that `who` means; the file is then removed."""
        found = self._digest.hexdigest()
        if found != self._wanted:
            what = f"has the checksum {found[:12]}..., not {self._wanted[:12]}..."
        elif self.length != self._size:
            what = f"has {self.length} bytes, not {self._size}"
        else:
            return
        path.unlink()
        raise MedusaError(f"{name} {what} as {who} says, and was removed: {hint}")


def free_space(folder: Path) -> int:
    """Bytes that may be downloaded to a folder, which need not exist."""
    folder = folder.absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    return max(0, shutil.disk_usage(existing).free - SLACK)


def too_large(what: str, needed: int, free: int, folder: Path, variable: str, otherwise: str = "") -> MedusaError:
    """For less room than a download needs; `variable` moves the folder. otherwise: what else can be done."""
    return MedusaError(
        f"{what}: {size(needed)} must be downloaded, {size(free)} is free in {folder}: free some, set {variable} to a "
        f"folder on another disk{otherwise}"
    )


def failed_write(error: OSError, what: str, folder: str | Path, variable: str) -> MedusaError:
    """For a full disk, or a folder that cannot be written; `variable` moves the folder."""
    if error.errno == errno.ENOSPC:
        return MedusaError(f"{what}: no space left in {folder}: free some, or move it with {variable}")
    reason = (error.strerror or str(error)).lower()
    return MedusaError(f"cannot write to the cache {folder} ({reason}): set {variable} to a folder you can write to")
