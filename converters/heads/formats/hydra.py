"""Hydra heads: `hydra_mlp.{i}.{j}...`, `hydra_lm_head.{i}...`, and for Hydra++ one attention layer over the prefix.

Head i reads cat(h, emb(root), emb(node 1), ..) of width h * (i + 2); its first block has a linear residual, the blocks
after it are one shared module. Heads that are not grounded read h alone, like Medusa's. The prefix architecture puts
Dropout modules between the blocks, which shifts their numbers to 1, 3, 5, ...; its tensors are spelt
"prefix_embeding_layer". Attention matrices keep Hugging Face's order of rows (rotary embedding over halves), not that
of llama.cpp's llama models.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...checkpoints.checkpoint import Checkpoint
from .. import schema
from .model import HeadTensor, Layout, Role, SourceHeads, config_int

PREFIX_NAMES = {
    "layers.0.input_layernorm.weight": "attn_norm",
    "layers.0.self_attn.q_proj.weight": "attn_q",
    "layers.0.self_attn.k_proj.weight": "attn_k",
    "layers.0.self_attn.v_proj.weight": "attn_v",
    "layers.0.self_attn.o_proj.weight": "attn_output",
    "layers.0.post_attention_layernorm.weight": "ffn_norm",
    "layers.0.mlp.gate_proj.weight": "ffn_gate",
    "layers.0.mlp.up_proj.weight": "ffn_up",
    "layers.0.mlp.down_proj.weight": "ffn_down",
    "norm.weight": "output_norm",
}
COMPUTED = "layers.0.self_attn.rotary_emb.inv_freq"
"""A buffer stored by old versions of transformers; it follows from the rope base."""

PREFIX_CONFIG = {
    schema.PREFIX_HEAD_COUNT_KEY: ("num_attention_heads", int),
    schema.PREFIX_HEAD_COUNT_KV_KEY: ("num_key_value_heads", int),
    schema.PREFIX_ROPE_FREQ_BASE_KEY: ("rope_theta", float),
    schema.PREFIX_NORM_EPS_KEY: ("rms_norm_eps", float),
    schema.PREFIX_FROM_ANSWER_KEY: ("prefix_from_answer", bool),
}
"""Our keys, with config.json's names for them and their types; by default, the prefix layer is like the base's."""


class Hydra(Layout):
    """Reads the heads. residuals: like blocks, for the first blocks' linear residuals; prefix: part -> stored name."""

    NAME = re.compile(
        r"(?:hydra_head\.)?(?:"
        r"hydra_mlp\.(?P<head>0|[1-9]\d{0,4})\.(?P<index>0|[1-9]\d{0,4})\.(?P<layer>linear|res_connection)\."
        r"(?P<part>weight|bias)"
        r"|hydra_lm_head\.(?P<output>0|[1-9]\d{0,4})\.(?:1\.)?(?P<output_part>weight|bias)"
        r"|prefix_embeding_layer\.(?P<prefix>layers\.0\..+|norm\.weight)"
        r"|(?P<skipped>input_embed_fn\.weight|prefix_embeding_layer\.embed_tokens\.weight))"
    )

    block_name, output_name = "hydra_mlp.{}.{}.linear.{}", "hydra_lm_head.{}.{}"

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.residuals: dict[tuple[int, int, str], str] = {}
        self.prefix: dict[str, str] = {}

    def read(self, names: Sequence[str], is_full_model: bool) -> SourceHeads:
        """As in Layout."""
        self._sort(names)
        stored = [key[0] for key in (*self.blocks, *self.residuals)]
        heads = self.count_heads(stored, config_int(self.config, "hydra_num_heads"))
        if heads == 0:
            raise self.refuse("Hydra heads without 'hydra_mlp' tensors: this kind is not supported")
        grounded = bool(self.residuals)
        numbers = self._block_numbers(grounded)
        rows, self.hidden = self.matrix_shape(self.find(self.outputs, (0, "weight"), "hydra_lm_head.0.weight"))
        for head in range(heads):
            width = self.hidden * (head + 2 if grounded else 1)
            for part in schema.PARTS:
                before = len(self.tensors)
                self.add_blocks(head, part, enumerate(numbers), width)
                self.tensors[before:before] = self._residual(head, part, numbers, width if grounded else None)
            for part in schema.PARTS:
                self.add_output(head, part, rows)
        for (head, _), name in self.outputs.items():
            if head >= heads:
                raise self.refuse(f"tensor {name!r} has no blocks of its own")
        if self.prefix:
            self._add_prefix()
        stated = self.config.get("grounded_heads")
        if isinstance(stated, bool) and stated != grounded:
            self.remarks.append(f"config.json says grounded_heads = {stated}, the tensors say otherwise")
        kind: schema.Kind = "medusa" if not grounded else "hydra++" if self.prefix else "hydra"
        family = "hydra-prefix-mlp" if self.prefix else "hydra-mlp"
        metadata = {**({schema.EMBEDDING_SCALE_KEY: 1.0} if grounded else {}), **self._stated_prefix()}
        return self.result(family, kind, (heads, len(numbers)), rows, lm_head="own", metadata=metadata)

    def _sort(self, names: Sequence[str]) -> None:
        for name in names:
            match = self.NAME.fullmatch(name)
            assert match
            if match["head"]:
                places = self.blocks if match["layer"] == "linear" else self.residuals
                self.put(places, (int(match["head"]), int(match["index"]), match["part"]), name)
            elif match["output"]:
                self.put(self.outputs, (int(match["output"]), match["output_part"]), name)
            elif match["prefix"] and match["prefix"] != COMPUTED:
                self.put(self.prefix, match["prefix"], name)

    def _block_numbers(self, grounded: bool) -> list[int]:
        """The stored number of each block, in order (for a block the file omits, the number of its module)."""
        names = {index: name for (_, index, _), name in reversed([*self.blocks.items(), *self.residuals.items()])}
        stored = sorted(names)
        step = 2 if stored[0] == 1 else 1
        for expected, index in zip(range(stored[0], 2**20, step), stored, strict=False):
            if index != expected or stored[0] > 1:
                raise self.refuse(f"tensor {names[index]!r} stands at an unexpected place: unknown layout")
        stated = config_int(self.config, "hydra_num_layers")
        least = 2 if grounded else 1
        if stated is not None and stated > len(stored) == least and self.omits_copies():
            return stored + [stored[-1]] * (self.check_blocks(stated) - least)
        self.compare(stated, self.check_blocks(len(stored)), "blocks in each head")
        return stored

    def _residual(self, head: int, part: schema.Part, numbers: Sequence[int], width: int | None) -> list[HeadTensor]:
        """One part of the first block's linear residual of `width` columns. None: these heads have none."""
        found = []
        for j, index in enumerate(numbers):
            residual = self.residuals.get((head, index, part))
            wanted = width is not None and j == 0
            if (residual is not None) != wanted:
                name = residual or f"hydra_mlp.{head}.{index}.res_connection.{part}"
                raise self.refuse(
                    f"tensor {name!r} {'is unknown' if residual else 'is missing'}: the first block alone has a linear "
                    "residual"
                )
            if residual is not None and width is not None:
                shape = (self.hidden, width)[: 1 + (part == "weight")]
                role: Role = "block" if part == "weight" else "bias"
                found.append(self.tensor(residual, schema.residual(head, part), shape, role))
        return found

    def _add_prefix(self) -> None:
        """The attention layer, then its final norm."""
        for key, source in self.prefix.items():
            if key not in PREFIX_NAMES:
                raise self.refuse(f"tensor {source!r} is unknown in a prefix layer")
        found = {our: self.find(self.prefix, key, f"prefix_embeding_layer.{key}") for key, our in PREFIX_NAMES.items()}
        query, key_rows, inner = (self.matrix_shape(found[name])[0] for name in ("attn_q", "attn_k", "ffn_gate"))
        shapes = schema.prefix_shapes(self.hidden, query, key_rows, inner)
        self.tensors += [self.tensor(found[our], schema.prefix(our), shapes[our], "prefix") for our in found]

    def _stated_prefix(self) -> dict[str, int | float | str]:
        """What config.json says about the prefix layer's attention."""
        stated: dict[str, int | float | str] = {}
        for key, (name, kind) in PREFIX_CONFIG.items() if self.prefix else ():
            value = self.config.get(name)
            if kind is bool:
                if type(value) is bool:
                    stated[key] = value
            elif (type(value) is int or type(value) is float) and 0 < value < 1e12 and kind(value) == value:
                stated[key] = kind(value)
        return stated
