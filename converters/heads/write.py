"""Writes converted heads as a sidecar, one tensor at a time."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.support.errors import MedusaError

from ..gguf.header import FLOAT32, INT32, UINT32, KeyValue, encode_array, encode_kv, read_header
from .formats import HeadTensor, SourceHeads
from .schema import ARCHITECTURE, SELF_CHECK_KEY, VERSION, flatten_tree

FALLBACK_TYPE = "f16"


@dataclass(frozen=True)
class HeadsPlan:
    """How heads are written. Types are ggml names ("f16", "q8_0").
    provenance: keys and texts to store.
    """

    base_name: str
    base_fingerprint: str
    output_type: str = "q8_0"
    block_type: str = "f16"
    provenance: Mapping[str, str] = field(default_factory=dict)


def write_heads_file(
    path: Path, source: SourceHeads, plan: HeadsPlan, on_bytes: Callable[[int, int], None] | None = None
) -> None:
    """Writes `source` to `path` (a temporary file of the caller's). Holds one tensor in memory at a time.

    MedusaError for values that the type cannot hold, NaNs included.
    """
    tensors = source.tensors
    writer = GGUFWriter(path, ARCHITECTURE)
    try:
        _add_keys(writer, source, plan)
        types = [tensor_type(tensor, plan) for tensor in tensors]
        sizes = [_nbytes(tensor.shape, type_) for tensor, type_ in zip(tensors, types, strict=True)]
        for tensor, type_, size in zip(tensors, types, sizes, strict=True):
            # With the type given, the shape is taken as it is, in elements.
            raw_type = GGMLQuantizationType[type_.upper()]
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, raw_dtype=raw_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for tensor, type_, size in zip(tensors, types, sizes, strict=True):
            data = _encoded(tensor, type_)
            if data.nbytes != size:
                raise MedusaError(f"{tensor.name}: {data.nbytes} bytes, not the announced {size}: a damaged source")
            writer.write_tensor_data(data)
            done += size
            if on_bytes is not None:
                on_bytes(done, sum(sizes))
    finally:
        writer.close()


def planned_bytes(source: SourceHeads, plan: HeadsPlan) -> int:
    """Bytes of tensor data that write_heads_file() will write."""
    return sum(_nbytes(tensor.shape, tensor_type(tensor, plan)) for tensor in source.tensors)


def tensor_type(tensor: HeadTensor, plan: HeadsPlan) -> str:
    """ggml type a tensor is stored in: biases F32, maps I32; F16 where rows do not fill the type's blocks."""
    if tensor.role == "map":
        return "i32"
    if len(tensor.shape) == 1:
        return "f32"
    wanted = plan.output_type if tensor.role == "output" else plan.block_type
    block, _ = GGML_QUANT_SIZES[_quant(wanted)]
    return wanted if tensor.shape[-1] % block == 0 else FALLBACK_TYPE


def patch_f32_array(path: Path, key: str, values: Sequence[float]) -> None:
    """Overwrites the numbers of a f32 array in the metadata of a GGUF, in place. MedusaError when it is not there."""
    header, _ = read_header(path)
    entry = next((entry for entry in header.kv if entry.key == key), None)
    data = np.asarray(values, dtype="<f4").tobytes()
    if entry is None or not isinstance(entry.value, list) or len(entry.value) * 4 != len(data):
        raise MedusaError(f"{path}: no array {key} of {len(values)} numbers")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), header.data_offset) as view:
        at = view.find(entry.raw)
        end = at + len(entry.raw)
        view[end - len(data) : end] = data


def _add_keys(writer: GGUFWriter, source: SourceHeads, plan: HeadsPlan) -> None:
    writer.add_uint32("medusa.version", VERSION)
    writer.add_string("medusa.kind", source.kind)
    writer.add_uint32("medusa.head_count", source.head_count)
    writer.add_uint32("medusa.block_count", source.block_count)
    writer.add_string("medusa.lm_head", source.lm_head)
    if source.lm_head == "draft_vocab":
        writer.add_uint32("medusa.draft_vocab_size", source.rows)
    writer.add_string("medusa.input", "post_norm")
    for key, value in source.metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    writer.add_array(SELF_CHECK_KEY, [float("nan")] * source.head_count)
    writer.add_string("medusa.base.name", plan.base_name)
    writer.add_string("medusa.base.fingerprint", plan.base_fingerprint)
    for key, text in plan.provenance.items():
        writer.add_string(key, text)


def with_draft_vocabulary(source: SourceHeads, tokens: NDArray[np.int32]) -> SourceHeads:
    """The same heads over the base tokens `tokens` alone: rows of every lm_head selected, medusa.d2t added (FR-Spec).

    Heads on the base's lm_head take its rows when they are loaded. MedusaError when none of the tokens has a row.
    """
    stored = next((tensor.load() for tensor in source.tensors if tensor.role == "map"), None)
    rows, kept = np.asarray(tokens), np.asarray(tokens, dtype=np.int32)
    if stored is not None:
        row_of = {int(token): row for row, token in enumerate(stored)}
        kept = np.array([token for token in tokens if int(token) in row_of], dtype=np.int32)
        rows = np.array([row_of[int(token)] for token in kept])
    if len(rows) == 0:
        raise MedusaError("--draft-vocab: none of the frequent tokens are in the heads' own draft vocabulary")

    def selected(tensor: HeadTensor) -> HeadTensor:
        if tensor.role not in ("output", "output_bias"):
            return tensor
        shape = (len(rows), *tensor.shape[1:])
        return HeadTensor(tensor.name, shape, tensor.role, lambda: np.ascontiguousarray(tensor.load()[rows]))

    tensors = [selected(tensor) for tensor in source.tensors if tensor.role != "map"]
    tensors.append(HeadTensor("medusa.d2t", (len(kept),), "map", lambda: kept))
    return replace(source, tensors=tensors, rows=len(kept), lm_head="draft_vocab")


def _encoded(tensor: HeadTensor, type_: str) -> NDArray[np.generic]:
    values = tensor.load()
    if type_ == "i32":
        return np.ascontiguousarray(values, dtype=np.int32)
    if not np.isfinite(values).all():
        raise MedusaError(f"{tensor.name}: holds NaN or infinite values, the checkpoint is damaged")
    if type_ == "f32":
        return np.ascontiguousarray(values, dtype=np.float32)
    if type_ == "f16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise MedusaError(f"{tensor.name}: holds values beyond F16, choose --heads-quant BF16 or F32")
    matrix = np.ascontiguousarray(values, dtype=np.float32)
    return np.frombuffer(native.quantize_rows(type_, matrix), np.uint8)


def _quant(type_: str) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType[type_.upper()]
    except KeyError:
        raise MedusaError(f"type {type_} is unknown, choose F16, BF16, F32, Q8_0, Q6_K, Q5_0, Q4_K or Q4_0") from None


def _row_bytes(columns: int, type_: str) -> int:
    block, size = GGML_QUANT_SIZES[_quant(type_)]
    return columns // block * size


def _nbytes(shape: tuple[int, ...], type_: str) -> int:
    return int(np.prod(shape[:-1], dtype=np.int64)) * _row_bytes(shape[-1], type_)


def tuned_entries(accuracy: Sequence[Sequence[float]], tree: Sequence[Sequence[int]]) -> list[KeyValue]:
    """What the file of draft heads says of them: accuracy [head][rank], and the tree unless it has no choices."""
    values = [value for row in accuracy for value in row]
    entries = [
        encode_array("medusa.accuracy", FLOAT32, values),
        encode_kv("medusa.accuracy_ranks", UINT32, len(accuracy[0])),
    ]
    return [*entries, encode_array("medusa.tree", INT32, flatten_tree(tree))] if tree else entries
