"""Hydra heads: `hydra_mlp.{i}.{j}...`, `hydra_lm_head.{i}...`, and for Hydra++ one attention layer over the prefix.

Head i reads cat(h, emb(root), emb(node 1), ..) of width h * (i + 2); its first block has a linear residual, the blocks
behind it are one shared module. Heads that are not grounded read h alone, as Medusa's do. The prefix architecture puts
Dropout modules between the blocks, which shifts their numbers to 1, 3, 5, ...; its tensors are spelt
"prefix_embeding_layer". Attention matrices stay in Hugging Face's order of rows (rotary embedding over halves), not in
that of llama.cpp's llama models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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
    r"(?:hydra_head\.)?(?:"
    r"hydra_mlp\.(?P<head>0|[1-9]\d{0,4})\.(?P<index>0|[1-9]\d{0,4})\.(?P<layer>linear|res_connection)\."
    r"(?P<part>weight|bias)"
    r"|hydra_lm_head\.(?P<output>0|[1-9]\d{0,4})\.(?:1\.)?(?P<output_part>weight|bias)"
    r"|prefix_embeding_layer\.(?P<prefix>layers\.0\..+|norm\.weight)"
    r"|(?P<skipped>input_embed_fn\.weight|prefix_embeding_layer\.embed_tokens\.weight))"
)

PREFIX_NAMES = {
    "layers.0.input_layernorm.weight": schema.prefix("attn_norm"),
    "layers.0.self_attn.q_proj.weight": schema.prefix("attn_q"),
    "layers.0.self_attn.k_proj.weight": schema.prefix("attn_k"),
    "layers.0.self_attn.v_proj.weight": schema.prefix("attn_v"),
    "layers.0.self_attn.o_proj.weight": schema.prefix("attn_output"),
    "layers.0.post_attention_layernorm.weight": schema.prefix("ffn_norm"),
    "layers.0.mlp.gate_proj.weight": schema.prefix("ffn_gate"),
    "layers.0.mlp.up_proj.weight": schema.prefix("ffn_up"),
    "layers.0.mlp.down_proj.weight": schema.prefix("ffn_down"),
    "norm.weight": schema.prefix("output_norm"),
}
COMPUTED = "layers.0.self_attn.rotary_emb.inv_freq"
"""A buffer that old versions of transformers stored; it follows from the rope base."""

PREFIX_CONFIG = {
    schema.PREFIX_HEAD_COUNT_KEY: ("num_attention_heads", int),
    schema.PREFIX_HEAD_COUNT_KV_KEY: ("num_key_value_heads", int),
    schema.PREFIX_ROPE_FREQ_BASE_KEY: ("rope_theta", float),
    schema.PREFIX_NORM_EPS_KEY: ("rms_norm_eps", float),
    schema.PREFIX_FROM_ANSWER_KEY: ("prefix_from_answer", bool),
}
"""Our keys, where config.json may say them and their type; unsaid, the prefix layer is like one of the base's."""

Key = tuple[int, int, str, str]


def read_hydra(checkpoint: Checkpoint, names: Sequence[str]) -> SourceHeads:
    """The heads of which `names` are all tensors. MedusaError when they do not fit together."""
    layers: dict[Key, str] = {}
    outputs: dict[tuple[int, str], str] = {}
    prefix: dict[str, str] = {}
    for name in names:
        match = NAME.fullmatch(name)
        assert match
        if match["head"]:
            put(checkpoint, layers, (int(match["head"]), int(match["index"]), match["layer"], match["part"]), name)
        elif match["output"]:
            put(checkpoint, outputs, (int(match["output"]), match["output_part"]), name)
        elif match["prefix"] and match["prefix"] != COMPUTED:
            put(checkpoint, prefix, match["prefix"], name)
    heads = check_numbers(checkpoint, (key[0] for key in layers))
    if heads == 0:
        raise MedusaError(f"{checkpoint.name}: Hydra heads without 'hydra_mlp' tensors: this kind is not supported")
    grounded = any(layer == "res_connection" for _, _, layer, _ in layers)
    numbers, remarks = _block_numbers(checkpoint, layers, grounded)
    rows, hidden = matrix_shape(checkpoint, find(checkpoint, outputs, (0, "weight"), "hydra_lm_head.0.weight"))

    tensors: list[HeadTensor] = []
    parts: tuple[tuple[schema.Part, tuple[int, ...], Role], ...] = (
        ("weight", (rows, hidden), "output"),
        ("bias", (rows,), "output_bias"),
    )
    for head in range(heads):
        tensors += _blocks_of(checkpoint, layers, head, numbers, hidden, grounded)
        for part, shape, role in parts:
            source = find(checkpoint, outputs, (head, part), f"hydra_lm_head.{head}.{part}")
            tensors.append(tensor(checkpoint, source, schema.output(head, part), shape, role))
    for (head, _), name in outputs.items():
        if head >= heads:
            raise MedusaError(f"{checkpoint.name}: tensor {name!r} has no blocks of its own")
    if prefix:
        tensors += _prefix_tensors(checkpoint, prefix, hidden)
    return _result(checkpoint, tensors, heads, len(numbers), hidden, rows, grounded, bool(prefix), remarks)


def _result(
    checkpoint: Checkpoint,
    tensors: list[HeadTensor],
    heads: int,
    blocks: int,
    hidden: int,
    rows: int,
    grounded: bool,
    has_prefix: bool,
    remarks: list[str],
) -> SourceHeads:
    stated = checkpoint.config.get("grounded_heads")
    if isinstance(stated, bool) and stated != grounded:
        remarks.append(f"config.json says grounded_heads = {stated}, the tensors say otherwise")
    remarks = count_remark(config_int(checkpoint.config, "hydra_num_heads"), heads, "heads") + remarks
    kind: schema.Kind = "medusa" if not grounded else "hydra++" if has_prefix else "hydra"
    return SourceHeads(
        family="hydra-prefix-mlp" if has_prefix else "hydra-mlp",
        kind=kind,
        head_count=heads,
        block_count=blocks,
        lm_head="own",
        hidden=hidden,
        rows=rows,
        tensors=tensors,
        metadata={**({schema.EMBEDDING_SCALE_KEY: 1.0} if grounded else {}), **_stated_prefix(checkpoint, has_prefix)},
        remarks=remarks + shared_remark(tensors),
    )


def _stated_prefix(checkpoint: Checkpoint, has_prefix: bool) -> dict[str, int | float | str]:
    """What config.json says of the prefix layer's attention."""
    stated: dict[str, int | float | str] = {}
    for key, (name, kind) in PREFIX_CONFIG.items() if has_prefix else ():
        value = checkpoint.config.get(name)
        if kind is bool:
            if type(value) is bool:
                stated[key] = value
        elif (type(value) is int or type(value) is float) and 0 < value < 1e12 and kind(value) == value:
            stated[key] = kind(value)
    return stated


def _block_numbers(checkpoint: Checkpoint, layers: dict[Key, str], grounded: bool) -> tuple[list[int], list[str]]:
    """The stored number of each block, in order (a block the file omits: the number of its module), and remarks."""
    stored = sorted({index for _, index, _, _ in layers})
    step = 2 if stored[0] == 1 else 1
    for expected, index in zip(range(stored[0], 2**20, step), stored, strict=False):
        if index != expected or stored[0] > 1:
            described = next(name for key, name in layers.items() if key[1] == index)
            raise MedusaError(f"{checkpoint.name}: tensor {described!r} stands at an unexpected place: unknown layout")
    stated = config_int(checkpoint.config, "hydra_num_layers")
    least = 2 if grounded else 1
    if stated is not None and stated > len(stored) == least and omits_copies(checkpoint):
        return stored + [stored[-1]] * (check_blocks(checkpoint, stated) - least), []
    return stored, count_remark(stated, check_blocks(checkpoint, len(stored)), "blocks in each head")


def _blocks_of(
    checkpoint: Checkpoint, layers: dict[Key, str], head: int, numbers: Sequence[int], hidden: int, grounded: bool
) -> list[HeadTensor]:
    tensors: list[HeadTensor] = []
    parts: tuple[tuple[schema.Part, Role], ...] = (("weight", "block"), ("bias", "bias"))
    for part, role in parts:
        row = []
        for j, index in enumerate(numbers):
            width = hidden * (head + 2) if grounded and j == 0 else hidden
            shape = (hidden, width) if part == "weight" else (hidden,)
            described = f"hydra_mlp.{head}.{index}"
            source = find(checkpoint, layers, (head, index, "linear", part), f"{described}.linear.{part}")
            row.append(tensor(checkpoint, source, schema.block(head, j, part), shape, role))
            residual = layers.get((head, index, "res_connection", part))
            if (residual is not None) != (grounded and j == 0):
                raise MedusaError(
                    f"{checkpoint.name}: tensor {residual or f'{described}.res_connection.{part}'!r} "
                    f"{'is unknown' if residual else 'is missing'}: the first block alone has a linear residual"
                )
            if residual is not None:
                tensors.append(tensor(checkpoint, residual, schema.residual(head, part), shape, role))
        tensors += mark_shared(row)
    return tensors


def _prefix_tensors(checkpoint: Checkpoint, prefix: dict[str, str], hidden: int) -> list[HeadTensor]:
    """The attention layer, then its final norm."""
    for key, source in prefix.items():
        if key not in PREFIX_NAMES:
            raise MedusaError(f"{checkpoint.name}: tensor {source!r} is unknown in a prefix layer")
    found = {ours: find(checkpoint, prefix, key, f"prefix_embeding_layer.{key}") for key, ours in PREFIX_NAMES.items()}
    query = matrix_shape(checkpoint, found[schema.prefix("attn_q")])[0]
    key_rows = matrix_shape(checkpoint, found[schema.prefix("attn_k")])[0]
    inner = matrix_shape(checkpoint, found[schema.prefix("ffn_gate")])[0]
    stated = schema.prefix_shapes(hidden, query, key_rows, inner)
    shapes = {schema.prefix(name): shape for name, shape in stated.items()}
    return [tensor(checkpoint, source, ours, shapes[ours], "prefix") for ours, source in found.items()]
