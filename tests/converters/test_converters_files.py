"""Sidecars and single files: written, joined, split, read by others, and damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import _native_testing as testing
import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cli.converters.gguf import header as gh
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import draft_heads as dh
from medusa_cli.converters.heads import schema, single_file
from medusa_cli.converters.heads.write import rounded, rows_of_gguf

from medusa_cli import native
from medusa_cli.support.errors import MedusaError

HIDDEN = 8


def write_base(path: Path, *, rows: int = 11, extra: bytes = b"", trim: int = 0, **keys: int) -> Path:
    """A little "model": right keys, made-up tensors. trim: bytes of padding to cut off at the end."""
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_token_list([f"t{i}" for i in range(rows)])
    for key, value in keys.items():
        writer.add_uint32(key.replace("__", "."), value)
    rng = np.random.default_rng(rows)
    writer.add_tensor("token_embd.weight", rng.normal(size=(rows, HIDDEN)).astype(np.float32))
    writer.add_tensor("blk.0.odd", rng.integers(0, 100, 3, dtype=np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - trim] + extra)
    return path


def make_heads(base: Path, count: int = 2, **changes: Any) -> dh.DraftHeads:
    rng = np.random.default_rng(count)
    header, _ = gh.read_header(base)
    fields: dict[str, Any] = {
        "blocks": [[dh.Block(rng.normal(size=(HIDDEN, HIDDEN)), rng.normal(size=HIDDEN))] for _ in range(count)],
        "lm_head": "draft_vocab",
        "d2t": np.array([5, 1, 3]),
        "accuracy": [[0.5, 0.25]] * count,
        "tree": [(0,), (1,), (0, 0)],
        "base_name": "tiny",
        "base_fingerprint": fingerprint(header.metadata()),
    }
    return dh.DraftHeads(**{**fields, **changes})


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    base = write_base(tmp_path / "base.gguf")
    dh.write_heads(tmp_path / "heads.gguf", make_heads(base))
    return base, tmp_path / "heads.gguf"


def left_overs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_sidecar_holds_keys_and_tensors(pair: tuple[Path, Path]) -> None:
    base, path = pair
    heads = make_heads(base)
    reader = GGUFReader(path)
    values = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    assert values["general.architecture"] == "medusa"
    assert values["medusa.version"] == 1
    assert values["medusa.kind"] == "medusa"
    assert (values["medusa.head_count"], values["medusa.block_count"]) == (2, 1)
    assert (values["medusa.lm_head"], values["medusa.draft_vocab_size"]) == ("draft_vocab", 3)
    assert values["medusa.input"] == "post_norm"
    assert values["medusa.accuracy"] == [0.5, 0.25, 0.5, 0.25]
    assert values["medusa.accuracy_ranks"] == 2
    assert schema.unflatten_tree(values["medusa.tree"]) == [[0], [1], [0, 0]]
    assert values["medusa.base.fingerprint"] == heads.base_fingerprint
    assert set(tensors) == {f"medusa.{k}.block.0.{part}" for k in (0, 1) for part in ("weight", "bias")} | {
        "medusa.d2t"
    }
    weight = heads.blocks[1][0].weight.astype(np.float16)
    np.testing.assert_array_equal(tensors["medusa.1.block.0.weight"].data, weight)
    np.testing.assert_array_equal(tensors["medusa.0.block.0.bias"].data, heads.blocks[0][0].bias.astype(np.float32))
    assert tensors["medusa.d2t"].data.tolist() == [5, 1, 3]


@pytest.mark.parametrize("lm_head", ["own", "base", "draft_vocab"])
def test_sidecar_of_each_lm_head_kind(tmp_path: Path, lm_head: str) -> None:
    base = write_base(tmp_path / "base.gguf")
    matrix = np.ones((3, HIDDEN), np.float32)
    changes: dict[str, Any] = {"lm_head": lm_head, "d2t": None}
    if lm_head == "own":
        changes["outputs"] = [matrix, matrix]
    if lm_head == "draft_vocab":
        changes |= {"d2t": np.arange(3), "output": matrix}
    dh.write_heads(tmp_path / "heads.gguf", make_heads(base, **changes))
    names = [tensor.name for tensor in gh.read_header(tmp_path / "heads.gguf")[0].tensors]
    assert ("medusa.0.output.weight" in names) == (lm_head == "own")
    assert ("medusa.output.weight" in names) == ("medusa.d2t" in names) == (lm_head == "draft_vocab")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lm_head": "other"}, "unknown lm_head"),
        ({"blocks": []}, "same number of blocks"),
        ({"blocks": [[dh.Block(np.zeros((4, 8)), np.zeros(8))]], "accuracy": ()}, "8 wide"),
        ({"d2t": None}, "needs d2t"),
        ({"output": np.zeros((3, 5))}, "output matrices"),
        ({"output": np.zeros((4, HIDDEN))}, "one row for each"),
        ({"lm_head": "own", "d2t": None}, "one output matrix"),
        ({"accuracy": [[0.5]]}, "heads x ranks"),
        ({"accuracy": [[0.5], [0.5, 0.1]]}, "heads x ranks"),
        ({"blocks": [[dh.Block(np.full((8, 8), 1e6), np.zeros(8))]] * 2}, "F16"),
        ({"blocks": [[dh.Block(np.zeros((8, 8)), np.full(8, np.nan))]] * 2}, "learning rate"),
    ],
)
def test_heads_that_do_not_fit_together_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    base = write_base(tmp_path / "base.gguf")
    with pytest.raises(MedusaError, match=message):
        dh.write_heads(tmp_path / "heads.gguf", make_heads(base, **changes))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.gguf"]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=20))
def test_trees_flatten_and_back(choices: list[list[int]]) -> None:
    assert schema.unflatten_tree(schema.flatten_tree(choices)) == choices


@pytest.mark.parametrize("values", [[0], [2, 1], [1, -1], [-1, 0], [1, 0, 3]])
def test_broken_flat_trees_are_refused(values: list[int]) -> None:
    with pytest.raises(MedusaError, match=r"medusa\.tree"):
        schema.unflatten_tree(values)


def test_join_then_split_gives_both_files_back(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    seen: list[tuple[int, int]] = []
    single_file.join(base, heads, tmp_path / "one.gguf", lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == (tmp_path / "one.gguf").stat().st_size

    single_file.split(tmp_path / "one.gguf", tmp_path / "b.gguf", tmp_path / "h.gguf")
    assert (tmp_path / "b.gguf").read_bytes() == base.read_bytes()
    assert (tmp_path / "h.gguf").read_bytes() == heads.read_bytes()
    assert not left_overs(tmp_path)


@given(
    rows=st.integers(1, 40),
    heads=st.integers(1, 4),
    trim=st.integers(0, 29),
    alignment=st.sampled_from([8, 32, 128]),
)
@settings(max_examples=25)
def test_round_trip_of_any_shape(tmp_path: Path, rows: int, heads: int, trim: int, alignment: int) -> None:
    """trim: the base's last tensor (3 bytes) may or may not be padded."""
    base = write_base(tmp_path / "base.gguf", rows=rows)
    header, _ = gh.read_header(base)
    kv = [*header.kv, gh.encode_kv("general.alignment", gh.UINT32, alignment)]
    sizes, offsets, at = [t.nbytes for t in header.tensors], [], 0
    for size in sizes:
        offsets.append(at)
        at = gh.padded(at + size, alignment)
    tensors = [
        gh.TensorInfo(t.name, t.shape, t.type, o, t.nbytes) for t, o in zip(header.tensors, offsets, strict=True)
    ]
    body = b"".join(bytes([i + 1]) * size + bytes(-size % alignment) for i, size in enumerate(sizes))
    data = gh.build(kv, tensors, alignment) + body
    base.write_bytes(data[: len(data) - min(trim, alignment - 3)])
    dh.write_heads(tmp_path / "heads.gguf", make_heads(base, heads))

    single_file.join(base, tmp_path / "heads.gguf", tmp_path / "one.gguf")
    single_file.split(tmp_path / "one.gguf", tmp_path / "b.gguf", tmp_path / "h.gguf")

    assert (tmp_path / "b.gguf").read_bytes() == base.read_bytes()
    assert (tmp_path / "h.gguf").read_bytes() == (tmp_path / "heads.gguf").read_bytes()


def test_single_file_is_a_valid_gguf_for_others(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    one = tmp_path / "one.gguf"
    single_file.join(base, heads, one)
    reader, base_reader = GGUFReader(one), GGUFReader(base)
    tensors = {tensor.name: tensor for tensor in reader.tensors}

    assert reader.tensors[0].name == schema.BASE_HEADER
    blob = tensors[schema.BASE_HEADER]
    assert blob.data.tobytes() == base.read_bytes()[: base_reader.data_offset]
    for tensor in base_reader.tensors:
        np.testing.assert_array_equal(tensors[tensor.name].data, tensor.data)
        assert tensors[tensor.name].data_offset - blob.data_offset == tensor.data_offset
    for tensor in GGUFReader(heads).tensors:
        np.testing.assert_array_equal(tensors[tensor.name].data, tensor.data)

    file = native.read_gguf(str(one))
    assert [tensor.name for tensor in file.tensors] == [tensor.name for tensor in reader.tensors]
    assert [tensor.offset for tensor in file.tensors] == [tensor.data_offset for tensor in reader.tensors]
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["medusa.head_count"] == 2
    assert fingerprint(file.metadata) == file.metadata["medusa.base.fingerprint"]


def test_join_refuses_wrong_pairs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    one = tmp_path / "one.gguf"
    single_file.join(base, heads, one)
    other = write_base(tmp_path / "other.gguf", rows=12)
    shard = write_base(tmp_path / "shard.gguf", split__count=2)
    long = write_base(tmp_path / "long.gguf", extra=b"x" * 40)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(base.read_bytes()[:-40])
    plain = tmp_path / "plain.txt"
    plain.write_text("not a model")
    for first, second, message in [
        (other, heads, "choose the right pair"),
        (one, heads, "already contains heads"),
        (base, base, "not a heads file"),
        (base, one, "not a heads file"),
        (shard, heads, "split model"),
        (long, heads, "unknown bytes"),
        (cut, heads, "truncated"),
        (plain, heads, "not a GGUF"),
        (base, plain, "not a GGUF"),
        (tmp_path / "none.gguf", heads, "No such file"),
    ]:
        with pytest.raises(MedusaError, match=message):
            single_file.join(first, second, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()
    assert not left_overs(tmp_path)


def test_outputs_never_overwrite_inputs(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    with pytest.raises(MedusaError, match="overwrite"):
        single_file.join(base, heads, base)
    one = tmp_path / "one.gguf"
    single_file.join(base, heads, one)
    with pytest.raises(MedusaError, match="overwrite"):
        single_file.split(one, tmp_path / "x.gguf", tmp_path / "x.gguf")
    (tmp_path / "link.gguf").symlink_to(one)
    with pytest.raises(MedusaError, match="overwrite"):
        single_file.split(one, tmp_path / "link.gguf", tmp_path / "y.gguf")


def test_split_refuses_other_files(pair: tuple[Path, Path], tmp_path: Path) -> None:
    for path in pair:
        with pytest.raises(MedusaError, match="nothing to split"):
            single_file.split(path, tmp_path / "b", tmp_path / "h")


def rebuilt(one: Path, out: Path, **changes: Any) -> Path:
    """The single file with parts of its outer header replaced; data as it was."""
    header, _ = gh.read_header(one)
    parts = {"kv": list(header.kv), "tensors": list(header.tensors), **changes}
    out.write_bytes(gh.build(parts["kv"], parts["tensors"], 32) + one.read_bytes()[header.data_offset :])
    return out


def test_split_refuses_damaged_single_files(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    one = tmp_path / "one.gguf"
    single_file.join(base, heads, one)
    header, size = gh.read_header(one)
    kv, tensors = list(header.kv), list(header.tensors)
    wrong_size = gh.encode_kv(schema.BASE_SIZE_KEY, gh.UINT64, 2**40)
    renamed = gh.TensorInfo("other", *list(tensors[1].__dict__.values())[1:])
    stray = gh.TensorInfo("stray", *list(tensors[-1].__dict__.values())[1:])
    blob = tensors[0]
    as_f16 = gh.TensorInfo(blob.name, (blob.nbytes // 2,), 1, 0, blob.nbytes)
    damaged = {
        "does not fit": rebuilt(one, tmp_path / "1", kv=[*kv[:-1], wrong_size]),
        "disagree": rebuilt(one, tmp_path / "2", tensors=[blob, renamed, *tensors[2:]]),
        "is not part of heads": rebuilt(one, tmp_path / "3", tensors=[*tensors[:-1], stray]),
        "wrong type": rebuilt(one, tmp_path / "4", tensors=[as_f16, *tensors[1:]]),
        "disagree ": rebuilt(one, tmp_path / "5", kv=kv[1:]),
    }
    blob_bytes = bytearray(one.read_bytes())
    struct.pack_into("<Q", blob_bytes, header.data_offset + 8, 2**50)
    (tmp_path / "6").write_bytes(blob_bytes)
    damaged[r"\(medusa.base_header\)"] = tmp_path / "6"
    (tmp_path / "7").write_bytes(one.read_bytes()[: size - 64])
    damaged["bytes are missing"] = tmp_path / "7"
    for message, path in damaged.items():
        with pytest.raises(MedusaError, match=message.strip()):
            single_file.split(path, tmp_path / "b", tmp_path / "h")
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "h").exists()
    assert not left_overs(tmp_path)


def test_single_file_without_the_size_key_still_splits(pair: tuple[Path, Path], tmp_path: Path) -> None:
    base, heads = pair
    one = tmp_path / "one.gguf"
    single_file.join(base, heads, one)
    header, _ = gh.read_header(one)
    assert header.kv[-1].key == schema.BASE_SIZE_KEY
    single_file.split(rebuilt(one, tmp_path / "two", kv=header.kv[:-1]), tmp_path / "b", tmp_path / "h")
    assert (tmp_path / "b").read_bytes() == base.read_bytes()


def test_a_failed_write_leaves_nothing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    def broken(done: int, total: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(MedusaError, match="no space left"):
        single_file.join(*pair, tmp_path / "one.gguf", broken)
    with pytest.raises(MedusaError):
        single_file.join(*pair, tmp_path / "none" / "one.gguf")
    assert not (tmp_path / "one.gguf").exists()
    assert not left_overs(tmp_path)


@pytest.mark.parametrize("type_", ["f32", "f16", "bf16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1"])
def test_rows_of_gguf_are_those_of_the_engine(type_: str) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((400, 64)) * 10.0 ** rng.integers(-7, 4, (400, 1))
    values = np.concatenate([rows, np.round(rows * 2) / 2, np.full((1, 64), -0.0)]).astype(np.float32)
    ours, theirs = rows_of_gguf(type_, values), bytes(native.quantize_rows(type_, values))
    if type_ not in ("q5_0", "q5_1", "q4_0", "q4_1"):  # their rows of zeros may differ in a sign
        assert ours == theirs
    assert np.array_equal(rounded(values, type_), testing.dequantize_rows(type_, theirs, 64))
