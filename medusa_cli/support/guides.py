"""The guides of docs/, which a wheel holds, too: finding one, and reading it in a terminal."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, ConsoleOptions
from rich.markdown import Markdown, TableElement
from rich.table import Table

from medusa_cli.support.errors import MedusaError

_PACKAGE = Path(__file__).parents[1]
_OF_COMMAND = re.compile(r"^## Options of `medusa ([a-z]+)`$", re.MULTILINE)


def guides() -> dict[str, Path]:
    """The pages by name. In a source folder, and an editable install of one, those of docs/."""
    installed = _PACKAGE / "guides"
    folder = installed if installed.is_dir() else _PACKAGE.parent / "docs"
    return {page.stem: page for page in sorted(folder.glob("*.md"))}


def topics() -> dict[str, Path]:
    """What `find` knows: the guides, and commands whose options stand in the guide of another."""
    found = guides()
    of_commands = {name: page for page in found.values() for name in _OF_COMMAND.findall(_text(page))}
    return of_commands | found


def find(topic: str) -> str:
    """The guide about a topic, as Markdown. MedusaError, which names similar ones, if there is none."""
    known = topics()
    if topic in known:
        return _text(known[topic])
    near = difflib.get_close_matches(topic.lower(), known)
    likely = f"did you mean {' or '.join(near)}? " if near else ""
    raise MedusaError(f"no guide about {topic!r}: {likely}`medusa help` lists them")


def summary(page: Path) -> str:
    """The beginning of a guide's first sentence."""
    paragraphs = re.sub(r"^```.*?^```$", "", _text(page), flags=re.MULTILINE | re.DOTALL).split("\n\n")
    first = next((one for one in paragraphs if re.match(r"[^\s#|]", one)), "")
    return re.split(r"[.:;](?=\s|$)", " ".join(first.split()))[0]


def show(text: str, out: Console) -> None:
    """Prints a guide: as it is where `out` is no terminal, laid out on one, in a pager if it is longer than that."""
    if not out.is_terminal:
        out.print(text, end="", markup=False, no_wrap=True)
        return
    page = _laid_out(text)
    if len(out.render_lines(page)) < out.height:
        out.print(page)
        return
    os.environ.setdefault("LESS", "-R")  # shows colours; others are asked by PAGER
    with out.pager(styles=os.name == "posix"):
        out.print(page)


class _FoldedTable(TableElement):
    """Long words break in narrow columns; rich itself cuts them off."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        for table in super().__rich_console__(console, options):
            assert isinstance(table, Table)
            for column in table.columns:
                column.overflow = "fold"
            yield table


class _Page(Markdown):
    elements = Markdown.elements | {"table_open": _FoldedTable}


def _laid_out(text: str) -> Markdown:
    """Links to guides say how to read them. Of links to what is not installed, or to the same page, the words stay."""
    page = _Page(text, hyperlinks=False, code_theme="ansi_dark")
    known = guides()
    for token in page.parsed:
        kept, inside = [], False
        for child in token.children or []:
            if child.type == "link_open":
                address = str(child.attrs["href"])
                guide = address.partition("#")[0].removesuffix(".md")
                child.attrs["href"] = f"medusa help {guide}" if guide in known else address
                inside = guide in known or address.startswith("https:")
            if inside or child.type not in ("link_open", "link_close"):
                kept.append(child)
        token.children = token.children and kept
    return page


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")
