"""The models on this machine, by name: what the Hub's cache holds, and the demo."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from medusa_cli.hub import cache
from medusa_cli.hub.cache import CachedFile
from medusa_cli.models import assets, demo, quantizations, remote
from medusa_cli.models.names import HubName


@dataclass(frozen=True)
class CachedModel:
    """name: loads it. path: its first part. size: bytes of all parts. files: those in the Hub's cache.

    heads, drafter: draft heads and a drafter from the same repository. beside: the latter's file, in the Hub's cache.
    """

    name: str
    path: Path
    size: int
    quant: str
    files: tuple[CachedFile, ...] = ()
    heads: Path | None = None
    drafter: Path | None = None
    beside: CachedFile | None = None


def models() -> list[CachedModel]:
    """All of them, the demo first, then by name."""
    found = [model for (repo, rev), files in _repositories().items() for model in _of_repository(repo, rev, files)]
    path = assets.cache_path()
    if path.is_file():
        quant = quantizations.quant_of(path.name)
        found.insert(0, CachedModel(demo.DEMO, path, path.stat().st_size, quant, heads=demo.DEMO_HEADS))
    return found


def drafters_alone() -> list[CachedModel]:
    """Drafters that were fetched by their names, and are none of those that come with the models."""
    found = []
    for (repo, revision), files in _repositories().items():
        taken = {model.drafter for model in _of_repository(repo, revision, files)}
        for name in remote.drafters_among(files, _start(files)):
            file = files[name]
            if file.path not in taken:
                found.append(CachedModel(str(HubName(repo, revision, file=name)), file.path, file.size, "", (file,)))
    return found


def _repositories() -> dict[tuple[str, str | None], dict[str, CachedFile]]:
    """The files of each one, by name, at each revision."""
    groups: dict[tuple[str, str | None], dict[str, CachedFile]] = defaultdict(dict)
    for file in cache.cached_files():
        groups[file.repo, file.revision][file.name] = file
    return groups


def _start(files: dict[str, CachedFile]) -> remote.ReadStart:
    return lambda name: remote.read_start(files[name].path)


def _of_repository(repo: str, revision: str | None, files: dict[str, CachedFile]) -> list[CachedModel]:
    start = _start(files)
    heads, drafters = remote.heads_among(files, start), remote.drafters_among(files, start)
    found = quantizations.candidates(files, (*heads, *drafters))
    sizes = {name: file.size for name, file in files.items()}
    labels = [one.quant for one in found]
    models = []
    for one in sorted(found, key=lambda one: one.name):
        clear = one.quant and labels.count(one.quant) == 1
        name = HubName(repo, revision, quant=one.quant) if clear else HubName(repo, revision, file=one.files[0])
        parts = tuple(files[part] for part in one.files)
        size = sum(part.size for part in parts)
        beside = files[heads[0]].path if heads else None
        drafter = quantizations.drafter_for(one, drafters, sizes)
        extra = files[drafter] if drafter else None
        path = extra.path if extra else None
        models.append(CachedModel(str(name), parts[0].path, size, one.quant, parts, beside, path, extra))
    return models
