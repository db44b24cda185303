"""Other metadata in a GGUF file whose tensors stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .atomic import atomic_file
from .gguf_header import FLOAT32, INT32, UINT32, KeyValue, build, encode_array, encode_kv, read_header
from .sidecar import flatten_tree
from .single_file import chunks, opened


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


def tuned_entries(accuracy: Sequence[Sequence[float]], tree: Sequence[Sequence[int]]) -> list[KeyValue]:
    """What the file of draft heads says of them: accuracy [head][rank], and the tree unless it has no choices."""
    values = [value for row in accuracy for value in row]
    entries = [
        encode_array("medusa.accuracy", FLOAT32, values),
        encode_kv("medusa.accuracy_ranks", UINT32, len(accuracy[0])),
    ]
    return [*entries, encode_array("medusa.tree", INT32, flatten_tree(tree))] if tree else entries
