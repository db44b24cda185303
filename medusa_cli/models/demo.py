"""The demo: a small base model, fetched once and kept in the cache, and the draft heads that ship with the package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.models.assets import DEMO_BASE, Asset, cache_path, is_intact, remember
from medusa_cli.models.gguf_files import check_is_file
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded

if TYPE_CHECKING:
    from rich.console import Console


DEMO = "demo"

DEMO_VARIABLE = "MEDUSA_DEMO_MODEL"

DEMO_HEADS = Path(__file__).parent.parent / "data" / "demo-heads.gguf"


SAMPLING = {"general.sampling.penalty_repeat": 1.1}
"""What its file would say of sampling, if it said anything: without a penalty, most of its answers never end."""


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
    path = cache_path(asset)
    if path.is_file() and is_intact(path, asset):
        return path
    from medusa_cli.models import fetch

    fetch.fetch(asset, path, console)
    remember(path, asset)
    return path
