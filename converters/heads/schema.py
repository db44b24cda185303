"""What a file of draft heads says about itself: the names of its keys and tensors, which only this module spells.

native/heads reads the same names; tests/converters/test_heads_schema.py compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from ..errors import MedusaError

ARCHITECTURE = "medusa"
VERSION = 1
INPUT = "post_norm"
"""What heads read: the base's last hidden state, after its norm."""

INPUT_LAYER = "layer"
"""The state after an inner layer, INPUT_LAYER_OFFSET_KEY layers below the last."""

Kind = Literal["medusa", "hydra", "hydra++"]
"""Heads of residual blocks."""
STREAMS = "streams"
"""The kind that drafts with the base's own top layers, see stream_heads.py."""
RECURRENT = "recurrent"
"""The kind with one cell for all levels, see recurrent_head.py."""
LmHead = Literal["own", "base", "draft_vocab"]
Part = Literal["weight", "bias"]
StreamsMode = Literal["lossless", "shared"]
"""lossless: adapters on frozen layers; shared: the base was trained with the streams, which use its layers as is."""
AdapterPart = Literal["lora_a", "lora_b"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LM_HEADS: tuple[LmHead, ...] = get_args(LmHead)
PARTS: tuple[Part, ...] = get_args(Part)
"""Parts of a linear map; a bias may be missing."""
STREAMS_MODES: tuple[StreamsMode, ...] = get_args(StreamsMode)

# Keys.
VERSION_KEY = "medusa.version"
KIND_KEY = "medusa.kind"
HEAD_COUNT_KEY = "medusa.head_count"
BLOCK_COUNT_KEY = "medusa.block_count"
LM_HEAD_KEY = "medusa.lm_head"
DRAFT_VOCAB_SIZE_KEY = "medusa.draft_vocab_size"
INPUT_KEY = "medusa.input"
INPUT_LAYER_OFFSET_KEY = "medusa.input_layer_offset"
EMBEDDING_SCALE_KEY = "medusa.embedding_scale"
PREFIX_HEAD_COUNT_KEY = "medusa.prefix.head_count"
PREFIX_HEAD_COUNT_KV_KEY = "medusa.prefix.head_count_kv"
PREFIX_ROPE_FREQ_BASE_KEY = "medusa.prefix.rope_freq_base"
PREFIX_NORM_EPS_KEY = "medusa.prefix.norm_eps"
PREFIX_FROM_ANSWER_KEY = "medusa.prefix.from_answer"
STREAMS_MODE_KEY = "medusa.streams.mode"
STREAMS_LAYERS_KEY = "medusa.streams.layers"
STREAMS_FIRST_LAYER_KEY = "medusa.streams.first_layer"
STREAMS_RANK_KEY = "medusa.streams.rank"
"""Rank of the adapters; 0 in shared mode, which has none."""
STREAMS_ALPHA_KEY = "medusa.streams.alpha"
"""An adapter adds lora_b @ lora_a * alpha / rank."""
STREAMS_ROOT_KEY = "medusa.streams.root"
"""bool: the root's token embedding, through STREAM_ROOT or times STREAM_ROOT_SCALE, is added to what streams start
from."""
STREAMS_ROOT_RANK_KEY = "medusa.streams.root_rank"
"""u32: of STREAM_ROOT; 0: the file has STREAM_ROOT_SCALE instead."""
ACCURACY_KEY = "medusa.accuracy"
ACCURACY_RANKS_KEY = "medusa.accuracy_ranks"
TREE_KEY = "medusa.tree"
SELF_CHECK_KEY = "medusa.check.top1"
"""f32[K]: share of positions where the best token of head k was right in a short sample; NaN: not measured."""
BASE_NAME_KEY = "medusa.base.name"
BASE_FINGERPRINT_KEY = "medusa.base.fingerprint"
BASE_SIZE_KEY = "medusa.base.size"
"""Bytes of the base file inside a single file."""
SOURCE_KEYS = "medusa.source."
"""Beginning of the keys that say what the heads were converted from."""
BASE_SOURCE_KEYS = "medusa.base.source."
"""The same for the base."""

# Tensors.
BASE_HEADER = "medusa.base_header"
"""The header of the base file inside a single file, I8."""
D2T = "medusa.d2t"
"""The base token of each row of a draft vocabulary, I32."""
SHARED_OUTPUT = "medusa.output.weight"
"""One output matrix for all heads."""
PREFIX_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
PREFIX_NORMS = ("attn_norm", "ffn_norm", "output_norm")
CELL_MATRICES = ("residual", "gate", "up", "down")
STREAM_EMBEDDING = "medusa.stream.embedding"
"""[streams, h] F32: what tells the streams apart."""
STREAM_ROOT_SCALE = "medusa.stream.root_scale"
"""[h] F32."""
STREAM_ROOT_A = "medusa.stream.root.lora_a"
STREAM_ROOT_B = "medusa.stream.root.lora_b"
STREAM_ROOT = (STREAM_ROOT_A, STREAM_ROOT_B)
"""[r, h], [h, r]."""
STREAM_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""Matrices of a base layer to which adapters are added."""
ADAPTER_PARTS: tuple[AdapterPart, ...] = get_args(AdapterPart)


def is_of_heads(name: str) -> bool:
    """Whether a key or a tensor belongs to heads, not to the base."""
    return name.startswith("medusa.")


def block(head: int, j: int, part: Part) -> str:
    """Residual block j of a head (both from 0)."""
    return f"medusa.{head}.block.{j}.{part}"


def residual(head: int, part: Part) -> str:
    """The linear residual of a Hydra head's first block."""
    return f"medusa.{head}.block.0.residual.{part}"


def output(head: int, part: Part) -> str:
    """The lm_head of one head."""
    return f"medusa.{head}.output.{part}"


def prefix(name: str) -> str:
    """One of PREFIX_MATRICES or PREFIX_NORMS."""
    return f"medusa.prefix.{name}.weight"


def prefix_shapes(hidden: int, query: int, key: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Shapes, in torch order, of the PREFIX_MATRICES and PREFIX_NORMS. query, key: rows of their projections."""
    return {
        "attn_q": (query, hidden),
        "attn_k": (key, hidden),
        "attn_v": (key, hidden),
        "attn_output": (hidden, query),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
        **dict.fromkeys(PREFIX_NORMS, (hidden,)),
    }


def cell(name: str) -> str:
    """One of CELL_MATRICES."""
    return f"medusa.cell.{name}.weight"


def cell_shapes(hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    """Shapes, in torch order, of the CELL_MATRICES."""
    wide = dict.fromkeys(("gate", "up"), (inner, 2 * hidden))
    return {"residual": (hidden, 2 * hidden), **wide, "down": (hidden, inner)}


def adapter(layer: int, name: str, part: AdapterPart) -> str:
    """The adapter of matrix `name` [out, in], one of STREAM_MATRICES, in layer `layer` of the streams (lowest: 0).

    lora_a is [rank, in], lora_b [out, rank], torch order.
    """
    return f"medusa.stream.{layer}.{name}.{part}"


def flatten_tree(choices: Sequence[Sequence[int]]) -> list[int]:
    """[[0], [0, 1]] -> [1, 0, 2, 0, 1]: each path after its length."""
    return [value for path in choices for value in (len(path), *path)]


def unflatten_tree(values: Sequence[int]) -> list[list[int]]:
    """Inverse of flatten_tree. MedusaError if the lengths do not add up."""
    choices, at = [], 0
    while at < len(values):
        end = at + 1 + values[at]
        if values[at] < 1 or end > len(values) or min(values[at + 1 : end]) < 0:
            raise MedusaError(f"{TREE_KEY}: broken at entry {at}, the heads file is damaged")
        choices.append(list(values[at + 1 : end]))
        at = end
    return choices
