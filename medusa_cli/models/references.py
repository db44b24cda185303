"""Model references: a path to a GGUF file, or `demo`, which is fetched once and kept in the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.models import demo
from medusa_cli.models.gguf_files import read_header
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console


HEADS_ARCHITECTURE = "medusa"


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
    if reference == demo.DEMO:
        return ModelRef(demo.DEMO, demo.demo_base(console), demo.DEMO_HEADS)
    path = Path(reference).expanduser()
    header = read_header(path)
    if header.metadata.get("general.architecture") == HEADS_ARCHITECTURE:
        raise MedusaError(f"{path} holds draft heads, not a model: give the model, and --heads {path}")
    return ModelRef(path.name, path)
