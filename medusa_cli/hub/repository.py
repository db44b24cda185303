"""What a repository of the Hub holds, as far as it can be trusted: names and sizes come from strangers.

And names that somebody may have meant.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medusa_cli.hub.errors import explained
from medusa_cli.hub.transfer import GIT_SHA1
from medusa_cli.support.errors import MedusaError

WORD = r"\w[\w.-]{0,95}"
REPO = re.compile(rf"{WORD}/{WORD}", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}")
MOST_FILES = 20_000
"""Files of a repository beyond this are not looked at."""
MOST_QUERIES = 4
MOST_RESULTS = 50
MOST_NAMES = 3
ALIKE = 0.75


@dataclass(frozen=True)
class RemoteFile:
    """size: bytes. digest: sha256 of its content, or git's sha1 of a small file. None if the Hub does not tell."""

    name: str
    size: int | None
    digest: str | None


@dataclass(frozen=True)
class Listing:
    """The files of one commit."""

    commit: str
    files: dict[str, RemoteFile]


def list_files(repo: str, revision: str | None) -> Listing:
    """The files of a revision (None: the main branch) whose names are safe. MedusaError as hub.errors explains."""
    from huggingface_hub import HfApi

    with explained(repo, revision):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True)
    if not GIT_SHA1.fullmatch(str(info.sha)):
        raise MedusaError(f"{repo}: the Hub gives no commit for it: is HF_ENDPOINT right?")
    entries = [_file(entry) for entry in (info.siblings or ())[:MOST_FILES] if is_safe_name(entry.rfilename)]
    return Listing(str(info.sha), {entry.name: entry for entry in entries})


def _file(entry: Any) -> RemoteFile:
    large = getattr(entry.lfs, "sha256", None) if entry.lfs else None
    size = entry.size if isinstance(entry.size, int) and entry.size >= 0 else None
    digest = large if large is not None else entry.blob_id
    known = isinstance(digest, str) and (SHA256 if large else GIT_SHA1).fullmatch(digest)
    return RemoteFile(entry.rfilename, size, digest if known and size is not None else None)


def is_safe_name(name: object) -> bool:
    """Whether a listed file name stays inside its folder and can be shown on a terminal."""
    if not isinstance(name, str) or not 0 < len(name) <= 1000 or not name.isprintable():
        return False
    if any(character in '\\:*?"<>|' for character in name):
        return False
    return all(part not in ("", ".", "..") and len(part) <= 240 for part in name.split("/"))


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """The folder of this revision in the cache, with what was fetched of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, FileNotFoundError, ValueError):
        return None


def files_below(folder: Path) -> dict[str, Path]:
    """Whole files of a snapshot, by their names in the repository."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if is_safe_name(name)}


def similar(repo: str, known: Iterable[str] = ()) -> list[str]:
    """Repositories with GGUF files and similar names, the closest first. known: more of them to consider."""
    owner, _, name = repo.partition("/")
    words = re.split(r"[-_.]", name)
    starts = [name, *(name[: len("-".join(words[:count]))] for count in (len(words) // 2, 1) if count)]
    queries: list[dict[str, Any]] = [{"author": owner}, *({"search": start} for start in dict.fromkeys(starts))]
    found = dict.fromkeys(known)
    for query in queries[:MOST_QUERIES]:
        found |= dict.fromkeys(_models(filter="gguf", **query))
    scored = sorted(((_likeness(repo, one), one) for one in found), reverse=True)
    return [one for score, one in scored if score >= ALIKE][:MOST_NAMES]


def _likeness(one: str, other: str) -> float:
    """0 to 1; what follows the owner counts most."""
    ratios = [
        difflib.SequenceMatcher(None, mine, theirs).ratio()
        for mine, theirs in zip(one.lower().split("/"), other.lower().split("/"), strict=True)
    ]
    return 0.25 * ratios[0] + 0.75 * ratios[1]


def quantized(repo: str) -> list[str]:
    """Repositories with GGUF files of this model, the most downloaded first."""
    return _models(filter=["gguf", f"base_model:quantized:{repo}"])[:MOST_NAMES]


def _models(**query: Any) -> list[str]:
    """Never fails: without an answer, there are no suggestions."""
    from huggingface_hub import HfApi

    found: list[str] = []
    with contextlib.suppress(Exception):
        models = HfApi().list_models(**query, sort="downloads", limit=MOST_RESULTS)
        found.extend(model.id for model in models if REPO.fullmatch(model.id))
    return found
