"""The layer for further tokens of a model, from the header of its file."""

from __future__ import annotations

from dataclasses import dataclass

from medusa_cli.converters.gguf.header import Header
from medusa_cli.support.errors import MedusaError

from ..backbone.shape import BIASES, MATRICES, REFUSED_KEYS, Keys, Rope

ARCHITECTURE = "qwen35"
"""The architecture whose layer torch has here."""
PROJECTION, EMBEDDING_NORM, STATE_NORM = "nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"
HEAD_NORM = "nextn.shared_head_norm.weight"
OUTPUT_NORM = "output_norm.weight"
"""The model's own, in the place of a HEAD_NORM that is not there."""
NORMS = ("attn_norm", "attn_q_norm", "attn_k_norm", "post_attention_norm")
PARTS = (PROJECTION, EMBEDDING_NORM, STATE_NORM, *(f"{part}.weight" for part in (*NORMS, *MATRICES)))
OPTIONAL_PARTS = (HEAD_NORM, *(f"{part}.bias" for part in BIASES))
"""Of the layer's tensors, blk.N.{part}."""


@dataclass(frozen=True)
class MtpShape:
    """number: N. count: how many tokens in a row it drafts, each from its own state for the one before. rotated: how
    many numbers of a head are; turning: which of their pairs turn with the position."""

    number: int
    count: int
    hidden: int
    heads: int
    heads_kv: int
    head_size: int
    rotated: int
    turning: tuple[bool, ...]
    rope: Rope
    eps: float
    query_scale: float

    def tensor(self, part: str) -> str:
        return f"blk.{self.number}.{part}"


def read_shape(header: Header, count: int) -> MtpShape:
    """MedusaError, in one line, for a model without such a layer, or with one that cannot be built here."""
    metadata = header.metadata()
    keys = Keys(header.name, str(metadata.get("general.architecture")), metadata)
    layers = keys.get("nextn_predict_layers")
    if not layers:
        raise MedusaError(f"{header.name}: has no MTP layer that could be tuned, train heads instead")
    if keys.architecture != ARCHITECTURE:
        raise MedusaError(f"{header.name}: MTP layers can be tuned for {ARCHITECTURE}, not for {keys.architecture}")
    scaling = keys.get("rope.scaling.type")
    refused = [key for key in REFUSED_KEYS if keys.get(key)]
    if layers != 1 or refused or scaling not in (None, "none", "linear"):
        raise keys.unknown("nextn_predict_layers" if layers != 1 else refused[0] if refused else "rope.scaling.type")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    head_size = keys.integer("attention.key_length", hidden // heads)
    if keys.integer("attention.value_length", head_size) != head_size:
        raise keys.unknown("attention.value_length")
    rotated = keys.integer("rope.dimension_count", head_size)
    if rotated % 2 or rotated > head_size:
        raise keys.unknown("rope.dimension_count")
    shape = MtpShape(
        number=keys.integer("block_count") - 1,
        count=count,
        hidden=hidden,
        heads=heads,
        heads_kv=keys.integer("attention.head_count_kv", heads),
        head_size=head_size,
        rotated=rotated,
        turning=_turning(keys, rotated // 2),
        rope=Rope(
            keys.number("rope.freq_base", 10000.0),
            1 / keys.number("rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
            factors=True,
        ),
        eps=keys.number("attention.layer_norm_rms_epsilon"),
        query_scale=keys.number("attention.scale", 0.0) or head_size**-0.5,
    )
    if shape.heads % shape.heads_kv:
        raise keys.unknown("attention.head_count_kv")
    _check_tensors(header, shape, keys.integer("feed_forward_length"))
    return shape


def _turning(keys: Keys, pairs: int) -> tuple[bool, ...]:
    """Pairs of a head take turns in following a text's position, an image's row and its column, which are all the
    position in a text; those beyond the three sections follow a fourth number, which is zero there."""
    sections = keys.get("rope.dimension_sections")
    if not isinstance(sections, list) or len(sections) not in (3, 4) or any(type(size) is not int for size in sections):
        raise keys.unknown("rope.dimension_sections")
    if min(sections) < 0 or sum(sections) < 1:
        raise keys.unknown("rope.dimension_sections")
    places = [pair % sum(sections) for pair in range(pairs)]
    return tuple(place < 3 * sections[place % 3] for place in places)


def _check_tensors(header: Header, shape: MtpShape, inner: int) -> None:
    """MedusaError for a tensor of the layer that is missing, has another shape, or that nothing here would read."""
    found = {tensor.name: tensor.shape for tensor in header.tensors}
    for part, wanted in _shapes(shape, inner).items():
        if (part in PARTS or shape.tensor(part) in found) and found.get(shape.tensor(part)) != wanted:
            raise MedusaError(
                f"{header.name}: {shape.tensor(part)} is missing or has another shape: it cannot be tuned"
            )
    known = {shape.tensor(part) for part in (*PARTS, *OPTIONAL_PARTS)}
    if stray := sorted(name for name in found if name.startswith(shape.tensor("")) and name not in known):
        raise MedusaError(f"{header.name}: unknown tensor {stray[0]}: such an MTP layer cannot be tuned")


def _shapes(shape: MtpShape, inner: int) -> dict[str, tuple[int, ...]]:
    """Of all PARTS and OPTIONAL_PARTS, in ggml's order. inner: width of the dense part."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_size, shape.heads_kv * shape.head_size
    shapes: dict[str, tuple[int, ...]] = {PROJECTION: (2 * hidden, hidden), "attn_output.weight": (queries, hidden)}
    shapes |= dict.fromkeys((EMBEDDING_NORM, STATE_NORM, HEAD_NORM), (hidden,))
    shapes |= dict.fromkeys(("attn_norm.weight", "post_attention_norm.weight"), (hidden,))
    shapes |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (shape.head_size,))
    shapes |= dict.fromkeys(("ffn_gate.weight", "ffn_up.weight"), (hidden, inner)) | {
        "ffn_down.weight": (inner, hidden)
    }
    for part, size in (("attn_q", 2 * queries), ("attn_k", keys), ("attn_v", keys)):
        shapes |= {f"{part}.weight": (hidden, size), f"{part}.bias": (size,)}
    return shapes
