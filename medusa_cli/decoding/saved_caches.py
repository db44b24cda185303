"""Prompt caches in files: what a session has read need not be read again after a restart.

A file: MAGIC, a SHA-256 over all that follows it, the length of the header (8 bytes, little-endian), the header (JSON),
the cached tokens (int32), and the bytes of native.Session.save_state().
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from medusa_cli import __version__
from medusa_cli.models.quantizations import parts_of
from medusa_cli.support.atomic import CHUNK, atomic_path, explain_os_error, opened
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import content_hash
from medusa_cli.support.paths import cache_dir

if TYPE_CHECKING:
    import numpy as np

    from medusa_cli import native
    from medusa_cli.decoding.runtime import Engine

MAGIC = b"medusa cache 1\n\0"
"""The number changes whenever native.Session.save_state() writes something else."""
SUM_BYTES, LENGTH_BYTES, TOKEN_BYTES = 32, 8, 4
MOST_HEADER_BYTES = 1 << 16
SUFFIX = ".cache"
LEAST = 64
"""Fewer tokens are read again faster than their cache is found."""
TAKEN_SHARE = 8
"""Taking a whole cache costs as much as reading 1/TAKEN_SHARE of its tokens: measured with the demo."""
BUDGET = 4 << 30
"""Bytes for all files of a person's chats."""
STALE_SECONDS = 3600
"""Writing one cache never takes this long."""


def default_folder() -> Path:
    """Where the caches of chats are kept."""
    return cache_dir() / "prompts"


# --- whose cache it is -----------------------------------------------------------------------------


def _identity(path: str | Path) -> list[Any]:
    """The identity of a model or heads, from all parts of its file."""
    parts = [Path(part) for part in parts_of(str(path))]
    return [[content_hash(part), part.stat().st_mtime_ns] for part in parts]


def key(engine: Engine) -> dict[str, Any]:
    """What has to be the same for a cache to fit: model, cache types, and what computed it.

    All instruction sets of our kernels give the same bits.
    """
    from medusa_cli import native

    model, options = engine.model, engine.options
    ours = native.kernel_info()["selected"] is not None and not model.gpu
    return {
        "model": _identity(model.path),
        "types": [options.cache_type_k.value, options.cache_type_v.value],
        "computed_by": f"{'medusa' if ours else f'llama.cpp, {model.backend}'} {__version__}",
    }


def _drafts_key(engine: Engine) -> list[Any]:
    """What has to be the same for the drafts' state to fit, too."""
    heads = _identity(engine.heads_file) if engine.heads_file is not None and engine.plan.tree is not None else None
    small = _identity(engine.small.path) if engine.small is not None else None
    return [heads, small, engine.plan.drafter is not None, engine.plan.recycling]


# --- one file --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """The beginning of a file whose sum has not been checked yet. start: where the state begins, in bytes."""

    path: Path
    key: dict[str, Any]
    drafts: list[Any]
    owner: str
    tokens: np.ndarray[Any, np.dtype[np.int32]]
    start: int
    size: int


def write(engine: Engine, path: Path, owner: str = "", made_by: dict[str, Any] | None = None) -> None:
    """Saves what the engine's session has cached, whole or not at all, readable by this user only.

    made_by: key() of the engine, if known. MedusaError on failure.
    """
    import numpy as np

    tokens = np.array(engine.session.cached_tokens, "<i4")
    state_size = engine.session.state_size
    described = {
        "key": made_by or key(engine), "drafts": _drafts_key(engine), "owner": owner, "tokens": len(tokens),
        "state": state_size,
    }  # fmt: skip
    header = json.dumps(described).encode()
    summed = len(MAGIC) + SUM_BYTES
    head = MAGIC + bytes(SUM_BYTES) + len(header).to_bytes(LENGTH_BYTES, "little") + header + tokens.tobytes()
    with atomic_path(path, 0o600) as temporary, temporary.open("r+b") as file:
        file.write(head)
        _reserve(file, len(head), state_size)
        with _mapped(file, mmap.ACCESS_WRITE) as mapped:
            engine.session.save_state(np.frombuffer(mapped, np.uint8, offset=len(head)))
            mapped[len(MAGIC) : summed] = hashlib.sha256(memoryview(mapped)[summed:]).digest()
            mapped.flush()


def _reserve(file: BinaryIO, start: int, size: int) -> None:
    """Extends a file by bytes that the disk has room for: otherwise, writing to a mapped hole could end the process."""
    file.flush()
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), start, max(size, 1))
            file.truncate(start + size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
    file.seek(start)
    for at in range(0, size, CHUNK):
        file.write(bytes(min(CHUNK, size - at)))
    file.flush()


@contextlib.contextmanager
def _mapped(file: BinaryIO, access: int) -> Iterator[mmap.mmap]:
    mapped = mmap.mmap(file.fileno(), 0, access=access)
    try:
        yield mapped
    finally:
        # An error's traceback may still hold a view: then the mapping is freed with it.
        with contextlib.suppress(BufferError):
            mapped.close()


def read(path: Path) -> Saved:
    """The beginning of a file. MedusaError if it is not one of ours, or cut short."""
    import numpy as np

    damaged = MedusaError(f"{path}: not a saved prompt cache of this version, or damaged")
    with opened(path) as file:
        stat = os.fstat(file.fileno())
        if hasattr(os, "geteuid") and stat.st_uid != os.geteuid():
            raise MedusaError(f"{path}: a saved prompt cache that belongs to another user")
        size = stat.st_size
        fixed = len(MAGIC) + SUM_BYTES + LENGTH_BYTES
        head = file.read(fixed)
        length = int.from_bytes(head[-LENGTH_BYTES:], "little")
        if not head.startswith(MAGIC) or len(head) < fixed or length > MOST_HEADER_BYTES:
            raise damaged
        try:
            found = json.loads(file.read(length))
            count, state = int(found["tokens"]), int(found["state"])
            start = len(head) + length + count * TOKEN_BYTES
            if count < 0 or state < 0 or start + state != size:
                raise damaged
            tokens = np.frombuffer(file.read(count * TOKEN_BYTES), "<i4")
            return Saved(path, found["key"], found["drafts"], str(found["owner"]), tokens, start, size)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged from error


def restore(engine: Engine, saved: Saved, made_by: dict[str, Any] | None = None) -> None:
    """Replaces what the engine's session has cached with it.

    made_by: key() of the engine, if known. MedusaError if the file is damaged, or from another model, other cache types
    or kernels: then either nothing changes or nothing is cached.
    """
    import numpy as np

    from medusa_cli import native

    if saved.key != (made_by or key(engine)):
        raise MedusaError(f"{saved.path}: saved with another model, other cache types or other kernels")
    summed = len(MAGIC) + SUM_BYTES
    try:
        with opened(saved.path) as file, _mapped(file, mmap.ACCESS_READ) as mapped:
            digest = hashlib.sha256(memoryview(mapped)[summed:]).digest()
            if len(mapped) != saved.size or mapped[len(MAGIC) : summed] != digest:
                raise MedusaError(f"{saved.path}: damaged, its check sum is wrong")
            state = np.frombuffer(mapped, np.uint8, offset=saved.start)
            drafts = saved.drafts == _drafts_key(engine)
            engine.session.restore_state(saved.tokens.tolist(), state, drafts=drafts)
    except (OSError, ValueError, native.NativeError) as error:  # ValueError: the file is empty
        raise MedusaError(f"{saved.path}: {error}") from error


# --- a folder of them ------------------------------------------------------------------------------


class CacheStore:
    """A folder of saved caches within a budget of bytes, the least recently used out first.

    Several processes may use it at once. Caches are looked up by owner: nobody gets another owner's.
    """

    def __init__(self, folder: Path, budget: int = BUDGET) -> None:
        self.folder = folder
        self.budget = budget
        self._read: dict[Path, tuple[tuple[int, int, int], Saved | None]] = {}
        """Beginnings of files, with the file's number, size and time. None: the file is not a readable cache."""
        self._made_by: tuple[native.Model, dict[str, Any]] | None = None

    def prepare(self) -> str:
        """Makes the folder, and makes its files fit the budget; returns one line about files that are not ours, or "".

        MedusaError if it cannot be written.
        """
        self._make_folder()
        try:
            tempfile.TemporaryFile(dir=self.folder).close()
        except OSError as error:
            raise explain_os_error(error, self.folder) from error
        self._shrink()
        wrong = len(self.files()) - len(list(self._all()))
        return f"{self.folder}: {wrong} damaged or older caches, or another user's, are left out" if wrong else ""

    def keep(self, engine: Engine, owner: str = "", used: float | None = None) -> bool:
        """Saves what the engine has cached. False: it is too little, already saved, or has no room beside newer caches.

        used: when it was last used (None: now). Saved beginnings of it are removed. MedusaError if that fails.
        """
        tokens, used = engine.session.cached_tokens, time.time() if used is None else used
        if len(tokens) < LEAST:
            return False
        mine, same = self.key_of(engine), []
        for saved in self._all():
            if saved.key != mine or saved.owner != owner:
                continue
            common = common_prefix(saved.tokens.tolist(), tokens)
            if common == len(tokens):
                _touch(saved.path, used)
                return False
            if common > len(saved.tokens) - LEAST:
                same.append(saved)
        newer = sum(size for _, size, when in self._files() if when > used)
        if newer + engine.session.state_size > self.budget:
            return False
        self._make_folder()
        path = self.folder / (hashlib.sha256(json.dumps([mine, owner, tokens]).encode()).hexdigest()[:32] + SUFFIX)
        write(engine, path, owner, mine)
        _touch(path, used)
        for saved in same:
            _remove(saved.path)
        self._shrink()
        return True

    def bring(self, engine: Engine, prompt: Sequence[int], owner: str = "", beyond: int = 0) -> tuple[int, str]:
        """Restores the cache that has most of the prompt, if that is more than the engine has, and more than `beyond`.

        Returns how many of the prompt's tokens are then cached, and one line about a damaged file, or "". Such a file
        is removed.
        """
        prompt = list(prompt)
        known = common_prefix(engine.session.cached_tokens, prompt)
        best, most = None, max(known, beyond)
        found = [saved for saved in self._all() if saved.owner == owner]
        mine = self.key_of(engine) if found else {}
        for saved in found:
            if saved.key != mine or len(saved.tokens) >= engine.n_ctx:
                continue
            common = common_prefix(saved.tokens.tolist(), prompt)
            if common >= most + LEAST and is_worth_it(common, len(saved.tokens)):
                best, most = saved, common
        if best is None:
            return known, ""
        try:
            restore(engine, best, mine)
        except MedusaError as error:
            _remove(best.path)
            return common_prefix(engine.session.cached_tokens, prompt), f"{error}; it was removed"
        _touch(best.path, time.time())
        return most, ""

    def files(self) -> list[Path]:
        """All cache files, the least recently used first."""
        return [path for path, _, _ in self._files()]

    def _files(self) -> list[tuple[Path, int, float]]:
        """The files with their sizes, and when they were used."""
        found = []
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"*{SUFFIX}"):
                with contextlib.suppress(OSError):
                    stat = path.stat()
                    found.append((path, stat.st_size, stat.st_mtime))
        return sorted(found, key=lambda one: (one[2], one[0]))

    def key_of(self, engine: Engine) -> dict[str, Any]:
        """key() as it was at the first call: the model's file may have been replaced since."""
        if self._made_by is None or self._made_by[0] is not engine.model:
            self._made_by = engine.model, key(engine)
        return self._made_by[1]

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise explain_os_error(error, self.folder) from error

    def _all(self) -> Iterator[Saved]:
        before, self._read = self._read, {}
        for path in self.files():
            with contextlib.suppress(OSError):
                stat = path.stat()
                which, saved = (stat.st_ino, stat.st_size, stat.st_mtime_ns), None
                if path in before and before[path][0] == which:
                    saved = before[path][1]
                else:
                    with contextlib.suppress(MedusaError):
                        saved = read(path)
                self._read[path] = which, saved
        return iter([saved for _, saved in self._read.values() if saved is not None])

    def _shrink(self) -> None:
        with contextlib.suppress(OSError):  # left by processes that were killed while writing
            for part in self.folder.glob(f".*{SUFFIX}.*.part"):
                if time.time() - part.stat().st_mtime > STALE_SECONDS:
                    _remove(part)
        files = self._files()
        total = sum(size for _, size, _ in files)
        for path, size, _ in files[:-1]:
            if total <= self.budget:
                return
            _remove(path)
            total -= size


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(one), len(other))
    low, high = 0, most
    # The interpreter itself compares slices: a few of them beat a loop over thousands of tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def is_worth_it(common: int, whole: int) -> bool:
    """Whether to take a cache of `whole` tokens for its first `common` ones, rather than read these again."""
    return common >= max(LEAST, whole // TAKEN_SHARE)


def _touch(path: Path, used: float) -> None:
    with contextlib.suppress(OSError):
        os.utime(path, (used, used))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
