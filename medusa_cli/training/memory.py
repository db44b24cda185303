"""Small JSON files of a work folder: what an earlier call decided, so that the same call continues with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medusa_cli.support.atomic import atomic_file


def recall(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is none that can be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def remember(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    with atomic_file(path) as file:
        file.write(json.dumps(content).encode())
