"""What a file of draft heads says of itself: the names of its keys and tensors."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_cli.support.errors import MedusaError

ARCHITECTURE = "medusa"

VERSION = 1

SELF_CHECK_KEY = "medusa.check.top1"
"""f32[K]: share of positions where the best token of head k was right in a short sample; NaN: not measured."""

LM_HEADS = ("own", "base", "draft_vocab")

KINDS = ("medusa", "hydra", "hydra++")

WEIGHT_TYPES = ("f16", "q8_0")

PREFIX_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")

PREFIX_NORMS = ("attn_norm", "ffn_norm", "output_norm")


def flatten_tree(choices: Sequence[Sequence[int]]) -> list[int]:
    """[[0], [0, 1]] -> [1, 0, 2, 0, 1]: each path behind its length."""
    return [value for path in choices for value in (len(path), *path)]


def unflatten_tree(values: Sequence[int]) -> list[list[int]]:
    """Inverse of flatten_tree. MedusaError when the lengths do not add up."""
    choices, at = [], 0
    while at < len(values):
        end = at + 1 + values[at]
        if values[at] < 1 or end > len(values) or min(values[at + 1 : end]) < 0:
            raise MedusaError(f"medusa.tree: broken at entry {at}, the heads file is damaged")
        choices.append(list(values[at + 1 : end]))
        at = end
    return choices


BASE_HEADER = "medusa.base_header"

BASE_SIZE_KEY = "medusa.base.size"
