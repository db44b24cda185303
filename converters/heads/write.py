"""Draft heads, fitted to their base, as a sidecar: a GGUF of architecture "medusa" without anything of the base."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from ..errors import MedusaError
from ..gguf.header import (
    BOOL,
    DEFAULT_ALIGNMENT,
    FLOAT32,
    INT32,
    STRING,
    UINT32,
    KeyValue,
    TensorInfo,
    build,
    encode_array,
    encode_kv,
    padded,
    placed,
    read_header,
    tensor_bytes,
)
from . import schema
from .formats import HeadTensor, SourceHeads

FALLBACK_TYPE = "f16"

Encoder = Callable[[str, NDArray[np.float32]], bytes]
"""(ggml type, values [rows, columns]) -> the bytes of the rows."""


def rows_of_gguf(type_: str, values: NDArray[np.float32]) -> bytes:
    """Rows as gguf-py encodes them, F16 and Q8_0 bit for bit like ggml. MedusaError for K-quants, which it lacks."""
    return _quantized(type_, values).tobytes()


class BeyondF16(MedusaError):
    """A tensor needs a type that can hold larger values."""


@dataclass(frozen=True)
class HeadsPlan:
    """How heads are written. Types are ggml names ("f16", "q8_0").
    provenance: keys and texts to store. measured: entries on how well the heads draft. encode: the quantizer; an
    engine's, passed in, knows more types.
    """

    base_name: str
    base_fingerprint: str
    output_type: str = "q8_0"
    block_type: str = "f16"
    provenance: Mapping[str, str] = field(default_factory=dict)
    measured: Sequence[KeyValue] = ()
    encode: Encoder = rows_of_gguf


def write_heads_file(
    path: Path, source: SourceHeads, plan: HeadsPlan, on_bytes: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Writes `source` to `path` (the caller's temporary file). Holds one tensor in memory at a time.

    The same heads give the same bytes. MedusaError for values that the type cannot hold, including NaNs.
    """
    infos = placed([_info(tensor, plan) for tensor in source.tensors], 0, DEFAULT_ALIGNMENT)
    done, total = 0, sum(info.nbytes for info in infos)
    with path.open("wb") as file:
        file.write(build(_entries(source, plan), infos, DEFAULT_ALIGNMENT))
        for tensor, info in zip(source.tensors, infos, strict=True):
            data = _encoded(tensor, tensor_type(tensor, plan), plan.encode)
            if data.nbytes != info.nbytes:
                raise MedusaError(
                    f"{tensor.name}: {data.nbytes} bytes, not the announced {info.nbytes}: a damaged source"
                )
            file.write(data.data)
            file.write(bytes(padded(info.nbytes, DEFAULT_ALIGNMENT) - info.nbytes))
            done += info.nbytes
            on_bytes(done, total)


def planned_bytes(source: SourceHeads, plan: HeadsPlan) -> int:
    """Bytes of tensor data that write_heads_file() will write."""
    return sum(_info(tensor, plan).nbytes for tensor in source.tensors)


def tensor_type(tensor: HeadTensor, plan: HeadsPlan) -> str:
    """The ggml type of a stored tensor: F32 for biases and what is added to states, I32 for maps, F16 if rows do not
    fill the type's blocks."""
    if tensor.role == "map":
        return "i32"
    if len(tensor.shape) == 1 or tensor.role == "embedding":
        return "f32"
    return _type_of_rows(plan.output_type if tensor.role == "output" else plan.block_type, tensor.shape[-1])


def rounded(matrix: NDArray[np.floating], wanted: str) -> NDArray[np.float32]:
    """`matrix` [rows, columns] as read from a file whose weights should have type `wanted`."""
    type_ = _type_of_rows(wanted, matrix.shape[-1])
    return dequantize(_quantized(type_, np.asarray(matrix, np.float32)), _quant(type_))


def patch_f32_array(path: Path, key: str, values: Sequence[float]) -> None:
    """Overwrites the numbers of an f32 array in a GGUF's metadata, in place. MedusaError if it is not there."""
    header, _ = read_header(path)
    entry = next((entry for entry in header.kv if entry.key == key), None)
    data = np.asarray(values, dtype="<f4").tobytes()
    if entry is None or not isinstance(entry.value, list) or len(entry.value) * 4 != len(data):
        raise MedusaError(f"{path}: no array {key} of {len(values)} numbers")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), header.data_offset) as view:
        at = view.find(entry.raw)
        end = at + len(entry.raw)
        view[end - len(data) : end] = data


def _entries(source: SourceHeads, plan: HeadsPlan) -> list[KeyValue]:
    """All keys of the file, in its order."""
    draft_vocab = {schema.DRAFT_VOCAB_SIZE_KEY: source.rows} if source.lm_head == "draft_vocab" else {}
    values: dict[str, int | float | str] = {
        "general.architecture": schema.ARCHITECTURE,
        schema.VERSION_KEY: schema.VERSION,
        schema.KIND_KEY: source.kind,
        schema.HEAD_COUNT_KEY: source.head_count,
        schema.BLOCK_COUNT_KEY: source.block_count,
        schema.LM_HEAD_KEY: source.lm_head,
        **draft_vocab,
        schema.INPUT_KEY: schema.INPUT,
        **source.metadata,
    }
    base = {schema.BASE_NAME_KEY: plan.base_name, schema.BASE_FINGERPRINT_KEY: plan.base_fingerprint}
    before = [_entry(key, value) for key, value in values.items()]
    after = [_entry(key, text) for key, text in {**base, **plan.provenance}.items()]
    return [*before, *plan.measured, *after]


def _entry(key: str, value: int | float | str) -> KeyValue:
    if isinstance(value, str):
        return encode_kv(key, STRING, value)
    if isinstance(value, bool):
        return encode_kv(key, BOOL, value)
    return encode_kv(key, UINT32 if isinstance(value, int) else FLOAT32, value)


def _encoded(tensor: HeadTensor, type_: str, encode: Encoder) -> NDArray[np.generic]:
    values = tensor.load()
    if type_ == "i32":
        return np.ascontiguousarray(values, dtype="<i4")
    if not np.isfinite(values).all():
        raise MedusaError(f"{tensor.name}: holds NaN or infinite values, the checkpoint is damaged")
    if type_ == "f32":
        return np.ascontiguousarray(values, dtype="<f4")
    if type_ == "f16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise BeyondF16(f"{tensor.name}: holds values beyond F16, choose BF16 or F32")
    return np.frombuffer(encode(type_, np.ascontiguousarray(values, dtype=np.float32)), np.uint8)


def _quantized(type_: str, values: NDArray[np.float32]) -> NDArray[np.generic]:
    """Rows as gguf-py stores them in the type; values that F16 cannot hold become infinities."""
    try:
        with np.errstate(over="ignore"):
            return quantize(values, _quant(type_))
    except NotImplementedError:
        raise MedusaError(f"type {type_} needs an engine that quantizes, choose F16, BF16, F32, Q8_0 or Q5_0") from None


def _quant(type_: str) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType[type_.upper()]
    except KeyError:
        raise MedusaError(f"type {type_} is unknown, choose F16, BF16, F32, Q8_0, Q6_K, Q5_0, Q4_K or Q4_0") from None


def _type_of_rows(wanted: str, columns: int) -> str:
    """The type of a matrix: `wanted`, or F16 if rows do not fill its blocks."""
    block, _ = GGML_QUANT_SIZES[_quant(wanted)]
    return wanted if columns % block == 0 else FALLBACK_TYPE


def _info(tensor: HeadTensor, plan: HeadsPlan) -> TensorInfo:
    """The info, with offset 0. numpy's [rows, columns] is ggml's ne = {columns, rows}."""
    shape, type_ = tensor.shape[::-1], int(_quant(tensor_type(tensor, plan)))
    return TensorInfo(tensor.name, shape, type_, 0, tensor_bytes(tensor.name, shape, type_))


def unmeasured(head_count: int) -> KeyValue:
    """Room for what a self-check will find, see patch_f32_array()."""
    return encode_array(schema.SELF_CHECK_KEY, FLOAT32, [math.nan] * head_count)


def tuned_entries(accuracy: Sequence[Sequence[float]], tree: Sequence[Sequence[int]]) -> list[KeyValue]:
    """What a heads file says about its heads: accuracy [head][rank] and the tree's choices, each unless empty."""
    entries = []
    if accuracy:
        values = [float(value) for row in accuracy for value in row]
        entries.append(encode_array(schema.ACCURACY_KEY, FLOAT32, values))
        entries.append(encode_kv(schema.ACCURACY_RANKS_KEY, UINT32, len(accuracy[0])))
    if tree:
        entries.append(encode_array(schema.TREE_KEY, INT32, [int(value) for value in schema.flatten_tree(tree)]))
    return entries


# --- heads for one base ----------------------------------------------------------------------------


def fitted(source: SourceHeads, heads_name: str, base: Mapping[str, Any], base_name: str) -> SourceHeads:
    """`source` for the base with this GGUF metadata, with the keys of a prefix layer if it has one.

    MedusaError, which names both, for a base with another hidden size or vocabulary.
    """
    architecture = base.get("general.architecture")
    hidden = base.get(f"{architecture}.embedding_length")
    vocabulary = len(base.get("tokenizer.ggml.tokens") or [])
    found = wanted = None
    if source.hidden != hidden:
        found, wanted = f"of hidden size {source.hidden}", hidden
    elif source.lm_head == "own" and source.rows != vocabulary:
        found, wanted = f"over {source.rows} tokens", vocabulary
    if found is not None:
        raise MedusaError(f"{heads_name}: heads {found}, the base {base_name} has {wanted}: give their own base")
    return _with_prefix_keys(source, base, str(architecture)) if source.has_prefix else source


def _with_prefix_keys(source: SourceHeads, base: Mapping[str, Any], architecture: str) -> SourceHeads:
    """What the checkpoint does not say about its attention layer, which then has the shape of the base's."""

    def value(key: str, base_key: str, default: float) -> Any:
        return source.metadata.get(key, base.get(f"{architecture}.{base_key}", default))

    count = int(value(schema.PREFIX_HEAD_COUNT_KEY, "attention.head_count", 0))
    keys = prefix_keys(
        source,
        head_count=count,
        head_count_kv=int(value(schema.PREFIX_HEAD_COUNT_KV_KEY, "attention.head_count_kv", count)),
        rope_freq_base=float(value(schema.PREFIX_ROPE_FREQ_BASE_KEY, "rope.freq_base", 10000.0)),
        norm_eps=float(value(schema.PREFIX_NORM_EPS_KEY, "attention.layer_norm_rms_epsilon", 1e-5)),
    )
    return replace(source, metadata={**source.metadata, **keys})


def prefix_keys(
    heads: SourceHeads, *, head_count: int, head_count_kv: int, rope_freq_base: float, norm_eps: float
) -> dict[str, int | float | str]:
    """The medusa.prefix.* keys of Hydra++ heads from their base, whose attention the prefix layer copies.

    The checkpoint itself does not say them. MedusaError when they do not fit the prefix layer's shapes.
    """
    shapes = {item.name: item.shape for item in heads.tensors}
    query, key = shapes[schema.prefix("attn_q")][0], shapes[schema.prefix("attn_k")][0]
    if head_count < 1 or head_count_kv < 1 or query % head_count or key * head_count != query * head_count_kv:
        raise MedusaError(
            f"the heads' prefix layer has {query} x {key} query and key rows, which do not fit a base of {head_count} "
            f"attention heads ({head_count_kv} for keys): choose the base they were trained for"
        )
    return {
        schema.PREFIX_HEAD_COUNT_KEY: head_count,
        schema.PREFIX_HEAD_COUNT_KV_KEY: head_count_kv,
        schema.PREFIX_ROPE_FREQ_BASE_KEY: float(rope_freq_base),
        schema.PREFIX_NORM_EPS_KEY: float(norm_eps),
    }


def with_draft_vocabulary(source: SourceHeads, tokens: NDArray[np.int32]) -> SourceHeads:
    """The same heads over only the base tokens `tokens`: selects rows of every lm_head, adds medusa.d2t (FR-Spec).

    Heads on the base's lm_head take its rows when they are loaded. MedusaError if none of the tokens has a row.
    """
    stored = next((tensor.load() for tensor in source.tensors if tensor.role == "map"), None)
    rows, kept = np.asarray(tokens), np.asarray(tokens, dtype=np.int32)
    if stored is not None:
        row_of = {int(token): row for row, token in enumerate(stored)}
        kept = np.array([token for token in tokens if int(token) in row_of], dtype=np.int32)
        rows = np.array([row_of[int(token)] for token in kept])
    if len(rows) == 0:
        raise MedusaError("none of the frequent tokens are in the heads' own draft vocabulary")

    def selected(tensor: HeadTensor) -> HeadTensor:
        if tensor.role not in ("output", "output_bias"):
            return tensor
        shape = (len(rows), *tensor.shape[1:])
        return HeadTensor(tensor.name, shape, tensor.role, lambda: np.ascontiguousarray(tensor.load()[rows]))

    tensors = [selected(tensor) for tensor in source.tensors if tensor.role != "map"]
    tensors.append(HeadTensor(schema.D2T, (len(kept),), "map", lambda: kept))
    return replace(source, tensors=tensors, rows=len(kept), lm_head="draft_vocab")
