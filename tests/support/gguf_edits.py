"""Copies of GGUF files with other values in their headers, or without some of their tensors."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from medusa_cli.converters.gguf import header as gh


def encoded(key: str, value: Any) -> gh.KeyValue:
    """An entry: of 32 bits for integers, an array of strings or numbers for lists."""
    if isinstance(value, bool):
        return gh.encode_kv(key, gh.BOOL, value)
    if isinstance(value, int):
        return gh.encode_kv(key, gh.UINT32, value)
    if isinstance(value, float):
        return gh.encode_kv(key, gh.FLOAT32, value)
    if isinstance(value, str):
        return gh.encode_kv(key, gh.STRING, value)
    if isinstance(value[0], str):
        body = struct.pack("<IQ", gh.STRING, len(value)) + b"".join(map(gh.encode_string, value))
        return gh.KeyValue(key, gh.ARRAY, gh.encode_string(key) + struct.pack("<I", gh.ARRAY) + body)
    kinds: dict[type, int] = {bool: gh.BOOL, int: gh.UINT32, float: gh.FLOAT32}
    return gh.encode_array(key, kinds[type(value[0])], value)


def edited(
    source: Path,
    target: Path,
    values: Mapping[str, Any] | None = None,
    *,
    without: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> Path:
    """A copy of `source` as `target`. values: of keys, new ones at the end. without: keys and tensors left out."""
    header, left = gh.read_header(source)[0], dict(values or {})
    data = source.read_bytes()[header.data_offset :]
    entries = [
        encoded(entry.key, left.pop(entry.key)) if entry.key in left else entry
        for entry in header.kv
        if entry.key not in without
    ]
    tensors, body = [], bytearray()
    for tensor in header.tensors:
        if tensor.name in without:
            continue
        tensors.append(replace(tensor, name=(renamed or {}).get(tensor.name, tensor.name), offset=len(body)))
        body += data[tensor.offset : tensor.offset + tensor.nbytes]
        body += bytes(-len(body) % header.alignment)
    entries += [encoded(key, value) for key, value in left.items()]
    target.write_bytes(gh.build(entries, tensors, header.alignment) + body)
    return target


def tensor_names(path: Path) -> list[str]:
    return [tensor.name for tensor in gh.read_header(path)[0].tensors]
