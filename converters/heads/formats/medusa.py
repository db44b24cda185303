"""Heads in the layout of the Medusa authors: v1, v2, inside full models, and NVIDIA ModelOpt's.

`{i}.{j}.linear.{weight,bias}` is residual block j of head i, `{i}.{L}.weight` its output matrix, behind an optional
prefix. Without output matrices the heads use the base's (v2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...checkpoints.checkpoint import Checkpoint
from ...errors import MedusaError
from .. import schema
from .model import (
    HeadTensor,
    Role,
    SourceHeads,
    check_blocks,
    check_numbers,
    config_int,
    count_remark,
    find,
    mark_shared,
    matrix_shape,
    omits_copies,
    put,
    shared_remark,
    tensor,
)

NAME = re.compile(
    r"(?P<prefix>(?:base_model\.)?medusa_heads?\.|)(?P<head>0|[1-9]\d{0,4})\.(?P<index>0|[1-9]\d{0,4})\."
    r"(?P<linear>linear\.)?(?P<part>weight|bias)"
)

Key = tuple[int, int, str]


def read_medusa(checkpoint: Checkpoint, names: Sequence[str], is_full_model: bool) -> SourceHeads:
    """The heads of which `names` are all tensors. MedusaError when they do not fit together."""
    prefix, blocks, outputs = _sorted_names(checkpoint, names)
    heads = check_numbers(checkpoint, (head for head, _, _ in (*blocks, *outputs)))
    has_output = bool(outputs)
    block_count, remarks = _block_count(checkpoint, blocks, outputs)
    rows, hidden = _sizes(checkpoint, prefix, block_count, blocks, outputs)

    tensors: list[HeadTensor] = []
    parts: tuple[tuple[schema.Part, tuple[int, ...], Role], ...] = (
        ("weight", (rows, hidden), "output"),
        ("bias", (rows,), "output_bias"),
    )
    for head in range(heads):
        tensors += _blocks_of(checkpoint, head, prefix, block_count, hidden, blocks)
        for part, shape, role in parts:
            if any(key[2] == part for key in outputs):
                described = f"{prefix}{head}.{block_count}.{part}"
                source = find(checkpoint, outputs, (head, block_count, part), described)
                tensors.append(tensor(checkpoint, source, schema.output(head, part), shape, role))

    config = checkpoint.config
    stated = config_int(_section(config), "num_medusa_heads", "medusa_num_heads")
    remarks = count_remark(stated, heads, "heads") + remarks + shared_remark(tensors)
    return SourceHeads(
        family=_family(prefix, has_output, is_full_model),
        kind="medusa",
        head_count=heads,
        block_count=block_count,
        lm_head="own" if has_output else "base",
        hidden=hidden,
        rows=rows,
        tensors=tensors,
        remarks=remarks,
    )


def _section(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with ModelOpt's own section, where there is one, spread over it."""
    section = config.get("medusa")
    return {**config, **section} if isinstance(section, dict) else config


def _sorted_names(checkpoint: Checkpoint, names: Sequence[str]) -> tuple[str, dict[Key, str], dict[Key, str]]:
    """The common prefix, then (head, index, part) -> stored name, for blocks and for outputs."""
    prefixes: dict[str, str] = {}
    blocks: dict[Key, str] = {}
    outputs: dict[Key, str] = {}
    for name in names:
        match = NAME.fullmatch(name)
        assert match
        prefixes.setdefault(match["prefix"], name)
        key = (int(match["head"]), int(match["index"]), match["part"])
        if len(prefixes) > 1:
            first, second = prefixes.values()
            raise MedusaError(f"{checkpoint.name}: two sets of heads ({first!r}, {second!r}): name the file you mean")
        put(checkpoint, blocks if match["linear"] else outputs, key, name)
    return next(iter(prefixes)), blocks, outputs


def _block_count(checkpoint: Checkpoint, blocks: dict[Key, str], outputs: dict[Key, str]) -> tuple[int, list[str]]:
    """Residual blocks of a head, and remarks. The output matrix follows the last block, so its number counts them."""
    stated = config_int(_section(checkpoint.config), "num_medusa_layers", "medusa_num_layers")
    if outputs:
        indices = sorted({index for _, index, _ in outputs})
        if len(indices) > 1:
            raise MedusaError(
                f"{checkpoint.name}: output matrices at {indices[0]} and {indices[1]}: heads must be alike"
            )
        count = indices[0]
    else:
        stored = {index for _, index, _ in blocks}
        count = max(stored) + 1
        if stored == {0} and stated is not None and stated > 1 and omits_copies(checkpoint):
            return check_blocks(checkpoint, stated), []
    for (_, index, _), name in blocks.items():
        if index >= count:
            raise MedusaError(f"{checkpoint.name}: tensor {name!r} lies behind the output matrix: unknown layout")
    return check_blocks(checkpoint, count), count_remark(stated, count, "blocks in each head")


def _sizes(
    checkpoint: Checkpoint, prefix: str, count: int, blocks: dict[Key, str], outputs: dict[Key, str]
) -> tuple[int, int]:
    """Rows of the output matrices (0: there are none) and the hidden size."""
    if outputs:
        source = find(checkpoint, outputs, (0, count, "weight"), f"{prefix}0.{count}.weight")
        return matrix_shape(checkpoint, source)
    return 0, matrix_shape(checkpoint, find(checkpoint, blocks, (0, 0, "weight"), f"{prefix}0.0.linear.weight"))[1]


def _blocks_of(
    checkpoint: Checkpoint, head: int, prefix: str, count: int, hidden: int, blocks: dict[Key, str]
) -> list[HeadTensor]:
    """The blocks of one head. Those that the file omits are the same module as the first one it stores."""
    tensors: list[HeadTensor] = []
    stored = sorted({index for owner, index, _ in blocks if owner == head})
    parts: tuple[tuple[schema.Part, Role], ...] = (("weight", "block"), ("bias", "bias"))
    for part, role in parts:
        if part == "bias" and not any(key[2] == "bias" for key in blocks):
            continue
        shape = (hidden, hidden) if part == "weight" else (hidden,)
        row = []
        for j in range(count):
            index = j if j in stored or not stored else stored[0]
            source = find(checkpoint, blocks, (head, index, part), f"{prefix}{head}.{index}.linear.{part}")
            row.append(tensor(checkpoint, source, schema.block(head, j, part), shape, role))
        tensors += mark_shared(row)
    return tensors


def _family(prefix: str, has_output: bool, is_full_model: bool) -> str:
    if not has_output:
        return "v2"
    if prefix.endswith("medusa_heads."):
        return "modelopt"
    return "full" if is_full_model else "v1"
