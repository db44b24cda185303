"""Files read in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import MedusaError
from ..files import check_regular, explain_os_error

CHUNK = 4 << 20


def chunks(source: BinaryIO, start: int, count: int) -> Iterator[bytes]:
    """`count` bytes from `start` on. MedusaError when they end early."""
    source.seek(start)
    while count:
        data = source.read(min(CHUNK, count))
        if not data:
            raise MedusaError("the input file became shorter while it was read, run the command again")
        yield data
        count -= len(data)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file for reading. MedusaError where that fails."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise explain_os_error(error, path) from error
