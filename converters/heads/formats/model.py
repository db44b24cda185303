"""What every layout is turned into, and the checks they share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.checkpoint import FLOATS, Checkpoint
from ...errors import MedusaError
from .. import schema

MAX_BLOCKS = 64
WEIGHT_DTYPES = (*FLOATS, "F8_E4M3", "F8_E5M2")
Role = Literal["block", "bias", "output", "output_bias", "map", "prefix", "adapter", "embedding"]


@dataclass(frozen=True)
class HeadTensor:
    """One tensor of the heads under our name.

    shape: (rows, columns) or (n,), torch order. load: the values, float32 (int32 for the map), in fresh memory;
    MedusaError when they are NaN or infinite. source: its name in the checkpoint, "" where it is computed. same_as:
    our name of an earlier tensor with the very same values, where two blocks of a head are one module; else None.
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
    schema.STREAMS. hidden: size of the hidden state they read. rows: rows of their output matrix, 0 where they use
    the base's (lm_head "base"). base_reference: the base that the configuration names, as it stands there: text from a
    foreign file.
    is_full_model: the checkpoint carries its own base. metadata: further keys of our layout. remarks: one line each,
    for the person.
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


def tensor(
    checkpoint: Checkpoint, source: str, name: str, shape: Sequence[int], role: Role, factor: float = 1.0
) -> HeadTensor:
    """The stored tensor `source` as our `name`. MedusaError when its shape or dtype is another one."""
    stored = checkpoint.tensors[source]
    if stored.shape != tuple(shape):
        found, wanted = list(stored.shape), list(shape)
        raise MedusaError(f"{checkpoint.name}: tensor {source!r} has shape {found}, {wanted} would fit the other ones")
    if stored.dtype not in WEIGHT_DTYPES:
        raise MedusaError(f"{checkpoint.name}: tensor {source!r} has dtype {stored.dtype}, not a floating-point one")
    return HeadTensor(name, stored.shape, role, partial(load_floats, checkpoint, source, factor), source)


def load_floats(checkpoint: Checkpoint, source: str, factor: float = 1.0) -> NDArray[np.float32]:
    """The values times `factor` as float32. MedusaError when one is NaN or infinite."""
    with np.errstate(over="ignore"):
        values = np.asarray(checkpoint.load(source), np.float32)
    if factor != 1.0:
        values *= np.float32(factor)
    if not np.isfinite(values).all():
        raise MedusaError(f"{checkpoint.name}: tensor {source!r} holds NaN or infinite values, these heads are broken")
    return values


def find(checkpoint: Checkpoint, names: Mapping[Any, str], key: Any, described: str) -> str:
    """names[key]. MedusaError that calls the missing tensor `described`."""
    if key not in names:
        raise MedusaError(f"{checkpoint.name}: tensor {described!r} is missing, download the heads again")
    return names[key]


def put(checkpoint: Checkpoint, names: dict[Any, str], key: Any, name: str) -> None:
    """names[key] = name. MedusaError when another tensor has that place already."""
    if key in names:
        raise MedusaError(f"{checkpoint.name}: tensors {names[key]!r} and {name!r} are the same part of the heads")
    names[key] = name


def check_numbers(checkpoint: Checkpoint, heads: Iterable[int]) -> int:
    """How many heads there are. MedusaError unless they are numbered 0, 1, 2, ..."""
    found = sorted(set(heads))
    for expected, head in enumerate(found):
        if head != expected:
            raise MedusaError(f"{checkpoint.name}: head {expected} is missing (there is a head {head}), download again")
    return len(found)


def check_blocks(checkpoint: Checkpoint, count: int) -> int:
    """MedusaError for more blocks than any head has; a hostile file could ask for millions of copies."""
    if count > MAX_BLOCKS:
        raise MedusaError(f"{checkpoint.name}: heads of {count} blocks, at most {MAX_BLOCKS} are supported")
    return count


def matrix_shape(checkpoint: Checkpoint, source: str) -> tuple[int, int]:
    """The shape of a stored matrix. MedusaError when it is none, or empty."""
    shape = checkpoint.tensors[source].shape
    if len(shape) != 2 or 0 in shape:
        raise MedusaError(f"{checkpoint.name}: tensor {source!r} has shape {list(shape)}, a matrix was expected")
    return shape[0], shape[1]


def mark_shared(tensors: Sequence[HeadTensor]) -> list[HeadTensor]:
    """The same tensors; those that repeat an earlier one of the sequence, value for value, say so in same_as.

    Published heads of several blocks often are one module applied several times. Loads each stored tensor once when
    two of them could be equal, else nothing.
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


def shared_remark(tensors: Iterable[HeadTensor]) -> list[str]:
    """A line when blocks are one module, applied several times."""
    shared = any(item.same_as for item in tensors if item.role == "block")
    return ["residual blocks of a head are one shared module, applied several times"] if shared else []


def config_int(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of `keys` that holds a whole number."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int), None)


def count_remark(stated: int | None, found: int, what: str) -> list[str]:
    """A line when the configuration counts otherwise than the tensors, which are right."""
    if stated is None or stated == found:
        return []
    return [f"config.json says {stated} {what}, the tensors hold {found}: using {found}"]


def omits_copies(checkpoint: Checkpoint) -> bool:
    """safetensors stores a module that is used several times only once; torch.save repeats it."""
    return any(path.suffix == ".safetensors" for path in checkpoint.files)


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
