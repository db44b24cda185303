"""The layers of a GGUF: their shape, from its header (dense decoders of llama, qwen2, qwen3 and gemma3), and their
tensors, dequantized one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from medusa_cli.converters.gguf.header import Header
from medusa_cli.models.base_file import OUTPUT_NAMES
from medusa_cli.models.tensors import Tensors
from medusa_cli.support.errors import MedusaError

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
BIASES = ("attn_q", "attn_k", "attn_v")
NORMS = ("attn_norm", "ffn_norm")
OPTIONAL_NORMS = ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm")
ROPE_FACTORS = "rope_freqs.weight"

ADJACENT_PAIRS = {"llama": True, "qwen2": False, "qwen3": False, "gemma3": False}
"""Whether rotary embeddings rotate neighbouring places of a head, or places half a head apart."""
REFUSED_KEYS = (
    "expert_count",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "final_logit_softcapping",
    "attention.clamp_kqv",
)
"""If not zero, these change what a layer computes."""
GEMMA_27B_LAYERS = 62
"""Gemma 3 27B scales its queries by its hidden size, not by the size of a head."""


@dataclass(frozen=True)
class Rope:
    """base: of the frequencies; scale: positions are multiplied by it; factors: divide the frequencies."""

    base: float
    scale: float = 1.0
    factors: bool = False


@dataclass(frozen=True)
class LayerShape:
    """One layer. window: how many tokens back, itself included, a token sees; None: all."""

    window: int | None
    rope: Rope


@dataclass(frozen=True)
class DecoderShape:
    """All layers of a model. gelu: the activation (tanh form), else SiLU; embedding_scale: of its own embeddings."""

    architecture: str
    hidden: int
    heads: int
    heads_kv: int
    head_size: int
    eps: float
    query_scale: float
    gelu: bool
    adjacent_pairs: bool
    embedding_scale: float
    layers: tuple[LayerShape, ...]


def read_shape(header: Header) -> DecoderShape:
    """MedusaError, in one line, for a model whose layers cannot be built here."""
    metadata = header.metadata()
    architecture = str(metadata.get("general.architecture"))
    if architecture not in ADJACENT_PAIRS:
        known = ", ".join(ADJACENT_PAIRS)
        raise MedusaError(f"{header.name}: layers can be trained for {known}, not for {architecture}")
    keys = Keys(header.name, architecture, metadata)
    scaling = keys.get("rope.scaling.type")
    refused = [key for key in REFUSED_KEYS if keys.get(key)]
    if refused or scaling not in (None, "none", "linear"):
        raise keys.unknown(refused[0] if refused else "rope.scaling.type")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_size = keys.integer("attention.key_length", hidden // heads)
    layers = keys.integer("block_count")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.integer(key, head_size) != head_size:
            raise keys.unknown(key)
    gemma = architecture == "gemma3"
    scaled_by = hidden // heads if gemma and layers == GEMMA_27B_LAYERS else head_size
    shape = DecoderShape(
        architecture=architecture,
        hidden=hidden,
        heads=heads,
        heads_kv=keys.integer("attention.head_count_kv", heads),
        head_size=head_size,
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        query_scale=keys.number("attention.scale", 0.0) or scaled_by**-0.5,
        gelu=gemma,
        adjacent_pairs=ADJACENT_PAIRS[architecture],
        embedding_scale=hidden**0.5 if gemma else 1.0,
        layers=tuple(_layer(keys, header, number) for number in range(layers)),
    )
    _check_tensors(header, shape)
    return shape


class Keys:
    """The metadata of one architecture, with errors that name the file."""

    def __init__(self, name: str, architecture: str, metadata: Mapping[str, Any]) -> None:
        self.name, self.architecture, self.metadata = name, architecture, metadata

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def integer(self, key: str, otherwise: int | None = None) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}", otherwise)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.unknown(key)
        return value

    def number(self, key: str, otherwise: float | None = None) -> float:
        value = self.metadata.get(f"{self.architecture}.{key}", otherwise)
        if not isinstance(value, int | float):
            raise self.unknown(key)
        return float(value)

    def unknown(self, key: str) -> MedusaError:
        return MedusaError(
            f"{self.name}: {self.architecture}.{key} is {self.get(key)!r}: such layers cannot be trained"
        )


def _layer(keys: Keys, header: Header, number: int) -> LayerShape:
    """Gemma 3: five of six layers see a window, and rotate their queries with frequencies of their own."""
    window = keys.get("attention.sliding_window") if keys.architecture == "gemma3" else None
    pattern = keys.get("attention.sliding_window_pattern") or 6
    local = bool(pattern[number]) if isinstance(pattern, list) else number % pattern < pattern - 1
    if window and local:
        return LayerShape(int(window), Rope(keys.number("rope.freq_base_swa", 10000.0)))
    factors = any(tensor.name == ROPE_FACTORS for tensor in header.tensors)
    factor = keys.number("rope.scaling.factor", 1.0) if keys.get("rope.scaling.type") == "linear" else 1.0
    return LayerShape(None, Rope(keys.number("rope.freq_base", 10000.0), 1.0 / factor, factors))


def _check_tensors(header: Header, shape: DecoderShape) -> None:
    """MedusaError for a layer's tensor that is missing, or that nothing here would read."""
    found = {tensor.name for tensor in header.tensors}
    known = {"output_norm.weight", "token_embd.weight", "output.weight", ROPE_FACTORS}
    for number in range(len(shape.layers)):
        needed = {f"blk.{number}.{part}.weight" for part in (*MATRICES, *NORMS)}
        if missing := sorted(needed - found):
            raise MedusaError(f"{header.name}: has no {missing[0]}: such layers cannot be trained")
        known |= needed | {f"blk.{number}.{part}.weight" for part in OPTIONAL_NORMS}
        known |= {f"blk.{number}.{part}.bias" for part in BIASES}
    if stray := sorted(found - known, key=lambda name: [int(part) for part in re.findall(r"\d+", name)]):
        raise MedusaError(f"{header.name}: unknown tensor {stray[0]}: such layers cannot be trained")


# --- tensors ---------------------------------------------------------------------------------------


class BaseTensors(Tensors):
    """Those of a model."""

    @property
    def output_name(self) -> str:
        """Name of the output matrix; of the token embeddings if the model ties them."""
        return next(name for name in OUTPUT_NAMES if self.has(name))
