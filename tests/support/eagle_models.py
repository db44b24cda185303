"""Small models and EAGLE-3 drafters for them, with seeded random weights.

Drafts of random weights are hardly ever accepted, which is right for comparing drafts with a reference. Pairs that
`agree` are accepted often: see `_agree`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from architectures import ARCHITECTURES, TOKENS, Architecture, Keys
from mtp_models import Matrix, output_for
from random_models import Tensors, random_tensors, random_values, write_model

LAYERS = 4
"""Of each target."""
WIDTH = 256
DRAFT_TOKENS = 240
"""The size of a drafter's own vocabulary."""


@dataclass(frozen=True)
class EagleModel:
    """target: the architecture that it drafts for, one of STRENGTHS. width: of the drafter.

    own: which of token_embd and output are in the file; the target's serve for the others. d2t: whether it has a
    vocabulary of its own; then so is the output matrix. keys: what differs from those of `architecture`.
    scaled: with rope_freqs.
    """

    name: str
    target: str = "llama"
    own: tuple[str, ...] = ()
    d2t: bool = False
    scaled: bool = False
    width: int = WIDTH
    keys: tuple[tuple[str, Any], ...] = ()

    def architecture(self, others: Keys | None = None) -> Architecture:
        """others: keys that differ from what they would be."""
        keys = {
            "vocab_size": TOKENS,
            "context_length": 2048,
            "embedding_length": self.width,
            "block_count": 1,
            "feed_forward_length": 512,
            "attention.head_count": 4,
            "attention.head_count_kv": 2,
            "attention.key_length": 64,
            "attention.value_length": 64,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": 64,
            "target_layers": [1, 2, 3],
            "target_hidden_size": WIDTH,
            "norm_before_residual": False,
            "norm_before_fc": False,
        }
        return Architecture("eagle3", {**keys, **dict(self.keys), **(others or {})})


EAGLE_MODELS = {
    m.name: m
    for m in (
        EagleModel("plain"),
        EagleModel("d2t", own=("output",), d2t=True),
        EagleModel("residual", own=("token_embd",), keys=(("norm_before_residual", True),)),
        EagleModel("fc", own=("output",), keys=(("norm_before_fc", True),)),
        EagleModel(
            "wide",
            own=("token_embd", "output"),
            d2t=True,
            scaled=True,
            width=320,
            keys=(("norm_before_residual", True), ("norm_before_fc", True), ("target_layers", [3, 1, 2])),
        ),
        EagleModel("qwen3", "qwen3", own=("output",), d2t=True),
        EagleModel("qwen35", "qwen35"),
    )
}
"""Every key and every tensor that a file can do without, there and missing. qwen35: a target that takes chains only."""

STRENGTHS = {"llama": 0.4, "qwen3": 0.4, "qwen35": 0.35}
"""How large the embeddings of a target are that agrees with its drafter."""


def write_target(path: Path, name: str, *, agree: bool = False, seed: int = 1, keys: Keys | None = None) -> Path:
    """The model that EAGLE_MODELS[name] drafts for. keys: those that differ."""
    target = EAGLE_MODELS[name].target
    common = {**ARCHITECTURES[target].keys, "block_count": LAYERS, "context_length": 2048}
    architecture = Architecture(target, {**common, **(keys or {})})
    tensors = random_tensors(path.parent, architecture, seed)
    for tensor in [name for name in tensors if name.endswith("scale") or name == "rope_freqs.weight"]:
        del tensors[tensor]  # libllama would read them, but files of the model have none
    if agree:
        embeddings = _embeddings(architecture.keys["embedding_length"], seed)
        tensors["token_embd.weight"] = embeddings * np.float32(STRENGTHS[target] * embeddings.shape[1] ** 0.5)
        tensors["output.weight"] = output_for(embeddings, seed)
    write_model(path, architecture, tensors)
    return path


def _embeddings(width: int, seed: int) -> Matrix:
    return random_values("token_embd.weight", (TOKENS, width), seed)


def write_eagle(
    path: Path,
    name: str,
    *,
    agree: bool = False,
    seed: int = 1,
    keys: Keys | None = None,
    change: Callable[[Tensors], object] | None = None,
) -> Path:
    """One of EAGLE_MODELS, for the target of the same seed, name and `agree`.

    keys: those that differ; shapes follow them. change: makes of its tensors what is written.
    libllama makes no model of these keys alone, as it does of others: all shapes are here.
    """
    model = EAGLE_MODELS[name]
    architecture = model.architecture(keys)
    shapes = _shapes(model, architecture.keys)
    tensors: Tensors = {f"{n}.weight": random_values(f"{n}.weight", shape, seed + 1) for n, shape in shapes.items()}
    tensors["blk.0.attn_norm_2.weight"] += 1  # a norm, though its name does not say so to random_values
    if model.scaled:
        tensors["rope_freqs.weight"] = 1 + 10 * np.abs(tensors["rope_freqs.weight"])
    if model.d2t:
        tensors["d2t"] = draft_tokens(seed)
    if agree:
        _agree(tensors, model, architecture.keys, seed)
    if change:
        change(tensors)
    write_model(path, architecture, tensors)
    return path


def draft_tokens(seed: int = 1) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The ids of the drafter's own vocabulary, in rising order as published files have them."""
    return np.sort(np.random.default_rng(seed).permutation(TOKENS)[:DRAFT_TOKENS]).astype(np.int64)


def _shapes(model: EagleModel, keys: Keys) -> dict[str, tuple[int, ...]]:
    width, inner, head = keys["embedding_length"], keys["feed_forward_length"], keys["attention.key_length"]
    heads, kv_heads = head * keys["attention.head_count"], head * keys["attention.head_count_kv"]
    features = keys["target_hidden_size"] * len(keys["target_layers"])
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (width, features),
        "output_norm": (width,),
        "blk.0.attn_norm": (width,),
        "blk.0.attn_norm_2": (width,),
        "blk.0.attn_q": (heads, 2 * width),
        "blk.0.attn_k": (kv_heads, 2 * width),
        "blk.0.attn_v": (kv_heads, 2 * width),
        "blk.0.attn_output": (width, heads),
        "blk.0.ffn_norm": (width,),
        "blk.0.ffn_gate": (inner, width),
        "blk.0.ffn_up": (inner, width),
        "blk.0.ffn_down": (width, inner),
    }
    if keys["norm_before_fc"]:
        shapes["enc.output_norm"] = (features,)
    if "token_embd" in model.own:
        shapes["token_embd"] = (keys["vocab_size"], width)
    if "output" in model.own:
        shapes["output"] = (DRAFT_TOKENS if model.d2t else keys["vocab_size"], width)
    if model.scaled:
        shapes["rope_freqs"] = (head // 2,)
    return shapes


ATTENTION = 0.8
"""How much of a token's embedding attention adds in a drafter that agrees: with more, no feature changes a draft."""


def _agree(tensors: Tensors, model: EagleModel, keys: Keys, seed: int) -> None:
    """Lets a token's embedding tell which token is next, in the target and in its drafter: often, but not always.

    What the target's layers add depends on the whole text and wins sometimes. The drafter sees the embedding through
    its attention alone: in one head of each group a token looks mostly at itself, and the values are some of the
    embedding's numbers. They are added to the feature, which is noise, and which in a chain holds the token before: so
    about as much as these numbers have in a feature is taken off. All else in the drafter is noise, too.
    """
    width, head, groups = keys["embedding_length"], keys["attention.key_length"], keys["attention.head_count_kv"]
    share = keys["attention.head_count"] // groups
    embeddings = _embeddings(width, seed)
    if "token_embd" in model.own:
        tensors["token_embd.weight"] = embeddings
    if "output" in model.own:
        output = output_for(embeddings, seed)
        tensors["output.weight"] = output[tensors["d2t"]] if model.d2t else output
    query, key, value = (tensors[f"blk.0.attn_{part}.weight"] for part in "qkv")
    mixed = tensors["blk.0.attn_output.weight"]
    size = np.float32(1 if keys["norm_before_residual"] else ATTENTION * (groups * head / width) ** 0.5)
    for first in range(0, groups * head, head):
        rows, of_head = slice(first, first + head), slice(first * share, first * share + head)
        embedding, feature = np.eye(head, 2 * width, first), np.eye(head, 2 * width, width + first)
        key[rows] = query[of_head] = embedding
        value[rows] = ATTENTION * embedding - size * feature
        mixed[:, of_head] = np.eye(width, head, -first)
