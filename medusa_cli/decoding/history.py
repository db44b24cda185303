"""What recycling has learned, kept between runs where a person wants that: one file for each model.

The tokens in it are those of the person's texts. So nothing is kept or read unless --history is given, files are the
person's alone, and `medusa forget` removes them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.decoding import profile
from medusa_cli.support import paths
from medusa_cli.support.atomic import atomic_file, explain_os_error
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native

MOST_BYTES = 64 << 20
"""Of a file that is read. What the engine writes is smaller for vocabularies up to a million tokens."""
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
SUFFIX = ".recycled"


def folder() -> Path:
    """Where the files lie."""
    return paths.state_dir() / "recycled"


def path_of(model: native.Model) -> Path:
    """The file of a model: of its content, whatever it is called."""
    return folder() / f"{profile.content_hash(Path(model.path))}{SUFFIX}"


def recall(session: native.Session, path: Path) -> None:
    """Gives a session what is kept, if anything. MedusaError, and the session is as it was, for a damaged file."""
    from medusa_cli import native

    try:
        if path.stat().st_size > MOST_BYTES:
            raise MedusaError(f"{path} is too large for a history file: remove it with `medusa forget`")
        session.recall(path.read_bytes())
    except FileNotFoundError:
        return
    except OSError as error:
        raise explain_os_error(error, path) from error
    except native.NativeError as error:
        raise MedusaError(f"{path}: {error}: remove it with `medusa forget`") from error


def keep(session: native.Session, path: Path) -> None:
    """Keeps what a session has learned: whole, or not at all. MedusaError when the file cannot be written."""
    learned = session.recycled
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise explain_os_error(error, path.parent) from error
    with atomic_file(path, PRIVATE_FILE) as file:
        file.write(learned)


def forget() -> tuple[int, int]:
    """Removes all that is kept. (files, bytes). MedusaError when a file cannot be removed."""
    files = sorted(folder().glob(f"*{SUFFIX}*")) if folder().is_dir() else []
    size = 0
    for file in files:
        try:
            size += file.stat().st_size
            file.unlink()
        except OSError as error:
            raise explain_os_error(error, file) from error
    return len(files), size
