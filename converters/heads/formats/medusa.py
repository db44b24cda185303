"""Heads in the Medusa authors' layout: v1, v2, inside full models, and NVIDIA ModelOpt's.

`{i}.{j}.linear.{weight,bias}` is residual block j of head i, `{i}.{L}.weight` its output matrix, after an optional
prefix. Without output matrices, the heads use the base's (v2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...checkpoints.checkpoint import Checkpoint
from .model import Layout, SourceHeads, config_int, parts_among


class Medusa(Layout):
    """Reads the heads. output_at: the numbers of output matrices, which follow the last block's."""

    NAME = re.compile(
        r"(?P<prefix>(?:base_model\.)?medusa_heads?\.|)(?P<head>0|[1-9]\d{0,4})\.(?P<index>0|[1-9]\d{0,4})\."
        r"(?P<linear>linear\.)?(?P<part>weight|bias)"
    )

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.prefix, self.output_at = "", set[int]()
        section = self.config.get("medusa")
        if isinstance(section, dict):  # ModelOpt's own
            self.config = {**self.config, **section}

    def read(self, names: Sequence[str], is_full_model: bool) -> SourceHeads:
        """As in Layout."""
        self._sort(names)
        numbers = [*(head for head, _, _ in self.blocks), *(head for head, _ in self.outputs)]
        heads = self.count_heads(numbers, config_int(self.config, "num_medusa_heads", "medusa_num_heads"))
        blocks = self._count_blocks()
        self.block_name, self.output_name = f"{self.prefix}{{}}.{{}}.linear.{{}}", f"{self.prefix}{{}}.{blocks}.{{}}"
        rows = self._measure()
        for head in range(heads):
            stored = sorted({index for owner, index, _ in self.blocks if owner == head})
            # Blocks that the file omits are the same module as the first one it stores.
            order = [(j, j if j in stored or not stored else stored[0]) for j in range(blocks)]
            for part in parts_among(self.blocks):
                self.add_blocks(head, part, order)
            for part in parts_among(self.outputs) if self.outputs else ():
                self.add_output(head, part, rows)
        lm_head = "own" if self.outputs else "base"
        return self.result(self._family(is_full_model), "medusa", (heads, blocks), rows, lm_head=lm_head)

    def _sort(self, names: Sequence[str]) -> None:
        prefixes: dict[str, str] = {}
        for name in names:
            match = self.NAME.fullmatch(name)
            assert match
            prefixes.setdefault(match["prefix"], name)
            if len(prefixes) > 1:
                first, second = prefixes.values()
                raise self.refuse(f"two sets of heads ({first!r}, {second!r}): name the file you mean")
            head, index = int(match["head"]), int(match["index"])
            if match["linear"]:
                self.blocks[head, index, match["part"]] = name
            else:
                self.outputs[head, match["part"]] = name
                self.output_at.add(index)
        (self.prefix,) = prefixes

    def _count_blocks(self) -> int:
        """How many residual blocks a head has. The output matrix follows the last one, so its number counts them."""
        stated = config_int(self.config, "num_medusa_layers", "medusa_num_layers")
        if self.output_at:
            count, *others = sorted(self.output_at)
            if others:
                raise self.refuse(f"output matrices at {count} and {others[0]}: heads must be alike")
        else:
            stored = {index for _, index, _ in self.blocks}
            count = max(stored) + 1
            if stored == {0} and stated is not None and stated > 1 and self.omits_copies():
                return self.check_blocks(stated)
        for (_, index, _), name in self.blocks.items():
            if index >= count:
                raise self.refuse(f"tensor {name!r} lies behind the output matrix: unknown layout")
        self.compare(stated, count, "blocks in each head")
        return self.check_blocks(count)

    def _measure(self) -> int:
        """Determines the hidden size. Returns the rows of the output matrices, 0 if there are none."""
        if self.outputs:
            source = self.find(self.outputs, (0, "weight"), self.output_name.format(0, "weight"))
            rows, self.hidden = self.matrix_shape(source)
            return rows
        source = self.find(self.blocks, (0, 0, "weight"), self.block_name.format(0, 0, "weight"))
        self.hidden = self.matrix_shape(source)[1]
        return 0

    def _family(self, is_full_model: bool) -> str:
        if not self.outputs:
            return "v2"
        if self.prefix.endswith("medusa_heads."):
            return "modelopt"
        return "full" if is_full_model else "v1"
