"""What people point at: prompt files, standard input, files to write. And small JSON files that remember things."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medusa_cli.support import units
from medusa_cli.support.atomic import atomic_file, atomic_path
from medusa_cli.support.atomic import check_regular as check_regular
from medusa_cli.support.errors import MedusaError

SAMPLE_BYTES = 1 << 20
STANDARD_INPUT = "standard input"


def valid_text(text: str) -> str:
    """A command-line argument as real text: bytes that are not UTF-8 arrive as lone surrogates and are replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def expanded(path: str | Path) -> Path:
    """The path with ~ expanded, if the system knows that person's home. MedusaError for what no file can be called."""
    if "\0" in str(path):
        raise MedusaError(f"{str(path)!r:.80}: no such file, names hold no null byte")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def check_name(path: Path) -> None:
    """MedusaError for names that are not UTF-8, which the engine cannot open."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError as error:
        raise MedusaError(f"{path}: its name is not UTF-8: rename it") from error


@contextlib.contextmanager
def _as_text(name: object) -> Iterator[None]:
    """MedusaError, one line, for whatever can be wrong with a text file."""
    try:
        yield
    except IsADirectoryError as error:
        raise MedusaError(f"{name} is a directory: give a text file") from error
    except FileNotFoundError as error:
        raise MedusaError(f"no such file: {name}") from error
    except OSError as error:
        raise MedusaError(f"cannot read {name}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise MedusaError(f"{name} is not UTF-8 text (byte {error.start}): give a text file") from error
    except ValueError as error:  # a zero byte in its name
        raise MedusaError(f"no such file: {name}") from error


def read_text(path: Path) -> str:
    """Whole UTF-8 text of a file ("-": standard input), less one final line end. MedusaError says what is wrong."""
    is_input = str(path) == "-"
    with _as_text(STANDARD_INPUT if is_input else path):
        return _text(sys.stdin.buffer.read() if is_input else path.read_bytes())


def read_bounded_text(path: Path, most: int, too_much: str) -> tuple[str, int]:
    """The same for a regular file of at most `most` bytes, and its size. too_much: what to say about a larger one.

    MedusaError for whatever goes wrong, and for a zero byte, which texts do not have.
    """
    with _as_text(path):
        check_regular(path)
        with path.open("rb") as file:
            raw = file.read(most + 1)
            if len(raw) > most:
                raise MedusaError(f"{path} has {units.size(file.seek(0, 2))}, {too_much}: give a shorter text")
        text = _text(raw)
    if "\0" in text:
        raise MedusaError(f"{path} is not text (byte {raw.index(0)} is zero): give a text file")
    return text, len(raw)


def _text(raw: bytes) -> str:
    """The text, less one final line end."""
    return raw.decode("utf-8").removesuffix("\n").removesuffix("\r")


def content_hash(path: Path) -> str:
    """Short hash of a file's size, start and end: tells quantizations apart without reading gigabytes."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest = hashlib.sha256(str(size).encode())
        for start in (0, max(0, size - SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def recall(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if there is none that can be read."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def remember(path: Path, content: dict[str, Any]) -> None:
    """Writes what recall() reads, whole or not at all; makes its folder if it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as file:
        file.write(json.dumps(content).encode())


def check_writable(path: Path) -> None:
    """MedusaError now rather than after minutes of measuring, if no file can be written at `path`."""

    class Untouched(Exception):
        pass

    try:
        with atomic_path(path):
            raise Untouched
    except Untouched:
        return
    except OSError as error:
        raise MedusaError(f"{path}: {error.strerror or error}") from error
