"""vLLM's layout: `blocks.{i}.layers.{j}.{weight,bias}`, `lm_heads.{i}.weight` and perhaps a `token_map`.

The token map names the token of each output row; heads with one draft a part of the vocabulary. One output matrix for
all heads (original_lm_head) may be stored once, as `lm_heads.0.weight` or `lm_head.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...checkpoints.checkpoint import Checkpoint
from ...errors import MedusaError
from .. import schema
from .model import (
    HeadTensor,
    SourceHeads,
    check_blocks,
    check_numbers,
    config_int,
    count_remark,
    find,
    load_floats,
    matrix_shape,
    put,
    tensor,
)

NAME = re.compile(
    r"(?:medusa_heads?\.)?(?:"
    r"blocks\.(?P<head>0|[1-9]\d{0,4})\.layers\.(?P<index>0|[1-9]\d{0,4})\.(?P<part>weight|bias)"
    r"|lm_heads\.(?P<output>0|[1-9]\d{0,4})\.weight|(?P<map>token_map))"
)
SHARED_OUTPUT = "lm_head.weight"

INTEGERS = ("I64", "I32", "I16", "U8", "U16", "U32", "U64")


def read_vllm(checkpoint: Checkpoint, names: Sequence[str]) -> SourceHeads:
    """The heads of which `names` are all tensors. MedusaError when they do not fit together."""
    blocks, outputs, map_name = _sorted_names(checkpoint, names)
    heads = check_numbers(checkpoint, (head for head, _, _ in blocks))
    block_count = check_blocks(checkpoint, 1 + max(index for _, index, _ in blocks))
    hidden = matrix_shape(checkpoint, find(checkpoint, blocks, (0, 0, "weight"), "blocks.0.layers.0.weight"))[1]
    tensors: list[HeadTensor] = []
    for head in range(heads):
        for j in range(block_count):
            described = f"blocks.{head}.layers.{j}"
            source = find(checkpoint, blocks, (head, j, "weight"), f"{described}.weight")
            tensors.append(tensor(checkpoint, source, schema.block(head, j, "weight"), (hidden, hidden), "block"))
            if any(part == "bias" for _, _, part in blocks):
                source = find(checkpoint, blocks, (head, j, "bias"), f"{described}.bias")
                tensors.append(tensor(checkpoint, source, schema.block(head, j, "bias"), (hidden,), "bias"))

    config = checkpoint.config
    remarks = count_remark(config_int(config, "num_heads"), heads, "heads")
    remarks += count_remark(config_int(config, "num_hidden_layers"), block_count, "blocks in each head")
    shared = _is_shared(checkpoint, outputs, heads)
    token_map = _token_map(checkpoint, map_name, matrix_shape(checkpoint, outputs[min(outputs)])[0], remarks)
    output_tensors, rows = _outputs(checkpoint, outputs, 1 if shared else heads, hidden, token_map)
    if shared:
        output_tensors = [replace(output_tensors[0], name=schema.SHARED_OUTPUT)]
        remarks.append("all heads share one output matrix")
        if token_map is None:
            token_map = np.arange(rows, dtype=np.int32)
    if token_map is not None:
        output_tensors.append(HeadTensor(schema.D2T, (rows,), "map", token_map.copy, map_name or ""))
    return SourceHeads(
        family="vllm",
        kind="medusa",
        head_count=heads,
        block_count=block_count,
        lm_head="own" if token_map is None else "draft_vocab",
        hidden=hidden,
        rows=rows,
        tensors=tensors + output_tensors,
        remarks=remarks,
    )


def _sorted_names(
    checkpoint: Checkpoint, names: Sequence[str]
) -> tuple[dict[tuple[int, int, str], str], dict[int, str], str | None]:
    """(head, layer, part) -> stored name; head -> stored name of its output (-1: of all heads); name of the map."""
    blocks: dict[tuple[int, int, str], str] = {}
    outputs: dict[int, str] = {}
    maps: dict[int, str] = {}
    for name in names:
        match = NAME.fullmatch(name)
        if match is None:
            put(checkpoint, outputs, -1, name)
        elif match["map"]:
            put(checkpoint, maps, 0, name)
        elif match["output"]:
            put(checkpoint, outputs, int(match["output"]), name)
        else:
            put(checkpoint, blocks, (int(match["head"]), int(match["index"]), match["part"]), name)
    if not blocks or not outputs:
        raise MedusaError(f"{checkpoint.name}: heads need blocks and an output matrix (lm_heads.0.weight)")
    if -1 in outputs and len(outputs) > 1:
        raise MedusaError(f"{checkpoint.name}: {outputs[-1]!r} stands beside {outputs[max(outputs)]!r}: unknown layout")
    return blocks, outputs, maps.get(0)


def _is_shared(checkpoint: Checkpoint, outputs: dict[int, str], heads: int) -> bool:
    """Whether one output matrix serves all heads: stored once, and either named so or said so."""
    if -1 in outputs:
        return True
    return set(outputs) == {0} and heads > 1 and checkpoint.config.get("original_lm_head") is True


def _outputs(
    checkpoint: Checkpoint, outputs: dict[int, str], count: int, hidden: int, token_map: NDArray[np.int32] | None
) -> tuple[list[HeadTensor], int]:
    """Output matrices of the heads, and their rows. A matrix over the whole vocabulary is cut down to the map's."""
    if set(outputs) - {-1} - set(range(count)):
        raise MedusaError(f"{checkpoint.name}: tensor {outputs[max(outputs)]!r} has no head of its own")
    stored_rows = matrix_shape(checkpoint, outputs[min(outputs)])[0]
    scale = checkpoint.config.get("logit_scale", 1.0)
    factor = float(scale) if isinstance(scale, (int, float)) and 0 < scale < 1e6 else 1.0
    tensors = []
    for head in range(count):
        source = outputs.get(-1) or find(checkpoint, outputs, head, f"lm_heads.{head}.weight")
        name = schema.output(head, "weight")
        tensors.append(tensor(checkpoint, source, name, (stored_rows, hidden), "output", factor))
    if token_map is None or len(token_map) == stored_rows:
        return tensors, stored_rows
    rows = len(token_map)
    return [
        replace(item, shape=(rows, hidden), load=partial(_load_rows, checkpoint, item.source, factor, token_map))
        for item in tensors
    ], rows


def _load_rows(checkpoint: Checkpoint, source: str, factor: float, rows: NDArray[np.int32]) -> NDArray[np.float32]:
    return load_floats(checkpoint, source, factor)[rows]


def _token_map(
    checkpoint: Checkpoint, name: str | None, stored_rows: int, remarks: list[str]
) -> NDArray[np.int32] | None:
    """The token of each output row, None where rows are tokens. vLLM ignores a map when nothing is truncated."""
    if name is None:
        return None
    stored = checkpoint.tensors[name]
    if len(stored.shape) != 1 or stored.dtype not in INTEGERS or not 0 < stored.shape[0] <= stored_rows:
        raise MedusaError(
            f"{checkpoint.name}: {name!r} of shape {list(stored.shape)} and dtype {stored.dtype} does not name a token "
            f"for each of {stored_rows} output rows"
        )
    vocabulary = config_int(checkpoint.config, "vocab_size")
    truncated = config_int(checkpoint.config, "truncated_vocab_size")
    if stored.shape[0] < stored_rows and truncated is not None and vocabulary is not None and truncated >= vocabulary:
        remarks.append("token_map is not used: config.json says that the vocabulary is not truncated")
        return None
    remarks += count_remark(truncated, stored.shape[0], "tokens in the draft vocabulary")
    values = checkpoint.load(name)
    limit = stored_rows if stored.shape[0] < stored_rows else (vocabulary or 2**31)
    if values.min() < 0 or values.max() >= limit or len(np.unique(values)) != len(values):
        raise MedusaError(f"{checkpoint.name}: {name!r} names a token twice or outside the vocabulary of {limit}")
    return values.astype(np.int32)
