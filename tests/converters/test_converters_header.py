"""Raw GGUF headers: round trips with gguf-py and hypothesis, damaged bytes."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cli.converters.gguf import header as gh
from medusa_cli.converters.gguf.fingerprint import fingerprint

from medusa_cli.support.errors import MedusaError

keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=20)
scalars = st.one_of(
    st.tuples(st.just(gh.UINT32), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(gh.INT32), st.integers(-(2**31), 2**31 - 1)),
    st.tuples(st.just(gh.UINT64), st.integers(0, 2**64 - 1)),
    st.tuples(st.just(gh.FLOAT32), st.floats(width=32, allow_nan=False)),
    st.tuples(st.just(gh.BOOL), st.booleans()),
    st.tuples(st.just(gh.STRING), st.text(st.characters(codec="utf-8"), max_size=50)),
)
shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4)


def placed(names: list[str], sizes: list[list[int]], alignment: int) -> list[gh.TensorInfo]:
    tensors, at = [], 0
    for name, shape in zip(names, sizes, strict=False):
        nbytes = 4 * int(np.prod(shape))
        tensors.append(gh.TensorInfo(name, tuple(shape), int(GGMLQuantizationType.F32), at, nbytes))
        at = gh.padded(at + nbytes, alignment)
    return tensors


@given(
    entries=st.dictionaries(keys.filter(lambda key: key != "general.alignment"), scalars, max_size=6),
    names=st.lists(keys, unique=True, max_size=5),
    sizes=st.lists(shapes, min_size=5, max_size=5),
    alignment=st.sampled_from([8, 32, 64]),
    prefix=st.binary(max_size=40),
)
@settings(max_examples=150)
def test_build_then_parse_gives_everything_back(
    entries: dict[str, tuple[int, Any]], names: list[str], sizes: list[list[int]], alignment: int, prefix: bytes
) -> None:
    kv = [gh.encode_kv(key, kind, value) for key, (kind, value) in entries.items()]
    kv.append(gh.encode_kv("general.alignment", gh.UINT32, alignment))
    tensors = placed(names, sizes, alignment)
    data = gh.build(kv, tensors, alignment)

    header = gh.parse(prefix + data, "x", start=len(prefix))

    assert header.data_offset == len(data)
    assert len(data) % alignment == 0
    assert [entry.raw for entry in header.kv] == [entry.raw for entry in kv]
    assert {key: value for key, (_, value) in entries.items()}.items() <= header.metadata().items()
    assert list(header.tensors) == tensors
    assert gh.build(header.kv, header.tensors, header.alignment) == data


@given(cut=st.floats(0, 1), flip=st.floats(0, 1), value=st.integers(0, 255))
@settings(max_examples=200)
def test_damaged_bytes_are_parsed_or_refused(cut: float, flip: float, value: int) -> None:
    kv = [
        gh.encode_kv("general.architecture", gh.STRING, "llama"),
        gh.KeyValue("list", gh.ARRAY, gh.encode_string("list") + struct.pack("<IIQ3I", 9, 4, 3, 7, 8, 9)),
        gh.KeyValue(
            "words", gh.ARRAY, gh.encode_string("words") + struct.pack("<IIQ", 9, 8, 2) + gh.encode_string("ab") * 2
        ),
    ]
    data = bytearray(gh.build(kv, placed(["a", "b"], [[3], [2, 2]], 32), 32))
    data[int(flip * (len(data) - 1))] = value
    with contextlib.suppress(MedusaError):
        gh.parse(bytes(data[: int(cut * len(data))]), "x").metadata()


def test_agrees_with_gguf_py(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_array("words", ["a", "bc", "ü"])
    writer.add_array("numbers", [1.5, 2.5])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    header, size = gh.read_header(path)
    reader = GGUFReader(path)

    assert size == path.stat().st_size
    assert header.metadata() == {"general.architecture": "llama", "words": ["a", "bc", "ü"], "numbers": [1.5, 2.5]}
    assert header.data_offset == reader.data_offset
    for mine, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert (mine.name, list(mine.shape), mine.nbytes) == (theirs.name, theirs.shape.tolist(), theirs.n_bytes)
        assert header.data_offset + mine.offset == theirs.data_offset
    assert header.tensors[0].shape == (3, 2)


def raw(body: bytes, kv: int = 0, tensors: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, kv) + body


TENSOR = gh.encode_string("t") + struct.pack("<IQIQ", 1, 4, 0, 0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"GG", "truncated"),
        (raw(b"", magic=b"GGML"), "not a GGUF"),
        (raw(b"", version=1), "version 1"),
        (raw(b"", version=0x03000000), "little-endian"),
        (raw(b"", kv=2**60), "truncated"),
        (raw(struct.pack("<Q", 2**63) + b"abc", kv=1), "truncated"),
        (raw(gh.encode_string("k") + struct.pack("<I", 99), kv=1), "unknown type 99"),
        (raw(gh.encode_string("k") + struct.pack("<IIQ", 9, 9, 1), kv=1), "unknown type 9"),
        (raw(gh.encode_string("k") + struct.pack("<IIQ", 9, 8, 2**62), kv=1), "truncated"),
        (raw(gh.encode_kv("k", gh.BOOL, True).raw * 2, kv=2), "appears twice"),
        (raw(gh.encode_kv("general.alignment", gh.UINT32, 3).raw, kv=1), "alignment 3"),
        (raw(gh.encode_kv("general.alignment", gh.STRING, "x").raw, kv=1), "alignment 'x'"),
        (raw(TENSOR * 2, tensors=2), "appears twice"),
        (raw(gh.encode_string("t") + struct.pack("<I", 9), tensors=1), "9 dimensions"),
        (raw(gh.encode_string("t") + struct.pack("<IQIQ", 1, 0, 0, 0), tensors=1), "lies at 0"),
        (raw(gh.encode_string("t") + struct.pack("<IQIQ", 1, 4, 0, 32), tensors=1), "lies at 32"),
        (raw(gh.encode_string("t") + struct.pack("<IQIQ", 1, 4, 9999, 0), tensors=1), "unknown tensor type"),
        (raw(gh.encode_string("t") + struct.pack("<IQIQ", 1, 5, 8, 0), tensors=1), "whole blocks"),
    ],
)
def test_hostile_headers_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(MedusaError, match=message):
        gh.parse(data, "x")


def test_tensor_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gh.build([], placed(["a"], [[1000]], 32), 32) + bytes(3999))
    with pytest.raises(MedusaError, match="1 bytes are missing"):
        gh.read_header(path)


@pytest.mark.parametrize("kind", ["missing", "directory", "empty"])
def test_unreadable_files_are_one_clear_error(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.gguf"
    if kind == "directory":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    with pytest.raises(MedusaError, match=r"a\.gguf"):
        gh.read_header(path)


BASE: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.attention.head_count": 4,
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}


def test_fingerprint_ignores_the_quantization_and_the_name() -> None:
    other = {**BASE, "general.file_type": 7, "general.name": "x", "tokenizer.chat_template": "t"}
    assert fingerprint(other) == fingerprint(BASE)
    assert fingerprint(BASE).startswith("llama-2x64-3-")


@pytest.mark.parametrize(
    "change",
    [
        {"llama.attention.head_count": 8},
        {"llama.attention.head_count_kv": 2},
        {"llama.block_count": 3},
        {"llama.embedding_length": 32},
        {"tokenizer.ggml.tokens": ["a", "b", "d"]},
        {"tokenizer.ggml.tokens": ["ab", "", "c"]},
        {"tokenizer.ggml.model": "gpt2"},
    ],
)
def test_fingerprint_sees_shapes_and_vocabulary(change: dict[str, Any]) -> None:
    assert fingerprint({**BASE, **change}) != fingerprint(BASE)


def test_fingerprint_of_something_else_is_refused() -> None:
    with pytest.raises(MedusaError, match="not a language model"):
        fingerprint({"general.architecture": "clip"})
