"""Draft heads for a model: those asked for, those installed for its base, those that came with it.

Installed heads are kept in the user's data folder as sidecars. They are found by the base's fingerprint, so they work
for every quantization of it.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import schema
from medusa_cli.models import gguf_files, names
from medusa_cli.models.references import HeadsRef, ModelRef, Origin
from medusa_cli.support import paths
from medusa_cli.support.console import printable
from medusa_cli.support.errors import MedusaError, is_reportable

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class Installed:
    """Heads in the data folder. base_name: general.name of the model that they were made for."""

    path: Path
    kind: str
    head_count: int
    base_name: str
    fingerprint: str
    has_tree: bool

    @property
    def name(self) -> str:
        """What `medusa list` calls them and `medusa rm` takes."""
        return self.path.stem


def folder() -> Path:
    """Where installed heads are kept. Not created here."""
    return paths.data_dir() / "heads"


def place_for(base_name: str, base_fingerprint: str, *, replace: bool) -> Path:
    """The file for heads of this base, in a folder that exists. MedusaError if the file exists and may not be replaced.

    Models of equal shape and vocabulary share a fingerprint; their names tell them apart.
    """
    slug = re.sub(r"[^a-z0-9.]+", "-", base_name.lower()).strip("-.")[:80].strip("-.") or "model"
    path = folder() / f"{slug}-{base_fingerprint[-12:]}.gguf"
    if path.exists() and not replace:
        raise MedusaError(f"heads for {printable(base_name)} are installed ({path}): --force replaces them")
    return paths.made(folder()) / path.name


def installed() -> list[Installed]:
    """All installed heads, by name. Other files are left out."""
    found = [_read(path) for path in sorted(folder().glob("*.gguf"))]
    return [one for one in found if one is not None]


def _read(path: Path) -> Installed | None:
    try:
        metadata = gguf_files.read_header(path).metadata
    except Exception as error:
        if not is_reportable(error):
            raise
        return None
    made_for = metadata.get(schema.BASE_FINGERPRINT_KEY)
    if schema.VERSION_KEY not in metadata or not isinstance(made_for, str):
        return None
    return Installed(
        path,
        str(metadata.get(schema.KIND_KEY)),
        int(metadata.get(schema.HEAD_COUNT_KEY, 0)),
        str(metadata.get(schema.BASE_NAME_KEY, "")),
        made_for,
        bool(metadata.get(schema.TREE_KEY)),
    )


def for_base(metadata: dict[str, Any]) -> Installed | None:
    """The installed heads for this model, by its metadata: those for its own name before others, the newest first."""
    if not (known := installed()):
        return None
    try:
        wanted = fingerprint(metadata)
    except MedusaError:
        return None
    fitting = [one for one in known if one.fingerprint == wanted]
    fitting.sort(key=lambda one: (is_named(one, metadata), one.path.stat().st_mtime), reverse=True)
    return next(iter(fitting), None)


def is_named(one: Installed, metadata: dict[str, Any]) -> bool:
    """Whether the heads were made for a model of this name, however it is spelled."""
    return _plain(one.base_name) == _plain(str(metadata.get("general.name", "")))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]|gguf", "", name.lower())


def check(reference: str) -> None:
    """MedusaError when a --heads argument names a file that cannot be one. Costs nothing, fetches nothing."""
    found = names.parse(reference)
    if isinstance(found, Path):
        gguf_files.check_is_file(found)


def with_heads(ref: ModelRef, asked: str | None, console: Console) -> ModelRef:
    """The model with the heads to use: those `asked` for, else its own; a line on `console` says which were found.

    asked: a path or a name on the Hub. MedusaError if these are missing.
    """
    if asked is not None:
        return dataclasses.replace(ref, heads=_asked_for(asked, console))
    beside = ref.heads
    if beside is not None and beside.origin is Origin.shipped and not installed():
        return ref
    metadata = gguf_files.read_header(ref.path).metadata
    if schema.VERSION_KEY in metadata:
        return dataclasses.replace(ref, heads=None)
    if beside is not None and beside.origin is Origin.repository and not fits(beside.path, metadata):
        _say(console, f"note: {beside.path.name} in the same repository is for another base and is ignored")
        beside = None
    mine = for_base(metadata)
    if mine is not None and (beside is None or is_named(mine, metadata)):
        _say(console, f"Drafting with installed heads: {mine.name} ({mine.head_count} of kind {mine.kind})")
        return dataclasses.replace(ref, heads=HeadsRef(mine.path, Origin.installed))
    if beside is not None and beside.origin is Origin.repository:
        _say(console, f"Drafting with heads from the same repository: {beside.path.name}")
    return dataclasses.replace(ref, heads=beside)


def _asked_for(reference: str, console: Console) -> HeadsRef:
    found = names.parse(reference)
    if isinstance(found, Path):
        gguf_files.check_is_file(found)
        return HeadsRef(found, Origin.given, asked=True)
    from medusa_cli.models import remote

    return HeadsRef(remote.fetch_heads(found, console), Origin.repository, asked=True)


def fits(path: Path, base: dict[str, Any]) -> bool:
    """Whether heads were made for this model, by its metadata; heads that do not say are trusted."""
    made_for = gguf_files.read_header(path).metadata.get(schema.BASE_FINGERPRINT_KEY)
    return made_for is None or made_for == fingerprint(base)


def _say(console: Console, text: str) -> None:
    console.print(printable(text), style="dim", markup=False, soft_wrap=True)
