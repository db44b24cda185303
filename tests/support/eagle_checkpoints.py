"""Small EAGLE-3 checkpoints with seeded random weights, one for each published layout, and targets for them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HF = Path(__file__).parents[1] / "data" / "hf"
HIDDEN, HEADS, HEADS_KV, FEED_FORWARD, DRAFT_TOKENS = 32, 4, 2, 48, 96
TARGET_HIDDEN, TARGET_LAYERS = 32, 8
"""Of the targets, whose weights no conversion reads."""


@dataclass(frozen=True)
class Layout:
    """A published layout. target: a folder of tests/data/hf. dtype: torch's name of it. stem: of the weight file.

    layer: begins the names of the layer's tensors. own: "embedding", "output", or both. config: further keys, nested:
    further keys of the layer's section, None if there is no such section.
    """

    architecture: str
    target: str = "llama-spm"
    dtype: str = "bfloat16"
    file: str = "model.safetensors"
    layer: str = "midlayer."
    own: tuple[str, ...] = ("output",)
    hidden: int = HIDDEN
    head_dim: int | None = None
    draft_tokens: int | None = DRAFT_TOKENS
    config: dict[str, Any] = field(default_factory=dict)
    nested: dict[str, Any] | None = None


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VERIFIER = {"algorithm": "eagle3", "verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]}}
LAYOUTS = {
    "specforge": Layout("LlamaForCausalLMEagle3", config={"head_dim": 8}),
    "angelslim": Layout("Eagle3LlamaForCausalLM", "qwen2", head_dim=16, config={"rope_theta": 1e6}),
    "speculators": Layout(
        "Eagle3Speculator",
        layer="layers.0.",
        own=("embedding", "output"),
        config={
            "speculators_model_type": "eagle3",
            "speculators_config": VERIFIER,
            "norm_before_residual": True,
            "eagle_aux_hidden_state_layer_ids": [1, 4, 6],
            "target_hidden_size": None,
        },
        nested={"rope_scaling": None, "rope_theta": 10000.0},
    ),
    "speculators-full": Layout(
        "Eagle3DraftModel",
        dtype="float32",
        layer="layers.0.",
        own=("embedding", "output"),
        draft_tokens=None,
        config={"speculators_model_type": "eagle3", "speculators_config": VERIFIER, "norm_before_residual": False},
        nested={"rope_scaling": LLAMA3, "rope_theta": 500000.0},
    ),
    "nvidia": Layout(
        "LlamaForCausalLMEagle3",
        "llama-bpe",
        dtype="float16",
        own=("embedding", "output"),
        hidden=48,
        config={
            "norm_before_fc": True,
            "target_hidden_size": TARGET_HIDDEN,
            "rope_scaling": LLAMA3,
            "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": []},
        },
    ),
    "authors": Layout("LlamaForCausalLM", dtype="float16", file="pytorch_model.bin"),
    "without-output": Layout("LlamaForCausalLMEagle3", own=(), draft_tokens=None),
}


def write_target(folder: Path, name: str, layers: int = TARGET_LAYERS) -> Path:
    """The configuration and tokenizer of a fixture, as those of a model with `layers` layers. No weights."""
    folder.mkdir(parents=True)
    for path in (HF / name).iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": layers, "hidden_size": TARGET_HIDDEN}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def vocabulary_of(target: str) -> int:
    return int(json.loads((HF / target / "config.json").read_text())["vocab_size"])


def config_of(layout: Layout) -> dict[str, Any]:
    """config.json. draft_vocab_size is always there, since llama.cpp's converter recognizes these models by it."""
    vocabulary = vocabulary_of(layout.target)
    layer = {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": layout.hidden,
        "intermediate_size": FEED_FORWARD,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS_KV,
        "head_dim": layout.head_dim or layout.hidden // HEADS,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
    top = {"architectures": [layout.architecture], "draft_vocab_size": layout.draft_tokens or vocabulary}
    if layout.nested is None:
        return {**layer, **top, **layout.config}
    return {**top, **layout.config, "transformer_layer_config": {**layer, **layout.nested}}


def weights_of(layout: Layout, seed: int = 1) -> dict[str, np.ndarray]:
    """Stored name -> values: float32, to be rounded to the layout's type, and whole numbers."""
    rng, h = np.random.default_rng(seed), layout.hidden
    vocabulary, size = vocabulary_of(layout.target), layout.head_dim or layout.hidden // HEADS
    drafts = layout.draft_tokens or vocabulary
    inside = {
        "input_layernorm": (h,),
        "hidden_norm": (h,),
        "self_attn.q_proj": (HEADS * size, 2 * h),
        "self_attn.k_proj": (HEADS_KV * size, 2 * h),
        "self_attn.v_proj": (HEADS_KV * size, 2 * h),
        "self_attn.o_proj": (h, HEADS * size),
        "post_attention_layernorm": (h,),
        "mlp.gate_proj": (FEED_FORWARD, h),
        "mlp.up_proj": (FEED_FORWARD, h),
        "mlp.down_proj": (h, FEED_FORWARD),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{layout.layer}{name}": shape for name, shape in inside.items()}
    shapes |= {"fc": (h, 3 * TARGET_HIDDEN), "norm": (h,)}
    if layout.config.get("norm_before_fc"):
        shapes["input_norm"] = (3 * TARGET_HIDDEN,)
    if "embedding" in layout.own:
        shapes["embed_tokens"] = (vocabulary, h)
    if "output" in layout.own:
        shapes["lm_head"] = (drafts, h)
    weights: dict[str, np.ndarray] = {}
    weights |= {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    if layout.draft_tokens is not None:
        tokens = np.sort(rng.choice(vocabulary, drafts, replace=False))
        weights["d2t"] = (tokens - np.arange(drafts)).astype(np.int64)
        weights["t2d"] = np.isin(np.arange(vocabulary), tokens)
    return weights


def write_checkpoint(
    folder: Path, layout: Layout, *, weights: dict[str, np.ndarray] | None = None, config: dict[str, Any] | None = None
) -> Path:
    """A checkpoint; weights, config: in place of the layout's."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    dtype = getattr(torch, layout.dtype)
    tensors = {}
    for name, values in (weights_of(layout) if weights is None else weights).items():
        tensor = torch.from_numpy(np.ascontiguousarray(values))
        tensors[name] = tensor.to(dtype) if tensor.dtype == torch.float32 else tensor
    if layout.file.endswith(".safetensors"):
        save_file(tensors, folder / layout.file)
    else:
        torch.save(tensors, folder / layout.file)
    (folder / "config.json").write_text(json.dumps(config_of(layout) if config is None else config))
    return folder
