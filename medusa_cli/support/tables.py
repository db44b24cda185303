"""Tables of text, for a terminal or as plain lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


MISSING = "-"


@dataclass(frozen=True)
class Table:
    """Texts; the first column is aligned left, the others right. folds: the first one may wrap on a narrow terminal."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    folds: bool = False


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or "-" if there is none."""
    return MISSING if value is None else f"{value:.{digits}f}"


def known(value: object) -> str:
    """A fact, or "unknown" if it is missing."""
    return "unknown" if value is None else str(value)


def print_table(table: Table, out: Console) -> None:
    """Aligned columns; plain lines if there is no terminal."""
    from rich import box
    from rich.table import Table as RichTable

    made = RichTable(
        title=table.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD if out.is_terminal else None,
        pad_edge=False, padding=(0, 2, 0, 0), show_edge=False,
    )  # fmt: skip
    for at, header in enumerate(table.headers):
        folds = table.folds and not at
        made.add_column(
            header, justify="right" if at else "left", no_wrap=not folds, overflow="fold" if folds else "ellipsis"
        )
    for row in table.rows:
        made.add_row(*row)
    out.print(made)


def print_rows(rows: Sequence[tuple[str, str]], out: Console) -> None:
    """Each text after its label; the texts begin in the same column."""
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        out.print(f"[dim]{label.ljust(width)}[/]  ", end="")
        out.print(text, markup=False, soft_wrap=True)
