"""What training and conversion need to know about the base model, read from its file without loading it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.gguf.header import TensorInfo, read_header
from medusa_cli.converters.heads.schema import is_of_heads
from medusa_cli.models import quantizations
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import content_hash

EMBEDDING_NAME = "token_embd.weight"
OUTPUT_NAMES = ("output.weight", EMBEDDING_NAME)
"""The second if the model ties its embeddings."""


@dataclass(frozen=True)
class BaseModel:
    """n_embd: hidden size. n_vocab: rows of the output matrix. content: short hash that tells quantizations apart."""

    path: Path
    name: str
    fingerprint: str
    content: str
    n_embd: int
    n_vocab: int
    output: TensorInfo
    embedding: TensorInfo | None
    """Token embeddings; None if the file has none of this shape."""
    places: Mapping[str, tuple[Path, int]]
    """For embedding and output, by name: their file, and where its tensor data begins, in bytes."""
    parts: int = 1
    """How many files a split model has; `path` is the first."""


def read_base(path: Path) -> BaseModel:
    """MedusaError for files that are not language models, already have heads or have no usable output matrix."""
    paths = [path.with_name(name) for name in quantizations.parts_of(path.name)] or [path]
    header, _ = read_header(path)
    if any(is_of_heads(entry.key) for entry in header.kv):
        raise MedusaError(f"{path}: already contains heads, take it apart with `medusa split` and train its base")
    metadata = header.metadata()
    try:
        print_ = fingerprint(metadata)
    except MedusaError as error:
        raise MedusaError(f"{path}: {error}") from None
    tensors: dict[str, TensorInfo] = {}
    places: dict[str, tuple[Path, int]] = {}
    for part in paths:
        found, _ = read_header(part)
        tensors |= {tensor.name: tensor for tensor in found.tensors}
        places |= {tensor.name: (part, found.data_offset) for tensor in found.tensors}
    architecture = str(metadata["general.architecture"])
    n_embd = int(metadata[f"{architecture}.embedding_length"])
    output = next((tensors[name] for name in OUTPUT_NAMES if name in tensors), None)
    embedding = tensors.get(EMBEDDING_NAME)
    if output is None or len(output.shape) != 2 or output.shape[0] != n_embd:
        raise MedusaError(f"{path}: has no output matrix of its hidden size {n_embd}, heads cannot be trained for it")
    return BaseModel(
        path=path,
        name=str(metadata.get("general.name") or path.stem),
        fingerprint=print_,
        content=content_hash(path)[:12],
        n_embd=n_embd,
        n_vocab=output.shape[1],
        output=output,
        embedding=embedding if embedding is not None and embedding.shape == output.shape else None,
        places={name: places[name] for name in OUTPUT_NAMES if name in places},
        parts=len(paths),
    )


def embedding_rows(base: BaseModel, rows: NDArray[np.integer]) -> NDArray[np.float32]:
    """[len(rows), n_embd] token embeddings as stored, dequantized. MedusaError when there are none that can be read."""
    if base.embedding is None:
        raise MedusaError(f"{base.path}: has no {EMBEDDING_NAME} of its vocabulary's size, Hydra heads need one")
    return matrix_rows(base, base.embedding, rows)


def output_rows(base: BaseModel, rows: NDArray[np.integer]) -> NDArray[np.float32]:
    """[len(rows), n_embd] rows of the output matrix, dequantized. MedusaError as matrix_rows()."""
    return matrix_rows(base, base.output, rows)


def matrix_rows(base: BaseModel, matrix: TensorInfo, rows: NDArray[np.integer]) -> NDArray[np.float32]:
    """[len(rows), n_embd] rows of `matrix`, dequantized; only these are read.

    MedusaError when a row is outside the matrix or its quantization cannot be decoded.
    """
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < base.n_vocab:
        raise MedusaError(f"{base.path}: {matrix.name} has {base.n_vocab} rows, fewer than the tokens in use")
    shape = (base.n_vocab, matrix.nbytes // base.n_vocab)
    path, data_at = base.places[matrix.name]
    data = np.memmap(path, np.uint8, "r", data_at + matrix.offset, shape)
    try:
        values = dequantize(np.ascontiguousarray(data[rows]), GGMLQuantizationType(matrix.type))
    except NotImplementedError as error:
        raise MedusaError(f"{base.path}: {matrix.name} has a type that cannot be decoded ({error})") from error
    return np.asarray(values, dtype=np.float32)
