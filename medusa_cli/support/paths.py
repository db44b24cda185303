"""Where medusa keeps things: cache (may be deleted any time), state (chat input, locks), data (tuned trees, heads)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from medusa_cli.support.errors import MedusaError


def cache_dir() -> Path:
    """XDG_CACHE_HOME, or the platform's own cache folder, with `medusa` below it. Not created here."""
    return _base("XDG_CACHE_HOME", mac="Library/Caches", other=".cache") / "medusa"


def state_dir() -> Path:
    """XDG_STATE_HOME, or the platform's own folder for program state, with `medusa` below it. Not created here."""
    return _base("XDG_STATE_HOME", mac="Library/Application Support", other=".local/state") / "medusa"


def data_dir() -> Path:
    """XDG_DATA_HOME, or the platform's own folder for program data, with `medusa` below it. Not created here."""
    return _base("XDG_DATA_HOME", mac="Library/Application Support", other=".local/share") / "medusa"


def made(folder: Path) -> Path:
    """`folder` of data_dir(), made if missing. MedusaError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MedusaError(
            f"{folder}: {error.strerror or error}: set XDG_DATA_HOME to a folder you can write to"
        ) from error
    return folder


def _base(variable: str, *, mac: str, other: str) -> Path:
    given = os.environ.get(variable, "")
    if os.path.isabs(given):  # the XDG specification says to ignore relative values
        return Path(given)
    local = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else None
    if local:
        return Path(local)
    try:
        home = Path.home()
    except RuntimeError as error:
        raise MedusaError(f"the system names no home folder for this user: set HOME, or {variable}") from error
    return home / ("AppData/Local" if sys.platform == "win32" else mac if sys.platform == "darwin" else other)
