"""A base model's GGUF from its Hugging Face checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ..checkpoints.checkpoint import Checkpoint
from ..errors import MedusaError
from .model_file import IGNORED, ModelFile, PlannedTensor, Progress, check_weights, kind_of, tensor_label
from .registry import Phi3, find_architecture
from .vocabulary import read_vocabulary

HEAD, EMBEDDING = "output.weight", "token_embd.weight"

Rename = Callable[[str], "str | None"]


def write_base(
    checkpoint: Checkpoint,
    path: Path,
    file_type: str,
    *,
    rename: Rename | None = None,
    provenance: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> None:
    """Writes the base model of `checkpoint` to `path` (the caller's temporary file) in "F32", "F16" or "BF16".

    rename: stored tensor name -> plain Hugging Face name, None for tensors that are not the base's. provenance:
    further string keys, complete ("general.name" among them). progress(bytes written, bytes in all) after each piece.
    Norms and other vectors stay F32. One tensor is in memory at a time. MedusaError for unsupported architectures and
    tokenizers, unknown, missing or misshapen tensors, values that are not finite in the file type, failed writes.
    """
    base = _Base(checkpoint, file_type, rename or (lambda name: name))
    base.file(provenance or {}).write(path, progress)


class _Base:
    """A base model on its way into a file: its content, checked."""

    def __init__(self, checkpoint: Checkpoint, file_type: str, rename: Rename) -> None:
        where = str(checkpoint.root / "config.json")
        self.checkpoint = checkpoint
        self.file_type = file_type
        self.architecture = find_architecture(checkpoint.config, where)(checkpoint.config, where)
        self.plan = self._planned(rename)
        self.vocabulary = read_vocabulary(checkpoint, self.architecture.config, self.architecture.vocabulary)
        if self.vocabulary.tokens.merges is not None and not self.architecture.states_space_prefix:
            self.vocabulary.tokens.add_space_prefix = None

    def _planned(self, rename: Rename) -> list[PlannedTensor]:
        """Every tensor of the file in its order, checked against what the architecture needs."""
        architecture, checkpoint = self.architecture, self.checkpoint
        stored = self._mapped(rename)
        required, optional = architecture.shapes(), architecture.optional_shapes()
        if not architecture.tied:
            required[HEAD] = optional.pop(HEAD)
        planned = [
            PlannedTensor(
                name, values.shape, kind_of(name, values.shape, self.file_type), partial(np.array, values), name
            )
            for name, values in architecture.extra_tensors().items()
        ]
        for name, source in stored.items():
            label = tensor_label(checkpoint, source)
            shape = required.pop(name, None) or optional.get(name)
            if shape is None:
                raise MedusaError(f"{label} has no place in this architecture, the model may be of another kind")
            check_weights(checkpoint, source, shape)
            load = partial(self._load, name, source)
            planned.append(PlannedTensor(name, shape, kind_of(name, shape, self.file_type), load, label))
        if required:
            raise MedusaError(
                f"{checkpoint.root}: lacks the tensor for {next(iter(required))}, download all weight files"
            )
        if architecture.tied and HEAD in stored and _equal(checkpoint, stored[HEAD], stored[EMBEDDING]):
            planned = [tensor for tensor in planned if tensor.name != HEAD]
        return planned

    def _load(self, name: str, source: str) -> NDArray[Any]:
        return self.architecture.transform(name, self.checkpoint.load(source))

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

    def file(self, provenance: Mapping[str, str]) -> ModelFile:
        """What is written."""
        name = self._name(provenance.get("general.name") or self.checkpoint.root.resolve().name)
        return ModelFile(
            gguf.MODEL_ARCH_NAMES[self.architecture.kind],
            name,
            {key: value for key, value in provenance.items() if key != "general.name"},
            self.architecture.write_parameters,
            self.file_type,
            self.vocabulary,
            self.plan,
        )

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


def _equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    """Whether two tensors hold the same bytes; one at a time is in memory."""
    digests = [hashlib.sha256(np.ascontiguousarray(checkpoint.load(name)).data).digest() for name in (first, second)]
    return digests[0] == digests[1]
