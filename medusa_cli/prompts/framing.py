"""Texts of files in a prompt: each under its name and in a fence, then what is said about them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from medusa_cli.support.errors import visible


def framed(name: str, text: str) -> str:
    """The text of a file in a fence that nothing in it closes, below the file's name."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{visible(name, keep='')}:\n{fence}\n{text}\n{fence}"


def with_files(files: Iterable[tuple[str, str]], text: str) -> str:
    """A prompt from the (name, text) of files and what is said about them."""
    return "\n\n".join([*(framed(*file) for file in files), *([text] if text else [])])
