"""What is in the Hub's shared cache, and removing single files, where huggingface_hub removes whole commits."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.hub.download import cache_folder
from medusa_cli.hub.repository import REPO, is_safe_name
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo


@dataclass(frozen=True)
class CachedFile:
    """revision: None for the main branch's newest commit here, else a branch, tag or commit."""

    repo: str
    revision: str | None
    name: str
    path: Path
    blob: Path
    size: int


def repositories() -> list[str]:
    """Model repositories in the cache, by name."""
    return sorted(repo.repo_id for repo in _repos() if REPO.fullmatch(repo.repo_id))


def cached_files(suffix: str = ".gguf") -> list[CachedFile]:
    """All whole files of model repositories whose names end that way, by repository, revision and name."""
    found = [
        CachedFile(
            repo.repo_id,
            None if "main" in revision.refs else next(iter(sorted(revision.refs)), revision.commit_hash),
            file.file_path.relative_to(revision.snapshot_path).as_posix(),
            file.file_path,
            file.blob_path,
            file.size_on_disk,
        )
        for repo in _repos()
        for revision in repo.revisions
        for file in revision.files
        if file.file_name.lower().endswith(suffix)
    ]
    whole = [file for file in found if is_safe_name(file.name)]
    return sorted(whole, key=lambda file: (file.repo.lower(), file.revision or "", file.name))


def _repos() -> list[CachedRepoInfo]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return [repo for repo in scan_cache_dir(cache_folder()).repos if repo.repo_type == "model"]
    except CacheNotFound:
        return []
    except OSError as error:
        raise MedusaError(f"{error.filename}: {error.strerror or error}: the Hub's cache cannot be read") from error


def remove(files: Collection[CachedFile]) -> int:
    """Removes the files from the cache and returns the bytes freed. MedusaError if one cannot be removed.

    A blob that other snapshots also use stays until the last of them is removed. Other files of the repository are not
    touched; a repository that is then empty is removed entirely.
    """
    from huggingface_hub import scan_cache_dir

    if not files:
        return 0
    shown = {file.path: file.blob for file in cached_files("")}
    freed = 0
    try:
        for file in files:
            file.path.unlink(missing_ok=True)
            shown.pop(file.path, None)
            if file.blob not in shown.values():
                freed += file.size
                file.blob.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # left by an interrupted download
                    file.blob.with_name(f"{file.blob.name}.incomplete").unlink()
        names = {file.repo for file in files}
        empty = [
            revision.commit_hash
            for repo in _repos()
            if repo.repo_id in names and not repo.size_on_disk
            for revision in repo.revisions
        ]
        if empty:
            scan_cache_dir(cache_folder()).delete_revisions(*empty).execute()
    except OSError as error:
        raise MedusaError(f"{error.filename}: cannot be removed ({error.strerror or error})") from error
    return freed
