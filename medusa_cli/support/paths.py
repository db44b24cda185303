"""Where medusa keeps things: cache (can be deleted at any time), state (input history), data (tuned trees, heads)."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """XDG_CACHE_HOME, or the platform's own cache folder, with `medusa` below it. Not created here."""
    return _base("XDG_CACHE_HOME", mac="Library/Caches", other=".cache") / "medusa"


def state_dir() -> Path:
    """XDG_STATE_HOME, or the platform's own folder for program state, with `medusa` below it. Not created here."""
    return _base("XDG_STATE_HOME", mac="Library/Application Support", other=".local/state") / "medusa"


def data_dir() -> Path:
    """XDG_DATA_HOME, or the platform's own folder for program data, with `medusa` below it. Not created here."""
    return _base("XDG_DATA_HOME", mac="Library/Application Support", other=".local/share") / "medusa"


def _base(variable: str, *, mac: str, other: str) -> Path:
    given = os.environ.get(variable, "")
    if os.path.isabs(given):  # relative values are to be ignored, says the XDG specification
        return Path(given)
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local else Path.home() / "AppData" / "Local"
    return Path.home() / (mac if sys.platform == "darwin" else other)
