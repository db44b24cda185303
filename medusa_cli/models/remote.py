"""From a name on the Hub to files in the cache: which file, whether it fits here, and the download.

What the cache holds is used without asking the Hub; `update` asks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.converters.heads import schema
from medusa_cli.hub import cache, download, repository
from medusa_cli.hub.errors import UnknownRepository, Unreachable
from medusa_cli.hub.repository import Listing, RemoteFile
from medusa_cli.models import quantizations
from medusa_cli.models.names import HubName
from medusa_cli.models.quantizations import Candidate
from medusa_cli.support import machine
from medusa_cli.support.errors import MedusaError, OptionError
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console

HEAD_BYTES = 512
MOST_PEEKS = 8
"""Files whose beginnings are read to tell heads from models."""

ReadStart = Callable[[str], bytes]


@dataclass(frozen=True)
class Fetched:
    """A model in the cache. path: its first part. heads, drafter: the draft heads and the drafter of its repository."""

    name: HubName
    path: Path
    heads: Path | None
    drafter: Path | None = None


def fetch_model(
    name: HubName, console: Console, *, update: bool = False, to_run: bool = True, drafts: bool = False
) -> Fetched:
    """The model that `name` means, with the heads that its repository has; progress and remarks go to `console`.

    to_run: it will be loaded here, so one that is larger than the memory is an error. drafts: a file that only drafts
    for a model will do, too. MedusaError: not on the Hub, no access, nothing that fits the name, no room.
    """
    if drafts and not update and (layers := _cached_drafter(name)) is not None:
        return layers
    if not update and (found := _cached_model(name)) is not None:
        model, fetched = found
        if name.quant is None and name.file is None and model.quant != quantizations.DEFAULT:
            _say(console, f"{name}: {_what(model)}, from the cache")
        return fetched
    try:
        listing = _list(name)
    except Unreachable as error:
        found = _cached_model(name)
        cached = found[1] if found else _cached_drafter(name, alone=True) if drafts else None
        if cached is None:
            raise MedusaError(f"{name}: {error}, and it is not in the cache: give a local file") from error
        _say(console, f"note: {name}: {error}: using the copy in the cache")
        return cached
    start = _remote_start(name.repo, listing)
    heads, drafters = heads_among(listing.files, start), drafters_among(listing.files, start)
    if name.file in heads:
        raise OptionError("{name}: holds draft heads, not a model: give the model, and {heads} {name}", name=name)
    models = quantizations.candidates(listing.files, (*heads, *drafters))
    if drafts and (file := _named_drafter(name, drafters, models)) is not None:
        paths = download.fetch_shown(name.repo, name.revision, listing.commit, [listing.files[file]], console)
        return Fetched(HubName(name.repo, name.revision, file=file), paths[0], None)
    if name.file in drafters:
        text = "{name}: drafts for a model, it is none: give the model, and {draft_model} {name}"
        raise OptionError(text, name=name)
    if not models:
        raise MedusaError(_without_models(name, listing.files))
    chosen = quantizations.pick(models, _label(name), name.quant, name.file)
    sizes = {file.name: file.size or 0 for file in listing.files.values()}
    drafter = None if heads else quantizations.drafter_for(chosen, drafters, sizes)
    beside = heads[0] if heads else drafter
    wanted = [listing.files[file] for file in (*chosen.files, *([beside] if beside else []))]
    if download.missing_bytes(name.repo, wanted):
        _announce(name, chosen, models, listing, wanted, console, to_run)
    paths = download.fetch_shown(name.repo, name.revision, listing.commit, wanted, console)
    return Fetched(_exact(name, chosen), paths[0], paths[-1] if heads else None, paths[-1] if drafter else None)


def fetch_heads(name: HubName, console: Console, *, update: bool = False) -> Path:
    """The draft heads that `name` means: a file, or those of the repository. MedusaError as fetch_model()."""
    if not update and (folder := repository.cached_snapshot(name.repo, name.revision)) is not None:
        files = repository.files_below(folder)
        if found := _named_heads(name, files, _local_start(files)):
            return files[found]
    try:
        listing = _list(name)
    except Unreachable as error:
        raise MedusaError(f"{name}: {error}, and its heads are not in the cache: give a local file") from error
    chosen = _named_heads(name, listing.files, _remote_start(name.repo, listing))
    if chosen is None:
        missing = f"has no {name.file}" if name.file else "has no GGUF of draft heads"
        raise MedusaError(f"{_label(name)}: {missing}: for other formats use `medusa convert {name.repo} --install`")
    return download.fetch_shown(name.repo, name.revision, listing.commit, [listing.files[chosen]], console)[0]


def architecture_of(start: bytes) -> str | None:
    """`general.architecture` from the first bytes of a GGUF whose first key it is, as with all writers."""
    try:
        magic, _, _, _, length = struct.unpack_from("<4sIQQQ", start)
        key = start[32 : 32 + length]
        kind, count = struct.unpack_from("<IQ", start, 32 + length)
    except struct.error:
        return None
    if magic != b"GGUF" or key != b"general.architecture" or kind != 8:
        return None
    return start[44 + length : 44 + length + count].decode("utf-8", "replace")


def _cached_model(name: HubName) -> tuple[Candidate, Fetched] | None:
    """The model in the cache for `name`, if it is complete."""
    folder = repository.cached_snapshot(name.repo, name.revision)
    if folder is None:
        return None
    files = repository.files_below(folder)
    start = _local_start(files)
    heads, drafters = heads_among(files, start), drafters_among(files, start)
    try:
        models = quantizations.candidates(files, (*heads, *drafters))
        chosen = quantizations.pick(models, str(name), name.quant, name.file)
    except MedusaError:
        return None
    sizes = {file: path.stat().st_size for file, path in files.items()}
    drafter = quantizations.drafter_for(chosen, drafters, sizes)
    beside = (files[heads[0]] if heads else None, files[drafter] if drafter else None)
    return chosen, Fetched(_exact(name, chosen), files[chosen.files[0]], *beside)


def _cached_drafter(name: HubName, *, alone: bool = False) -> Fetched | None:
    """The layers in the cache that `name` means. alone: nothing else of the repository counts, such as its models."""
    folder = repository.cached_snapshot(name.repo, name.revision)
    files = {} if folder is None else repository.files_below(folder)
    drafters = drafters_among(files, _local_start(files))
    file = _named_drafter(name, drafters, quantizations.candidates(files, drafters)) if name.file or alone else None
    return Fetched(HubName(name.repo, name.revision, file=file), files[file], None) if file else None


def _named_drafter(name: HubName, drafters: list[str], models: list[Candidate]) -> str | None:
    """The drafter that is meant: by its name, or as the only one where there are no models."""
    if name.file is not None:
        return name.file if name.file in drafters else None
    return drafters[0] if len(drafters) == 1 and not models and name.quant is None else None


def _list(name: HubName) -> Listing:
    """The repository's files. MedusaError with the nearest names if there is no such repository."""
    try:
        return repository.list_files(name.repo, name.revision)
    except UnknownRepository as error:
        near = repository.similar(name.repo, cache.repositories())
        if not near:
            raise
        raise UnknownRepository(error.what, error.otherwise, near) from error


def heads_among(names: Collection[str], start: ReadStart) -> list[str]:
    """The files that hold draft heads alone, recognised by name and beginning."""
    ggufs = [name for name in sorted(names) if name.lower().endswith(".gguf")]
    likely = [name for name in ggufs if quantizations.OF_HEADS.search(name.rpartition("/")[2])]
    return [name for name in likely[:MOST_PEEKS] if architecture_of(start(name)) == schema.ARCHITECTURE]


def drafters_among(names: Collection[str], start: ReadStart) -> list[str]:
    """The files that only draft for a model, recognised by name and beginning."""
    likely = [name for name in sorted(names) if name.lower().endswith(".gguf")]
    likely = [name for name in likely if quantizations.OF_DRAFTER.search(name.rpartition("/")[2])]
    alone = [name for name in likely if name.rpartition("/")[2].lower().startswith(quantizations.DRAFTER_PREFIX)]
    others = [name for name in likely if name not in alone][:MOST_PEEKS]
    return alone + [name for name in others if architecture_of(start(name)) in quantizations.DRAFTERS]


def _named_heads(name: HubName, names: Collection[str], start: ReadStart) -> str | None:
    """The heads file that is meant, if there is one."""
    if name.file is not None:
        return name.file if name.file in names else None
    ggufs = [one for one in names if one.lower().endswith(".gguf")]
    if len(ggufs) == 1 and architecture_of(start(ggufs[0])) == schema.ARCHITECTURE:
        return ggufs[0]
    return next(iter(heads_among(names, start)), None)


def read_start(path: Path) -> bytes:
    """As much of a file as architecture_of() reads."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _local_start(files: dict[str, Path]) -> ReadStart:
    return lambda name: read_start(files[name])


def _remote_start(repo: str, listing: Listing) -> ReadStart:
    return lambda name: download.first_bytes(repo, listing.commit, listing.files[name], HEAD_BYTES)


def _exact(name: HubName, chosen: Candidate) -> HubName:
    """The name that leads to this file again."""
    if name.file is not None or not chosen.quant:
        return HubName(name.repo, name.revision, file=chosen.files[0])
    return HubName(name.repo, name.revision, quant=chosen.quant)


def _label(name: HubName) -> str:
    return str(HubName(name.repo, name.revision))


def _what(model: Candidate) -> str:
    return model.quant or model.name


def _without_models(name: HubName, files: Iterable[str]) -> str:
    """The line for a repository without GGUF files."""
    near = repository.quantized(name.repo)
    hint = f"of the same model: {', '.join(near)}" if near else "look for its name and GGUF on the Hub"
    other = "has no GGUF model"
    if any(file.endswith((".safetensors", ".bin", ".pt")) for file in files):
        other += ", but weights in another format"
    return f"{_label(name)}: {other}: {hint}"


def _announce(
    name: HubName, chosen: Candidate, models: list[Candidate], listing: Listing, wanted: list[RemoteFile],
    console: Console, to_run: bool,
) -> None:  # fmt: skip
    """Says what is being fetched, how large it is, what else there is, and whether memory is scarce.

    MedusaError if disk or memory is too small for it.
    """
    heads = ""
    if more := wanted[len(chosen.files) :]:
        layers = quantizations.OF_DRAFTER.search(more[0].name.rpartition("/")[2])
        drafter = f", {size(more[0].size or 0)} of them a drafter, which stays in memory beside the model"
        heads = drafter if layers else ", draft heads"
    parts = f" in {len(chosen.files)} files" if len(chosen.files) > 1 else ""
    others = quantizations.listed(models, without=_what(chosen))
    also = f"; also available: {others}" if others and name.quant is None and name.file is None else ""
    fetched = sum(file.size or 0 for file in wanted)
    _say(console, f"{_label(name)}: {_what(chosen)}, {size(fetched)}{parts}{heads}{also}")
    sizes = {file.name: file.size or 0 for file in listing.files.values()}

    def smaller(limit: int) -> str:
        found = quantizations.next_smaller(models, sizes, limit)
        return f", or take {_exact(name, found)} ({size(quantizations.total(found, sizes))})" if found else ""

    download.check_room(name.repo, _label(name), wanted, smaller)
    needed = quantizations.total(chosen, sizes)
    memory, available = machine.memory()
    if memory is not None and needed > memory and to_run and needed > memory + _device_memory():
        raise MedusaError(
            f"{_label(name)}: {_what(chosen)} needs more than {size(needed)} of memory, but there is {size(memory)}: "
            f"`medusa pull` downloads it anyway{smaller(memory * 3 // 4)}"
        )
    if available is not None and needed > available:
        _say(console, f"note: {_what(chosen)} needs {size(needed)} of memory, {size(available)} is available")


def _device_memory() -> int:
    """Bytes of memory on the GPUs."""
    from medusa_cli import native

    return sum(device["memory_total"] for device in native.system_info()["devices"] if device["type"] != "cpu")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
