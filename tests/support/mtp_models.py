"""Small models with next-token layers (MTP), with seeded random weights: whole, without these layers, or these alone.

Drafts of random weights are hardly ever accepted, which is right for comparing drafts with a reference. Models that
`agree` are accepted often: see `_agree`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from architectures import ARCHITECTURES, TOKENS, Architecture, Keys
from random_models import Tensors, random_tensors, random_values, write_model

Part = Literal["all", "trunk", "layers"]
Matrix = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class MtpModel:
    """name: of an architecture in ARCHITECTURES. layers: how many next-token layers follow its own.

    gemma4 has none: they are in a file of their own, see write_assistant.
    optional: which of embed_tokens, shared_head_head and shared_head_norm these have; the model's own serve for the
    others. keys: what differs from ARCHITECTURES. strength: how large the embeddings are, for each agreement.
    """

    name: str
    layers: int
    optional: tuple[str, ...]
    keys: Keys
    strength: dict[float, float]

    @property
    def trunk(self) -> int:
        """The number of layers that a plain pass has, and of the first next-token layer."""
        return int(ARCHITECTURES[self.name].keys["block_count"])

    def architecture(self, part: Part = "all", others: Keys | None = None) -> Architecture:
        """others: keys that differ from what they would be."""
        keys = {**ARCHITECTURES[self.name].keys, "context_length": 2048}
        if part != "trunk" and self.layers:
            keys |= {**self.keys, "block_count": self.trunk + self.layers, "nextn_predict_layers": self.layers}
        return Architecture(self.name, {**keys, **(others or {})})


_WINDOWS = "attention.sliding_window_pattern"
MTP_MODELS = {
    m.name: m
    for m in (
        MtpModel("qwen35", 1, ("shared_head_norm",), {}, {0.67: 0.295, 0.9: 0.377}),
        MtpModel("glm4moe", 1, ("embed_tokens", "shared_head_head", "shared_head_norm"), {}, {0.67: 0.269, 0.9: 0.324}),
        MtpModel("deepseek2", 1, (), {}, {0.67: 0.391, 0.9: 0.45}),
        MtpModel(
            "step35",
            3,
            ("shared_head_head", "shared_head_norm"),
            {_WINDOWS: [False, True, False, True, True]},
            {0.67: 0.256, 0.9: 0.332},
        ),
        MtpModel("gemma4", 0, (), {}, {0.67: 1.466, 0.9: 1.789}),
        MtpModel("mimo2", 3, (), {_WINDOWS: [False, True, True, False, True]}, {0.67: 0.238, 0.9: 0.276}),
    )
}

ASSISTANT = Architecture(
    "gemma4-assistant",
    {
        "vocab_size": TOKENS,
        "context_length": 2048,
        "embedding_length": 96,
        "embedding_length_out": 128,
        "block_count": 4,
        "nextn_predict_layers": 4,
        "feed_forward_length": 192,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.key_length_swa": 64,
        "attention.value_length_swa": 64,
        "attention.sliding_window": 32,
        _WINDOWS: [True, True, True, False],
        "rope.freq_base": 10000.0,
        "rope.freq_base_swa": 10000.0,
    },
)
"""For the gemma4 that ARCHITECTURES has: width 128. Its layers read the target's keys and values, and have none."""


def write_mtp_model(
    path: Path,
    name: str,
    *,
    agree: float = 0.0,
    part: Part = "all",
    seed: int = 1,
    keys: Keys | None = None,
    edit: Callable[[Tensors], None] = lambda tensors: None,
) -> Path:
    """One of MTP_MODELS. part: what the file holds; "layers" has the embeddings and the output matrix besides.

    keys: those that differ; more of them make a model that is of no use with the others'.

    agree: the share of right drafts, 0.67 or 0.9; 0: weights that know nothing of each other. edit: changes the tensors
    in the end.
    """
    model = MTP_MODELS[name]
    architecture = model.architecture("all", keys)
    trunk = architecture.keys["block_count"] - model.layers
    tensors = random_tensors(path.parent, architecture, seed)
    _like_converted(model, trunk, tensors)
    if agree:
        _agree(tensors, model, agree, seed)
        for layer in range(trunk, trunk + model.layers):
            _agree_layer(tensors, f"blk.{layer}.nextn.", model.strength[agree])
    first = tuple(f"blk.{layer}." for layer in range(trunk))
    last = tuple(f"blk.{layer}." for layer in range(trunk, trunk + model.layers))
    for tensor in list(tensors):
        if (part == "layers" and tensor.startswith(first)) or (part == "trunk" and tensor.startswith(last)):
            del tensors[tensor]
    edit(tensors)
    write_model(path, model.architecture(part, keys), tensors)
    return path


def _like_converted(model: MtpModel, trunk: int, tensors: Tensors) -> None:
    """Without the tensors that a file of the model has not, though libllama would read them."""
    for name in [name for name in tensors if name.endswith("scale")]:  # of quantised weights only
        del tensors[name]
    _plain_gemma(tensors)
    for layer in range(trunk, trunk + model.layers):
        block = f"blk.{layer}."
        for name in {"embed_tokens", "shared_head_head", "shared_head_norm"} - set(model.optional):
            del tensors[f"{block}nextn.{name}.weight"]
        if model.name == "mimo2":  # one matrix for queries, keys and values; no experts
            parts = [tensors.pop(f"{block}attn_{part}.weight") for part in "qkv"]
            tensors[f"{block}attn_qkv.weight"] = np.concatenate(parts)
            for name in [n for n in tensors if n.startswith(block) and ("exp" in n or "gate_inp" in n or "out_n" in n)]:
                del tensors[name]


def _plain_gemma(tensors: Tensors) -> None:
    """Factors of whole layers and of angles that are near one, as trained models have them."""
    for name, values in tensors.items():
        if name.endswith("layer_output_scale.weight"):
            tensors[name] = 1 + np.abs(values)
        elif name == "rope_freqs.weight":
            tensors[name] = 1 + 10 * np.abs(values)


def _next_token(seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token -> the token that follows it as long as nothing else weighs in: one round of all tokens."""
    order = np.random.default_rng(seed).permutation(TOKENS)
    following = np.empty(TOKENS, np.int64)
    following[order] = np.roll(order, -1)
    return following


def output_for(embeddings: Matrix, seed: int) -> Matrix:
    """The output matrix that finds each token's follower in its embedding."""
    output = np.empty_like(embeddings)
    output[_next_token(seed)] = embeddings
    return output / np.linalg.norm(output, axis=1, keepdims=True)


def _agree(tensors: Tensors, model: MtpModel, agree: float, seed: int) -> None:
    """Lets a token's embedding, that all layers add to, tell which token is next: often, but not always.

    What the layers add depends on the whole text and wins sometimes, in the model and in its next-token layers, each
    time that it does so in one of them alone, a draft is rejected. The strength is that of the embedding beside it.
    """
    embeddings = random_values("token_embd.weight", tensors["token_embd.weight"].shape, seed)
    in_graph = model.name == "gemma4"  # libllama multiplies by this root itself
    embeddings *= np.float32(model.strength[agree] * (1 if in_graph else embeddings.shape[1] ** 0.5))
    tensors["token_embd.weight"] = embeddings
    tensors["output.weight"] = output_for(embeddings, seed)


def _agree_layer(tensors: Tensors, nextn: str, strength: float) -> None:
    """The same in a next-token layer: the token's half of its input comes through, the state's half is noise."""
    projection = tensors[f"{nextn}eh_proj.weight"].copy()  # [width, 2 * width]: embedding, state
    width = len(projection)
    projection[:, :width] = strength * np.eye(width, dtype=np.float32)
    tensors[f"{nextn}eh_proj.weight"] = projection
    for name, same in (("embed_tokens", "token_embd"), ("shared_head_head", "output")):
        if f"{nextn}{name}.weight" in tensors:
            tensors[f"{nextn}{name}.weight"] = tensors[f"{same}.weight"]


def write_assistant(path: Path, *, agree: float = 0.0, seed: int = 1) -> Path:
    """The file of gemma4's next-token layers. libllama makes no model of these keys alone: all shapes are here."""
    keys = ASSISTANT.keys
    width, target, inner = keys["embedding_length"], keys["embedding_length_out"], keys["feed_forward_length"]
    head = keys["attention.key_length"]
    heads = head * keys["attention.head_count"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (TOKENS, width),
        "output_norm": (width,),
        "nextn.pre_projection": (width, 2 * target),
        "nextn.post_projection": (target, width),
        "rope_freqs": (head // 2,),
    }
    for layer in range(keys["block_count"]):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            shapes[f"{block}{norm}"] = (width,)
        shapes[f"{block}attn_q_norm"] = (head,)
        shapes[f"{block}attn_q"], shapes[f"{block}attn_output"] = (heads, width), (width, heads)
        shapes[f"{block}ffn_gate"] = shapes[f"{block}ffn_up"] = (inner, width)
        shapes[f"{block}ffn_down"] = (width, inner)
        shapes[f"{block}layer_output_scale"] = (1,)
    tensors: Tensors = {f"{n}.weight": random_values(f"{n}.weight", shape, seed + 1) for n, shape in shapes.items()}
    _plain_gemma(tensors)
    if agree:
        embeddings = random_values("token_embd.weight", (TOKENS, target), seed)  # as the target has them
        projection = tensors["nextn.pre_projection.weight"]
        tensors["token_embd.weight"] = output_for(embeddings @ projection[:, :target].T, seed)
    write_model(path, ASSISTANT, tensors)
    return path
