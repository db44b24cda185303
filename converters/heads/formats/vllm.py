"""vLLM's layout: `blocks.{i}.layers.{j}.{weight,bias}`, `lm_heads.{i}.weight` and perhaps a `token_map`.

The token map names the token of each output row; heads that have one draft only a part of the vocabulary. One output
matrix for all heads (original_lm_head) may be stored once, as `lm_heads.0.weight` or `lm_head.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .. import schema
from .model import HeadTensor, Layout, SourceHeads, config_int, parts_among

SHARED_OUTPUT = "lm_head.weight"

INTEGERS = ("I64", "I32", "I16", "U8", "U16", "U32", "U64")


SHARED = -1
"""The head number for an output matrix that all heads share."""


class Vllm(Layout):
    """Reads the heads."""

    NAME = re.compile(
        r"(?:medusa_heads?\.)?(?:"
        r"blocks\.(?P<head>0|[1-9]\d{0,4})\.layers\.(?P<index>0|[1-9]\d{0,4})\.(?P<part>weight|bias)"
        r"|lm_heads\.(?P<output>0|[1-9]\d{0,4})\.weight|(?P<map>token_map))"
    )

    block_name, output_name = "blocks.{}.layers.{}.{}", "lm_heads.{}.{}"

    def read(self, names: Sequence[str], is_full_model: bool) -> SourceHeads:
        """As in Layout."""
        map_name = self._sort(names)
        heads = self.count_heads((key[0] for key in self.blocks), config_int(self.config, "num_heads"))
        blocks = self.check_blocks(1 + max(index for _, index, _ in self.blocks))
        self.compare(config_int(self.config, "num_hidden_layers"), blocks, "blocks in each head")
        self.hidden = self.matrix_shape(self.find(self.blocks, (0, 0, "weight"), "blocks.0.layers.0.weight"))[1]
        for head in range(heads):
            for j in range(blocks):
                for part in parts_among(self.blocks):
                    self.add_blocks(head, part, [(j, j)])
        # One output matrix serves all heads if it is stored once, and either its name or the configuration says so.
        once = set(self.outputs) == {(0, "weight")} and heads > 1
        shared = (SHARED, "weight") in self.outputs or (once and self.config.get("original_lm_head") is True)
        stored_rows = self.matrix_shape(self.outputs[min(self.outputs)])[0]
        token_map = self._token_map(map_name, stored_rows)
        outputs, rows = self._outputs(1 if shared else heads, stored_rows, token_map)
        if shared:
            outputs = [replace(outputs[0], name=schema.SHARED_OUTPUT)]
            self.remarks.append("all heads share one output matrix")
            if token_map is None:
                token_map = np.arange(rows, dtype=np.int32)
        self.tensors += outputs
        if token_map is not None:
            self.tensors.append(HeadTensor(schema.D2T, (rows,), "map", token_map.copy, map_name or ""))
        lm_head = "own" if token_map is None else "draft_vocab"
        return self.result("vllm", "medusa", (heads, blocks), rows, lm_head=lm_head)

    def _sort(self, names: Sequence[str]) -> str | None:
        """Returns the stored name of the token map."""
        maps: dict[None, str] = {}
        for name in names:
            match = self.NAME.fullmatch(name)
            if match is None:
                self.outputs[SHARED, "weight"] = name
            elif match["map"]:
                self.put(maps, None, name)
            elif match["output"]:
                self.put(self.outputs, (int(match["output"]), "weight"), name)
            else:
                self.put(self.blocks, (int(match["head"]), int(match["index"]), match["part"]), name)
        if not self.blocks or not self.outputs:
            raise self.refuse("heads need blocks and an output matrix (lm_heads.0.weight)")
        if (SHARED, "weight") in self.outputs and len(self.outputs) > 1:
            one, other = self.outputs[SHARED, "weight"], self.outputs[max(self.outputs)]
            raise self.refuse(f"{one!r} stands beside {other!r}: unknown layout")
        return maps.get(None)

    def _outputs(
        self, count: int, stored_rows: int, token_map: NDArray[np.int32] | None
    ) -> tuple[list[HeadTensor], int]:
        """The heads' output matrices, and their rows. A matrix over the whole vocabulary is cut down to the map's."""
        if {head for head, _ in self.outputs} - {SHARED, *range(count)}:
            raise self.refuse(f"tensor {self.outputs[max(self.outputs)]!r} has no head of its own")
        scale = self.config.get("logit_scale", 1.0)
        factor = float(scale) if isinstance(scale, (int, float)) and 0 < scale < 1e6 else 1.0
        tensors = []
        for head in range(count):
            described = self.output_name.format(head, "weight")
            source = self.outputs.get((SHARED, "weight")) or self.find(self.outputs, (head, "weight"), described)
            name = schema.output(head, "weight")
            tensors.append(self.tensor(source, name, (stored_rows, self.hidden), "output", factor))
        if token_map is None or len(token_map) == stored_rows:
            return tensors, stored_rows
        shape = (len(token_map), self.hidden)
        cut = [replace(item, shape=shape, load=partial(_rows, item, token_map)) for item in tensors]
        return cut, len(token_map)

    def _token_map(self, name: str | None, stored_rows: int) -> NDArray[np.int32] | None:
        """The token of each output row, None if rows are tokens. vLLM ignores a map if nothing is truncated."""
        if name is None:
            return None
        stored = self.checkpoint.tensors[name]
        if len(stored.shape) != 1 or stored.dtype not in INTEGERS or not 0 < stored.shape[0] <= stored_rows:
            raise self.refuse(
                f"{name!r} of shape {list(stored.shape)} and dtype {stored.dtype} does not name a token for each of "
                f"{stored_rows} output rows"
            )
        count = stored.shape[0]
        vocabulary = config_int(self.config, "vocab_size")
        truncated = config_int(self.config, "truncated_vocab_size")
        if count < stored_rows and truncated is not None and vocabulary is not None and truncated >= vocabulary:
            self.remarks.append("token_map is not used: config.json says that the vocabulary is not truncated")
            return None
        self.compare(truncated, count, "tokens in the draft vocabulary")
        values = self.checkpoint.load(name)
        limit = stored_rows if count < stored_rows else (vocabulary or 2**31)
        if values.min() < 0 or values.max() >= limit or len(np.unique(values)) != len(values):
            raise self.refuse(f"{name!r} names a token twice or outside the vocabulary of {limit}")
        return values.astype(np.int32)


def _rows(matrix: HeadTensor, rows: NDArray[np.int32]) -> NDArray[np.float32]:
    return np.asarray(matrix.load()[rows])
