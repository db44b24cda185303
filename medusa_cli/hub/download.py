"""Fetches files of a repository into the Hub's shared cache: resumed where they stopped, checked before they appear.

huggingface_hub gives up what it has of a file when a process ends, and only checks sizes. So a file is written here to
`blobs/DIGEST.incomplete`, from which older releases resume, too, and becomes the blob once its checksum is right;
huggingface_hub then links it into the snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.hub.errors import VARIABLE, LinkLost, Unreachable, explained
from medusa_cli.hub.repository import RemoteFile
from medusa_cli.hub.transfer import Growing, failed_write, free_space, too_large
from medusa_cli.support import progress
from medusa_cli.support.atomic import replace_synced
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console

LARGEST_OVER_HTTP = 50_000_000_000
"""Bytes: larger files come only by the Hub's own protocol."""
WAITS = (1.0, 2.0, 4.0, 8.0)
"""Seconds before further attempts that bring nothing, one after another."""


def missing_bytes(repo: str, files: Sequence[RemoteFile]) -> int:
    """Bytes still to be fetched: parts that are in the cache do not count, nor do unknown sizes."""
    folder = _blobs(repo)
    return sum(max(0, (file.size or 0) - _present(folder, file)) for file in files)


def _present(folder: Path, file: RemoteFile) -> int:
    if file.digest is None:
        return 0
    for path in (folder / file.digest, folder / f"{file.digest}.incomplete"):
        with contextlib.suppress(OSError):
            return path.stat().st_size
    return 0


def check_room(
    repo: str, label: str, files: Sequence[RemoteFile], otherwise: Callable[[int], str] = lambda free: ""
) -> None:
    """MedusaError if the disk has no room for what is missing. otherwise(free bytes): what else can be done."""
    missing, free = missing_bytes(repo, files), free_space(_blobs(repo))
    if missing > free:
        raise too_large(label, missing, free, cache_folder(), VARIABLE, otherwise(free))


def first_bytes(repo: str, commit: str, file: RemoteFile, count: int) -> bytes:
    """The start of a file, without fetching it."""
    found = b""
    with explained(repo), _response(repo, commit, file, f"bytes=0-{count - 1}") as response:
        for data in response.iter_raw():
            found += data
            if len(found) >= count:
                break
    return found[:count]


def fetch(repo: str, commit: str, files: Sequence[RemoteFile], on_bytes: Callable[[int, int], None]) -> list[Path]:
    """The files in the cache, in the order given. What the cache has is not fetched again.

    on_bytes(done, total): over all files together.

    MedusaError: no access, no space, a wrong checksum (what was fetched is removed); Unreachable: still no connection.
    """
    from huggingface_hub import hf_hub_download

    total = sum(file.size or 0 for file in files)
    paths, before = [], 0
    with _quiet():
        for file in files:
            done = before

            def advance(now: int, done: int = done) -> None:
                on_bytes(done + now, total)

            _bring_blob(repo, commit, file, advance)
            with explained(repo):
                paths.append(Path(hf_hub_download(repo, file.name, revision=commit)))
            before += file.size or 0
            on_bytes(before, total)
    return paths


def fetch_shown(
    repo: str, revision: str | None, commit: str, files: Sequence[RemoteFile], console: Console
) -> list[Path]:
    """Like fetch(), with a bar and, after Ctrl-C, a line on `console`; the cache then has the branch at `commit`.

    MedusaError as from fetch(), and if there is still no connection.
    """
    done, total = 0, sum(file.size or 0 for file in files)
    label = f"{repo}@{revision}" if revision else repo
    shown = progress.phase(console, "Downloading", "bytes") if missing_bytes(repo, files) else contextlib.nullcontext()
    try:
        with shown as bar:

            def advance(now: int, total: int) -> None:
                nonlocal done
                done = now
                if bar is not None:
                    bar.update(now, total)

            paths = fetch(repo, commit, files, advance)
    except KeyboardInterrupt:
        console.print(
            f"Stopped at {size(done)} of {size(total)}: the same command resumes from there.",
            markup=False,
            soft_wrap=True,
        )
        raise
    except Unreachable as error:
        raise MedusaError(f"{label}: {error}: {size(done)} of {size(total)} are kept, run again to resume") from error
    _remember_branch(repo, revision, commit)
    return paths


def _remember_branch(repo: str, revision: str | None, commit: str) -> None:
    """Notes in the cache that the branch or tag is at `commit`."""
    if revision == commit:
        return
    ref = _blobs(repo).parent / "refs" / (revision or "main")
    with contextlib.suppress(OSError):
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit, encoding="utf-8")


def cache_folder() -> Path:
    """The Hub's cache, shared with other programs."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _blobs(repo: str) -> Path:
    return cache_folder() / f"models--{repo.replace('/', '--')}" / "blobs"


def _bring_blob(repo: str, commit: str, file: RemoteFile, on_bytes: Callable[[int], None]) -> None:
    """Makes blobs/DIGEST if the digest is known; without one, or above 50 GB, huggingface_hub fetches the file."""
    from huggingface_hub.utils import WeakFileLock

    if file.digest is None or (file.size or 0) > LARGEST_OVER_HTTP:
        return
    folder = _blobs(repo)
    blob = folder / file.digest
    if blob.exists():
        return
    lock = cache_folder() / ".locks" / folder.parent.name / f"{file.digest}.lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failed_write(error, repo, error.filename, VARIABLE) from error
    with explained(repo), WeakFileLock(lock):
        if not blob.exists():
            part = folder / f"{file.digest}.incomplete"
            try:
                _fetch_part(repo, commit, file, part, on_bytes)
                replace_synced(part, blob)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    if not part.stat().st_size:
                        part.unlink()


def _fetch_part(repo: str, commit: str, file: RemoteFile, part: Path, on_bytes: Callable[[int], None]) -> None:
    """Fills `part` from where it ends, and checks it; keeps trying as long as attempts bring something."""
    assert file.size is not None  # or there would be no digest
    assert file.digest is not None
    with part.open("a+b") as raw:
        growing = Growing(raw, file.size, file.digest, on_bytes)
        fruitless = 0
        while not growing.complete:
            begun = growing.length
            try:
                with explained(repo):
                    _stream(repo, commit, file, growing)
            except LinkLost:
                fruitless = 0 if growing.length > begun else fruitless + 1
                if fruitless > len(WAITS):
                    raise
                time.sleep(WAITS[max(0, fruitless - 1)])
    growing.check(part, f"{repo}: {file.name}", "the Hub", "run again")


def _stream(repo: str, commit: str, file: RemoteFile, growing: Growing) -> None:
    """One attempt, starting at the end of what is there."""
    begun = growing.length
    with _response(repo, commit, file, f"bytes={begun}-" if begun else None) as response:
        if begun and not response.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            growing.restart()
        for data in response.iter_raw():
            growing.write(data)
            if growing.complete:
                break
    if not growing.complete:
        raise LinkLost("the connection closed too early")


@contextlib.contextmanager
def _response(repo: str, commit: str, file: RemoteFile, part: str | None) -> Iterator[Any]:
    """The Hub's response, its content still to come. Asks the Hub's own address each time: redirects expire."""
    from huggingface_hub import constants, get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

    headers = {**build_hf_headers(), "Accept-Encoding": "identity", **({"Range": part} if part else {})}
    url = hf_hub_url(repo, file.name, revision=commit)
    with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        hf_raise_for_status(response)
        yield response


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences huggingface_hub's progress bars and log lines for a while."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    log = logging.getLogger("huggingface_hub")
    level, shown = log.level, not are_progress_bars_disabled()
    log.setLevel(logging.ERROR)
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        log.setLevel(level)
        if shown:
            enable_progress_bars()
