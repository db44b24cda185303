"""A base model's GGUF from its Hugging Face checkpoint: metadata first, then one tensor after the other."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
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
from .registry import Phi3, find_architecture
from .vocabulary import read_vocabulary

FILE_TYPES = {
    "F32": (gguf.LlamaFileType.ALL_F32, gguf.GGMLQuantizationType.F32),
    "F16": (gguf.LlamaFileType.MOSTLY_F16, gguf.GGMLQuantizationType.F16),
    "BF16": (gguf.LlamaFileType.MOSTLY_BF16, gguf.GGMLQuantizationType.BF16),
}
IGNORED = (".rotary_emb.inv_freq", ".attention.masked_bias", ".attention.bias")
HEAD, EMBEDDING = "output.weight", "token_embd.weight"
CHUNK_VALUES = 4 << 20

Rename = Callable[[str], "str | None"]


@dataclass(frozen=True)
class _Planned:
    """One tensor to write. stored: its name in the checkpoint, None for one that comes from the config."""

    name: str
    stored: str | None
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * gguf.GGML_QUANT_SIZES[self.kind][1]


def write_base(
    checkpoint: Checkpoint,
    path: Path,
    file_type: str,
    *,
    rename: Rename | None = None,
    provenance: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes the base model of `checkpoint` to `path` (the caller's temporary file) in "F32", "F16" or "BF16".

    rename: stored tensor name -> plain Hugging Face name, None for tensors that are not the base's. provenance:
    further string keys, complete ("general.name" among them). progress(bytes written, bytes in all) after each piece.
    Norms and other vectors stay F32. One tensor is in memory at a time. MedusaError for unsupported architectures and
    tokenizers, unknown, missing or misshapen tensors, values that are not finite in the file type, failed writes.
    """
    base = _Base(checkpoint, file_type, rename or (lambda name: name))
    try:
        base.write_header(path, provenance or {})
        with path.open("ab") as file:
            base.write_tensors(file, progress or (lambda done, total: None))
    except OSError as error:
        raise explain_os_error(error, path) from error


def plain_type(checkpoint: Checkpoint) -> str:
    """The type for a file that will be quantized next: as wide as the weights."""
    return "BF16" if any(tensor.dtype == "BF16" for tensor in checkpoint.tensors.values()) else "F16"


class _Base:
    """A base model on its way into a file: its content, checked."""

    def __init__(self, checkpoint: Checkpoint, file_type: str, rename: Rename) -> None:
        where = str(checkpoint.root / "config.json")
        self.checkpoint = checkpoint
        self.file_type, self.kind = FILE_TYPES[file_type]
        self.architecture = find_architecture(checkpoint.config, where)(checkpoint.config, where)
        self.plan = self._planned(rename)
        self.vocabulary = read_vocabulary(checkpoint, self.architecture.config, self.architecture.vocabulary)
        if self.vocabulary.tokens.merges is not None and not self.architecture.states_space_prefix:
            self.vocabulary.tokens.add_space_prefix = None

    def _planned(self, rename: Rename) -> list[_Planned]:
        """Every tensor of the file in its order, checked against what the architecture needs."""
        architecture, root = self.architecture, self.checkpoint.root
        stored = self._mapped(rename)
        required, optional = architecture.shapes(), architecture.optional_shapes()
        if not architecture.tied:
            required[HEAD] = optional.pop(HEAD)
        self.extras = architecture.extra_tensors()
        planned = [_Planned(name, None, v.shape, _kind(name, v.shape, self.kind)) for name, v in self.extras.items()]
        for name, source in stored.items():
            tensor = self.checkpoint.tensors[source]
            shape = required.pop(name, None) or optional.get(name)
            label = f"{root}: tensor {source!r}"
            if shape is None:
                raise MedusaError(f"{label} has no place in this architecture, the model may be of another kind")
            if tensor.shape != shape:
                raise MedusaError(f"{label} has shape {_text(tensor.shape)}, config.json asks for {_text(shape)}")
            if tensor.dtype not in (*FLOATS, *FLOATS8):
                raise MedusaError(f"{label} has dtype {tensor.dtype}, take the unquantized model")
            planned.append(_Planned(name, source, shape, _kind(name, shape, self.kind)))
        if required:
            raise MedusaError(f"{root}: lacks the tensor for {next(iter(required))}, download all weight files")
        if architecture.tied and HEAD in stored and _equal(self.checkpoint, stored[HEAD], stored[EMBEDDING]):
            planned = [tensor for tensor in planned if tensor.name != HEAD]
        return planned

    def _mapped(self, rename: Rename) -> dict[str, str]:
        """GGUF name -> stored name."""
        architecture, root = self.architecture, self.checkpoint.root
        names = gguf.get_tensor_name_map(architecture.kind, architecture.layers)
        stored: dict[str, str] = {}
        for source in self.checkpoint.tensors:
            plain = rename(source)
            if plain is None or plain.endswith(IGNORED):
                continue
            name = names.get_name(plain, try_suffixes=(".weight", ".bias"))
            if name is None or not name.endswith((".weight", ".bias")):
                raise MedusaError(f"{root}: tensor {source!r} is unknown, the model may be of another kind")
            if name in stored:
                raise MedusaError(f"{root}: tensors {stored[name]!r} and {source!r} are both {name}, remove one")
            stored[name] = source
        return stored

    def write_header(self, path: Path, provenance: Mapping[str, str]) -> None:
        """Everything before the tensor data."""
        logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)
        writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[self.architecture.kind])
        try:
            writer.add_type(gguf.GGUFType.MODEL)
            writer.add_name(self._name(provenance.get("general.name") or self.checkpoint.root.resolve().name))
            for key, value in provenance.items():
                if key != "general.name":
                    writer.add_string(key, value)
            self.architecture.write_parameters(writer)
            writer.add_file_type(self.file_type)
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            self.vocabulary.write(writer)
            for tensor in self.plan:
                # With the type given, the shape counts elements, whatever the array's type.
                writer.add_tensor_info(
                    tensor.name, tensor.shape, np.dtype(np.float32), tensor.nbytes, raw_dtype=tensor.kind
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
        finally:
            writer.close()

    def _name(self, name: str) -> str:
        """general.name, from which libllama infers whether the control tokens of a Phi-3 swallow white space.

        It looks for "phi-3" or "phi3" in the name, and then relies on tokens that only those models have.
        """
        if not isinstance(self.architecture, Phi3):
            return name
        vocabulary = self.vocabulary
        strips = vocabulary.strips_right and {"<unk>", "<s>", "</s>", "<|endoftext|>"}.issubset(vocabulary.tokens.texts)
        says_so = any(mark in name.lower() for mark in ("phi-3", "phi3"))
        if says_so == strips:
            return name
        return f"Phi-3 {name}" if strips else name.lower().replace("phi-3", "phi 3").replace("phi3", "phi 3")

    def write_tensors(self, file: BinaryIO, progress: Callable[[int, int], None]) -> None:
        """Appends the data, each tensor padded to GGUF's alignment."""
        alignment = gguf.GGUF_DEFAULT_ALIGNMENT
        done, total = 0, sum(tensor.nbytes for tensor in self.plan)
        file.write(b"\0" * (-file.tell() % alignment))
        for tensor in self.plan:
            values = self.extras[tensor.name] if tensor.stored is None else self.checkpoint.load(tensor.stored)
            values = self.architecture.transform(tensor.name, values).reshape(-1)
            for start in range(0, values.size, CHUNK_VALUES):
                data = _encoded(values[start : start + CHUNK_VALUES], tensor.kind)
                if data is None:
                    raise MedusaError(
                        f"{self.checkpoint.root}: tensor {tensor.stored!r} holds values that are not finite in "
                        f"{tensor.kind.name} (damaged weights, or F16 is too narrow: use BF16)"
                    )
                file.write(data.data)
                done += data.nbytes
                progress(done, total)
            del values
            file.write(b"\0" * (-tensor.nbytes % alignment))


def _kind(name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    """libllama wants vectors (norms, biases, factors) in F32."""
    return kind if len(shape) > 1 and name.endswith(".weight") else gguf.GGMLQuantizationType.F32


def _equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Whether two tensors hold the same bytes; one at a time is in memory."""
    digests = [hashlib.sha256(np.ascontiguousarray(checkpoint.load(name)).data).digest() for name in (first, second)]
    return digests[0] == digests[1]


def _encoded(values: NDArray[Any], kind: gguf.GGMLQuantizationType) -> NDArray[Any] | None:
    """`values` in the file's type (BF16 as bytes); None if one of them is infinite or not a number there."""
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float16 if kind == gguf.GGMLQuantizationType.F16 else np.float32)
    if not np.isfinite(numbers).all():
        return None
    return quantize(numbers, kind) if kind == gguf.GGMLQuantizationType.BF16 else numbers


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
