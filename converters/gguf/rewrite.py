"""Other metadata in a GGUF file whose tensors stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..files import atomic_file, chunks, opened
from .header import KeyValue, build, read_header


def replace_metadata(path: Path, entries: Sequence[KeyValue]) -> None:
    """Rewrites the file with `entries` in place of those of the same keys: whole, or not at all.

    Tensors keep their bytes and their places in the data region, also those of a base model inside. MedusaError where
    the file is no GGUF or its folder cannot be written.
    """
    header, size = read_header(path)
    changed = {entry.key: entry for entry in entries}
    kept = [changed.pop(entry.key, entry) for entry in header.kv]
    start = build([*kept, *changed.values()], header.tensors, header.alignment, header.version)
    with opened(path) as source, atomic_file(path) as out:
        out.write(start)
        out.writelines(chunks(source, header.data_offset, size - header.data_offset))
