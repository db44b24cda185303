"""What every layout is turned into, and what the readers share."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.safetensors_file import FLOATS, FLOATS8
from ...errors import MedusaError
from .. import schema

MAX_BLOCKS = 64
Role = Literal["block", "bias", "output", "output_bias", "map", "prefix", "adapter", "embedding"]


@dataclass(frozen=True)
class HeadTensor:
    """One tensor of the heads, under our name.

    shape: (rows, columns) or (n,), torch order. load: the values, float32 (int32 for the map), in fresh memory;
    MedusaError if any is NaN or infinite. source: its name in the checkpoint, "" if it is computed. same_as: our name
    for an earlier tensor with the very same values, if two blocks of a head are one module; else None.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    load: Callable[[], NDArray[Any]]
    source: str = ""
    same_as: str | None = None


@dataclass(frozen=True)
class SourceHeads:
    """Heads as they are written: those of a checkpoint, or trained ones.

    family: v1, v2, full, vllm, modelopt, hydra-mlp, hydra-prefix-mlp or trained. kind: schema.Kind or
    schema.STREAMS. hidden: size of the hidden state they read. rows: rows of their output matrix, 0 if they use the
    base's (lm_head "base"). base_reference: the base that the configuration names, unchanged: text from a foreign
    file.
    is_full_model: the checkpoint has its own base. metadata: further keys of our layout. remarks: one line each, for
    the person.
    """

    family: str
    kind: str
    head_count: int
    block_count: int
    lm_head: schema.LmHead
    hidden: int
    rows: int
    tensors: list[HeadTensor]
    base_reference: str | None = None
    is_full_model: bool = False
    metadata: dict[str, int | float | str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def has_prefix(self) -> bool:
        """Whether an attention layer comes before the heads."""
        return any(item.role == "prefix" for item in self.tensors)


class Layout(ABC):
    """The heads of one checkpoint while a layout's reader sorts and checks their tensors.

    NAME: matches the names of its tensors. blocks: (head, number of the block as stored, part) -> stored name;
    outputs: (head, part) -> stored name. hidden: size of what the heads read. block_name, output_name: what to call a
    missing one, with slots for the keys.
    """

    NAME: ClassVar[re.Pattern[str]]
    block_name = output_name = ""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.blocks: dict[tuple[int, int, str], str] = {}
        self.outputs: dict[tuple[int, str], str] = {}
        self.hidden = 0
        self.tensors: list[HeadTensor] = []
        self.remarks: list[str] = []

    @abstractmethod
    def read(self, names: Sequence[str], is_full_model: bool) -> SourceHeads:
        """The heads whose tensors are `names`. MedusaError if they do not fit together."""

    def refuse(self, text: str) -> MedusaError:
        """The error for what cannot be read."""
        return MedusaError(f"{self.checkpoint.name}: {text}")

    def put(self, names: dict[Any, str], key: Any, name: str) -> None:
        """names[key] = name. MedusaError if another tensor already has that place."""
        if key in names:
            raise self.refuse(f"tensors {names[key]!r} and {name!r} are the same part of the heads")
        names[key] = name

    def find(self, names: Mapping[Any, str], key: Any, described: str) -> str:
        """names[key]. MedusaError that calls the missing tensor `described`."""
        if key not in names:
            raise self.refuse(f"tensor {described!r} is missing, download the heads again")
        return names[key]

    def matrix_shape(self, source: str) -> tuple[int, int]:
        """The shape of a stored matrix. MedusaError if it is not a matrix, or empty."""
        shape = self.checkpoint.tensors[source].shape
        if len(shape) != 2 or 0 in shape:
            raise self.refuse(f"tensor {source!r} has shape {list(shape)}, a matrix was expected")
        return shape[0], shape[1]

    def tensor(self, source: str, name: str, shape: Sequence[int], role: Role, factor: float = 1.0) -> HeadTensor:
        """The stored tensor `source`, times `factor`, as our `name`. MedusaError for another shape or dtype."""
        stored = self.checkpoint.tensors[source]
        if stored.shape != tuple(shape):
            found, wanted = list(stored.shape), list(shape)
            raise self.refuse(f"tensor {source!r} has shape {found}, {wanted} would fit the other ones")
        if stored.dtype not in (*FLOATS, *FLOATS8):
            raise self.refuse(f"tensor {source!r} has dtype {stored.dtype}, not a floating-point one")
        return HeadTensor(name, stored.shape, role, partial(self.load_floats, source, factor), source)

    def load_floats(self, source: str, factor: float) -> NDArray[np.float32]:
        """The values times `factor`, as float32. MedusaError if one is NaN or infinite."""
        with np.errstate(over="ignore"):
            values = np.asarray(self.checkpoint.load(source), np.float32)
        if factor != 1.0:
            values *= np.float32(factor)
        if not np.isfinite(values).all():
            raise self.refuse(f"tensor {source!r} holds NaN or infinite values, these heads are broken")
        return values

    def count_heads(self, numbers: Iterable[int], stated: int | None) -> int:
        """How many heads there are. MedusaError unless they are numbered 0, 1, 2, ..."""
        found = sorted(set(numbers))
        for expected, head in enumerate(found):
            if head != expected:
                raise self.refuse(f"head {expected} is missing (there is a head {head}), download again")
        self.compare(stated, len(found), "heads")
        return len(found)

    def check_blocks(self, count: int) -> int:
        """MedusaError for more blocks than any head has; a hostile file could ask for millions of copies."""
        if count > MAX_BLOCKS:
            raise self.refuse(f"heads of {count} blocks, at most {MAX_BLOCKS} are supported")
        return count

    def compare(self, stated: int | None, found: int, what: str) -> None:
        """Adds a remark if the configuration's count differs from the tensors', which is right."""
        if stated is not None and stated != found:
            self.remarks.append(f"config.json says {stated} {what}, the tensors hold {found}: using {found}")

    def omits_copies(self) -> bool:
        """safetensors stores a module only once even if it is used several times; torch.save repeats it."""
        return any(path.suffix == ".safetensors" for path in self.checkpoint.files)

    def add_blocks(self, head: int, part: schema.Part, numbers: Iterable[tuple[int, int]], first: int = 0) -> None:
        """Adds one part of a head's blocks. numbers: (ours, as stored); first: columns of block 0 if not `hidden`."""
        row = []
        for j, number in numbers:
            shape = (self.hidden, (first if j == 0 else 0) or self.hidden)[: 1 + (part == "weight")]
            source = self.find(self.blocks, (head, number, part), self.block_name.format(head, number, part))
            role: Role = "block" if part == "weight" else "bias"
            row.append(self.tensor(source, schema.block(head, j, part), shape, role))
        self.tensors += mark_shared(row)

    def add_output(self, head: int, part: schema.Part, rows: int) -> None:
        """Adds one part of a head's lm_head."""
        source = self.find(self.outputs, (head, part), self.output_name.format(head, part))
        shape = (rows, self.hidden)[: 1 + (part == "weight")]
        role: Role = "output" if part == "weight" else "output_bias"
        self.tensors.append(self.tensor(source, schema.output(head, part), shape, role))

    def result(self, family: str, kind: schema.Kind, counts: tuple[int, int], rows: int, **rest: Any) -> SourceHeads:
        """Everything that was read. counts: heads, and blocks of each; rest: further fields of SourceHeads."""
        if any(item.same_as for item in self.tensors if item.role == "block"):
            self.remarks.append("residual blocks of a head are one shared module, applied several times")
        return SourceHeads(
            family, kind, *counts, hidden=self.hidden, rows=rows, tensors=self.tensors, remarks=self.remarks, **rest
        )


def parts_among(names: Iterable[tuple[Any, ...]]) -> tuple[schema.Part, ...]:
    """The parts that heads have, by the keys of their blocks or outputs: if one has a bias, all must."""
    return schema.PARTS if any(key[-1] == "bias" for key in names) else schema.PARTS[:1]


def mark_shared(tensors: Sequence[HeadTensor]) -> list[HeadTensor]:
    """The same tensors; those that repeat an earlier one, value for value, say so in same_as.

    The blocks of published heads are often one module applied several times. Loads each stored tensor once if two of
    them could be equal, else nothing.
    """
    first: dict[tuple[tuple[int, ...], str], str] = {}
    digests: dict[str, str] = {}
    marked = []
    for item in tensors:
        if sum(other.shape == item.shape for other in tensors) < 2:
            marked.append(item)
            continue
        if item.source not in digests:
            digests[item.source] = hashlib.sha256(item.load().data).hexdigest()
        earlier = first.setdefault((item.shape, digests[item.source]), item.name)
        marked.append(item if earlier == item.name else replace(item, same_as=earlier))
    return marked


def config_int(config: Mapping[str, Any], *keys: str) -> int | None:
    """The value of the first of `keys` that holds a whole number."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int), None)
