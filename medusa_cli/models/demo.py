"""The demo: a small base model, fetched once and kept in the cache, and the draft heads that ship with the package."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.models.assets import DEMO_BASE, Asset, cache_path, is_intact, remember
from medusa_cli.models.gguf_files import check_is_file
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded
from medusa_cli.support.locks import InUse, only_writer

if TYPE_CHECKING:
    from rich.console import Console


DEMO = "demo"

DEMO_VARIABLE = "MEDUSA_DEMO_MODEL"

DEMO_HEADS = Path(__file__).parent.parent / "data" / "demo-heads.gguf"

POLL = 0.5
"""Seconds between checks of a file that another process is fetching."""

SAMPLING = {"general.sampling.penalty_repeat": 1.1}
"""What its file would say about sampling if it said anything: without a penalty, most answers never end."""

CHAT_TEMPERATURE = 0.4
"""In chats and on the server: at 0.7, it gets more of what it knows wrong."""


def demo_base(console: Console, asset: Asset = DEMO_BASE) -> Path:
    """The demo's base model: MEDUSA_DEMO_MODEL if set, else the cached file, fetched first when it is missing."""
    given = os.environ.get(DEMO_VARIABLE)
    if given:
        path = expanded(given)
        check_is_file(path)
        if not is_intact(path, asset):
            raise MedusaError(
                f"{DEMO_VARIABLE}={path} is not {asset.file_name} (sha256 {asset.sha256}): unset it, or give that file"
            )
        return path
    path, told = cache_path(asset), False
    while not _is_here(path, asset):
        from medusa_cli.models import fetch

        try:
            with only_writer(path):
                if not _is_here(path, asset):
                    fetch.fetch(asset, path, console)
                    remember(path, asset)
                return path
        except InUse:
            if not told:
                console.print("The demo model is being fetched by another process: waiting for it.", soft_wrap=True)
            told = True
            time.sleep(POLL)
    return path


def _is_here(path: Path, asset: Asset) -> bool:
    return path.is_file() and is_intact(path, asset)
