"""An unquantized model's GGUF: metadata first, then one tensor after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.safetensors_file import FLOATS, FLOATS8
from ..errors import MedusaError
from ..files import explain_os_error
from ..gguf.header import KeyValue, build, parse
from .vocabulary import Vocabulary

FILE_TYPES = {
    "F32": (gguf.LlamaFileType.ALL_F32, gguf.GGMLQuantizationType.F32),
    "F16": (gguf.LlamaFileType.MOSTLY_F16, gguf.GGMLQuantizationType.F16),
    "BF16": (gguf.LlamaFileType.MOSTLY_BF16, gguf.GGMLQuantizationType.BF16),
}
IGNORED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
"""Ends of the names of stored tensors that hold no weights."""
CHUNK_VALUES = 4 << 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to write. shape: torch order; load: its values; label: what messages call it."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    load: Callable[[], NDArray[Any]]
    label: str

    @property
    def nbytes(self) -> int:
        """Bytes of the written values."""
        return int(np.prod(self.shape, dtype=np.int64)) * gguf.GGML_QUANT_SIZES[self.kind][1]


@dataclass(frozen=True)
class ModelFile:
    """Everything that goes into a file, in its order.

    architecture, name: general.architecture and general.name. provenance: further string keys, complete. The
    tokenizer's metadata is a vocabulary, or entries of another file, which are copied as they are.
    """

    architecture: str
    name: str
    provenance: Mapping[str, str]
    add_parameters: Callable[[gguf.GGUFWriter], None]
    file_type: str
    tokenizer: Vocabulary | Sequence[KeyValue]
    tensors: Sequence[PlannedTensor]

    def write(self, path: Path, progress: Progress | None = None) -> None:
        """Writes `path` (the caller's temporary file). progress(bytes written, bytes in all) after each piece.

        One tensor is in memory at a time. MedusaError for values that are not finite in their type, and failed writes.
        """
        try:
            self._write_header(path)
            with path.open("ab") as file:
                self._write_tensors(file, progress or (lambda done, total: None))
        except OSError as error:
            raise explain_os_error(error, path) from error

    def _write_header(self, path: Path) -> None:
        """Everything before the tensor data."""
        logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
        writer = gguf.GGUFWriter(path, self.architecture)
        try:
            writer.add_type(gguf.GGUFType.MODEL)
            writer.add_name(self.name)
            for key, value in self.provenance.items():
                writer.add_string(key, value)
            self.add_parameters(writer)
            writer.add_file_type(FILE_TYPES[self.file_type][0])
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            if isinstance(self.tokenizer, Vocabulary):
                self.tokenizer.write(writer)
            for tensor in self.tensors:
                # With the type given, the shape counts elements, whatever the array's type.
                writer.add_tensor_info(
                    tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, raw_dtype=tensor.kind
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        finally:
            writer.close()
        if not isinstance(self.tokenizer, Vocabulary):
            written = parse(path.read_bytes(), str(path))
            path.write_bytes(build([*written.kv, *self.tokenizer], written.tensors, written.alignment))

    def _write_tensors(self, file: BinaryIO, progress: Progress) -> None:
        """Appends the data, each tensor padded to GGUF's alignment."""
        alignment = gguf.GGUF_DEFAULT_ALIGNMENT
        done, total = 0, sum(tensor.nbytes for tensor in self.tensors)
        file.write(b"\0" * (-file.tell() % alignment))
        for tensor in self.tensors:
            values = tensor.load().reshape(-1)
            for start in range(0, values.size, CHUNK_VALUES):
                data = _encoded(values[start : start + CHUNK_VALUES], tensor.kind)
                if data is None:
                    raise MedusaError(
                        f"{tensor.label} holds values that are not finite in {tensor.kind.name} (damaged weights, or "
                        "F16 is too narrow: use BF16)"
                    )
                file.write(data.data)
                done += data.nbytes
                progress(done, total)
            del values
            file.write(b"\0" * (-tensor.nbytes % alignment))


def plain_type(checkpoint: Checkpoint) -> str:
    """The type for a file that will be quantized next: as wide as the weights."""
    return "BF16" if any(tensor.dtype == "BF16" for tensor in checkpoint.tensors.values()) else "F16"


def kind_of(name: str, shape: tuple[int, ...], file_type: str) -> gguf.GGMLQuantizationType:
    """The type of a tensor. libllama wants vectors (norms, biases, factors) in F32."""
    return FILE_TYPES[file_type][1] if len(shape) > 1 and name.endswith(".weight") else gguf.GGMLQuantizationType.F32


def check_weights(checkpoint: Checkpoint, source: str, shape: tuple[int, ...]) -> None:
    """MedusaError for a stored tensor of another shape than the configuration's, or without floating-point values."""
    tensor, label = checkpoint.tensors[source], tensor_label(checkpoint, source)
    if tensor.shape != shape:
        raise MedusaError(f"{label} has shape {_text(tensor.shape)}, config.json asks for {_text(shape)}")
    if tensor.dtype not in (*FLOATS, *FLOATS8):
        raise MedusaError(f"{label} has dtype {tensor.dtype}, take the unquantized model")


def tensor_label(checkpoint: Checkpoint, source: str) -> str:
    """What messages call a stored tensor."""
    return f"{checkpoint.root}: tensor {source!r}"


def _encoded(values: NDArray[Any], kind: gguf.GGMLQuantizationType) -> NDArray[Any] | None:
    """`values` in the file's type (BF16 as bytes); None if one of them is infinite or not a number there."""
    if kind == gguf.GGMLQuantizationType.I64:
        return values.astype("<i8")
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float16 if kind == gguf.GGMLQuantizationType.F16 else np.float32)
    if not np.isfinite(numbers).all():
        return None
    return quantize(numbers, kind) if kind == gguf.GGMLQuantizationType.BF16 else numbers


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
