"""Which layout a checkpoint has, and which of its tensors belong to the base."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ...checkpoints.checkpoint import Checkpoint
from ...errors import MedusaError
from . import hydra, medusa, vllm
from .model import SourceHeads, config_int

BASE = re.compile(r"(?:base_model\.)?(?P<plain>model\..+|lm_head\.(?:weight|bias))")
EMBEDDING = "model.embed_tokens.weight"


@dataclass
class _Names:
    """The checkpoint's tensor names by owner."""

    medusa: list[str] = field(default_factory=list)
    vllm: list[str] = field(default_factory=list)
    hydra: list[str] = field(default_factory=list)
    base: dict[str, str] = field(default_factory=dict)


def read_heads(checkpoint: Checkpoint) -> SourceHeads:
    """The draft heads in `checkpoint`, of any layout listed in the design notes.

    Only names and shapes are read, and the tensors that may repeat one another; values are checked when they are
    loaded. MedusaError for checkpoints without heads, with two sets of them, with tensors that belong to no known
    layout, or with heads that read another hidden state than the last one.
    """
    names = _sorted_names(checkpoint)
    _check_input(checkpoint)
    is_full_model = bool(names.base)
    if names.medusa:
        heads = medusa.read_medusa(checkpoint, names.medusa, is_full_model)
    elif names.vllm:
        heads = vllm.read_vllm(checkpoint, names.vllm)
    else:
        heads = hydra.read_hydra(checkpoint, names.hydra)
    reference = checkpoint.config.get("base_model_name_or_path")
    named = isinstance(reference, str) and bool(reference.strip())
    return replace(heads, base_reference=reference if named else None, is_full_model=is_full_model)


def base_tensor_filter(checkpoint: Checkpoint, heads: SourceHeads) -> Callable[[str], str | None]:
    """For full models: stored name -> plain Hugging Face name of a base tensor, None for those of the heads.

    MedusaError when the checkpoint has no base of its own.
    """
    if not heads.is_full_model:
        raise MedusaError(f"{checkpoint.name}: holds heads only, give the base model they belong to")
    base = _sorted_names(checkpoint).base
    return base.get


def _sorted_names(checkpoint: Checkpoint) -> _Names:
    names = _Names()
    for name in checkpoint.tensors:
        base = BASE.fullmatch(name)
        if medusa.NAME.fullmatch(name):
            names.medusa.append(name)
        elif vllm.NAME.fullmatch(name):
            names.vllm.append(name)
        elif hydra.NAME.fullmatch(name):
            names.hydra.append(name)
        elif base:
            names.base[name] = base["plain"]
        else:
            raise MedusaError(f"{checkpoint.name}: tensor {name!r} belongs to no known kind of heads or base model")
    sets = [owned for owned in (names.medusa, names.vllm, names.hydra) if owned]
    if not sets:
        raise MedusaError(f"{checkpoint.name}: holds no Medusa or Hydra heads")
    if len(sets) > 1:
        raise MedusaError(
            f"{checkpoint.name}: two sets of heads ({sets[0][0]!r}, {sets[1][0]!r}): name the file you mean"
        )
    _settle_base(checkpoint, names)
    return names


def _settle_base(checkpoint: Checkpoint, names: _Names) -> None:
    """A base is complete or there is none; vLLM's one output matrix for all heads is named like a base's."""
    if EMBEDDING in names.base.values():
        if len(set(names.base.values())) != len(names.base):
            raise MedusaError(f"{checkpoint.name}: base tensors are stored twice, with and without 'base_model.'")
        return
    if names.vllm and vllm.SHARED_OUTPUT in names.base:
        del names.base[vllm.SHARED_OUTPUT]
        names.vllm.append(vllm.SHARED_OUTPUT)
    if names.base:
        first = next(iter(names.base))
        raise MedusaError(f"{checkpoint.name}: tensor {first!r} belongs to a base model that is not complete here")


def _check_input(checkpoint: Checkpoint) -> None:
    offset = checkpoint.config.get("hidden_state_offset", 0)
    if offset != 0:
        shown = config_int(checkpoint.config, "hidden_state_offset")
        raise MedusaError(
            f"{checkpoint.name}: hidden_state_offset is {'no number' if shown is None else shown}: heads that read an "
            "earlier layer's hidden state are not supported"
        )
