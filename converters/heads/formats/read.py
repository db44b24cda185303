"""Which layout a checkpoint has, and which of its tensors belong to the base."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ...checkpoints.checkpoint import Checkpoint
from ...errors import MedusaError
from .hydra import Hydra
from .medusa import Medusa
from .model import Layout, SourceHeads, config_int
from .vllm import SHARED_OUTPUT, Vllm

BASE = re.compile(r"(?:base_model\.)?(?P<plain>model\..+|lm_head\.(?:weight|bias))")
EMBEDDING = "model.embed_tokens.weight"


LAYOUTS: tuple[type[Layout], ...] = (Medusa, Vllm, Hydra)


def read_heads(checkpoint: Checkpoint) -> SourceHeads:
    """The draft heads in `checkpoint`, of any layout listed in the design notes.

    Reads only names and shapes, and tensors that may repeat one another; values are checked when they are loaded.
    MedusaError for checkpoints without heads, with two sets of them, with tensors that do not belong to any known
    layout, or with heads that read a hidden state other than the last.
    """
    layout, names, base = _sorted_names(checkpoint)
    if checkpoint.config.get("hidden_state_offset", 0) != 0:
        offset = config_int(checkpoint.config, "hidden_state_offset")
        raise MedusaError(
            f"{checkpoint.name}: hidden_state_offset is {'no number' if offset is None else offset}: heads that read "
            "an earlier layer's hidden state are not supported"
        )
    is_full_model = bool(base)
    heads = layout(checkpoint).read(names, is_full_model)
    reference = checkpoint.config.get("base_model_name_or_path")
    named = isinstance(reference, str) and bool(reference.strip())
    return replace(heads, base_reference=reference if named else None, is_full_model=is_full_model)


def base_tensor_filter(checkpoint: Checkpoint, heads: SourceHeads) -> Callable[[str], str | None]:
    """For full models: stored name -> plain Hugging Face name of a base tensor, None for those of the heads.

    MedusaError if the checkpoint has no base of its own.
    """
    if not heads.is_full_model:
        raise MedusaError(f"{checkpoint.name}: holds heads only, give the base model they belong to")
    _, _, base = _sorted_names(checkpoint)
    return base.get


def _sorted_names(checkpoint: Checkpoint) -> tuple[type[Layout], list[str], dict[str, str]]:
    """The layout of the heads, their tensors, and those of the base: stored name -> plain Hugging Face name."""
    owned: dict[type[Layout], list[str]] = {}
    base: dict[str, str] = {}
    for name in checkpoint.tensors:
        layout, plain = next((one for one in LAYOUTS if one.NAME.fullmatch(name)), None), BASE.fullmatch(name)
        if layout is not None:
            owned.setdefault(layout, []).append(name)
        elif plain is not None:
            base[name] = plain["plain"]
        else:
            raise MedusaError(f"{checkpoint.name}: tensor {name!r} belongs to no known kind of heads or base model")
    if not owned:
        raise MedusaError(f"{checkpoint.name}: holds no Medusa or Hydra heads")
    (layout, names), *others = sorted(owned.items(), key=lambda item: LAYOUTS.index(item[0]))
    if others:
        other = others[0][1][0]
        raise MedusaError(f"{checkpoint.name}: two sets of heads ({names[0]!r}, {other!r}): name the file you mean")
    _settle_base(checkpoint, layout, names, base)
    return layout, names, base


def _settle_base(checkpoint: Checkpoint, layout: type[Layout], names: list[str], base: dict[str, str]) -> None:
    """A base is either complete or missing; vLLM's one output matrix for all heads is named like a base's."""
    if EMBEDDING in base.values():
        if len(set(base.values())) != len(base):
            raise MedusaError(f"{checkpoint.name}: base tensors are stored twice, with and without 'base_model.'")
        return
    if layout is Vllm and SHARED_OUTPUT in base:
        del base[SHARED_OUTPUT]
        names.append(SHARED_OUTPUT)
    if base:
        first = next(iter(base))
        raise MedusaError(f"{checkpoint.name}: tensor {first!r} belongs to a base model that is not complete here")
