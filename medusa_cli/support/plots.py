"""Pictures of figures, written with matplotlib (the extra `plot`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png", ".pdf")


def check(path: Path, option: str = "--plot") -> None:
    """MedusaError when no picture could be written to `path`, before anything is measured. option: what asks for it."""
    if path.suffix.lower() not in FORMATS:
        raise MedusaError(f"{path}: a plot is {', '.join(FORMATS)}: give a name with one of these endings")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MedusaError(f"{option} needs matplotlib: run `pip install 'medusa-cli[plot]'`") from error


def save(figure: Figure, path: Path) -> None:
    """Writes `figure` in the format that the ending of `path` names: whole, or not at all."""
    from medusa_cli.support.atomic import atomic_path

    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower().removeprefix("."))
