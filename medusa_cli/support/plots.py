"""Pictures of figures, written with matplotlib (the extra `plot`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medusa_cli.support.errors import MedusaError

FORMATS = (".svg", ".png", ".pdf")


def check(path: Path, option: str = "--plot") -> None:
    """MedusaError, before anything is measured, if no picture could be written to `path`. option: the one that asks."""
    if path.suffix.lower() not in FORMATS:
        raise MedusaError(f"{path}: a plot is {', '.join(FORMATS)}: give a name with one of these endings")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MedusaError(f"{option} needs matplotlib: run `pip install 'medusa-cli[plot]'`") from error


@contextlib.contextmanager
def panels(
    path: Path, title: str, *, ratios: Sequence[float] = (1, 1), width: float = 11, dpi: float | str = "figure"
) -> Iterator[tuple[Any, Any]]:
    """Axes side by side to draw on; then writes the picture in the format that the ending of `path` names.

    Whole, or not at all. ratios: of the axes' widths.
    """
    # Its own figure, not pyplot: no window system, no global state.
    from matplotlib.figure import Figure

    from medusa_cli.support.atomic import atomic_path

    figure = Figure(figsize=(width, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=ratios)
    yield left, right
    figure.suptitle(title)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower().removeprefix("."), dpi=dpi)
