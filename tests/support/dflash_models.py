"""DFlash drafters with seeded random weights, for the targets of eagle_models. Drafts are hardly ever accepted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from architectures import TOKENS, Architecture, Keys
from eagle_models import DRAFT_TOKENS, LAYERS, STRENGTHS, WIDTH, draft_tokens, write_target
from random_models import Tensors, random_values, write_model

BLOCK = 8
MASK = TOKENS - 1
HEAD = 64
HEADS, KEY_HEADS, INNER, DEPTH = 4, 2, 512, 2


@dataclass(frozen=True)
class DFlashModel:
    """target: a name in eagle_models. own: which of token_embd and output are in the file. values: whether they have a
    matrix of their own. windows: which layers see a window only; none: all see everything.
    """

    name: str
    target: str = "plain"
    own: tuple[str, ...] = ()
    d2t: bool = False
    values: bool = True
    windows: tuple[bool, ...] = ()
    layers: tuple[int, ...] = (1, 3)

    def architecture(self, others: Keys | None = None) -> Architecture:
        """others: keys that differ from what they would be."""
        keys: dict[str, Any] = {
            "vocab_size": TOKENS,
            "context_length": 2048,
            "embedding_length": WIDTH,
            "block_count": DEPTH,
            "feed_forward_length": INNER,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KEY_HEADS,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 10000.0,
            "rope.dimension_count": HEAD,
            "block_size": BLOCK,
            "target_layers": list(self.layers),
            "tokenizer.ggml.mask_token_id": MASK,
        }
        if self.windows:
            keys |= {"attention.sliding_window": 16, "attention.sliding_window_pattern": list(self.windows)}
        return Architecture("dflash", {**keys, **(others or {})})


DFLASH_MODELS = {
    m.name: m
    for m in (
        DFlashModel("plain"),
        DFlashModel("d2t", own=("output",), d2t=True, layers=(1, 2, 3)),
        DFlashModel("own", own=("token_embd", "output"), values=False),
        DFlashModel("windows", own=("token_embd",), windows=(True, False)),
        DFlashModel("qwen35", "qwen35", layers=(2,)),
    )
}
"""qwen35: a target that takes chains only."""
assert all(layer < LAYERS for model in DFLASH_MODELS.values() for layer in model.layers)


def write_dflash_target(path: Path, name: str, *, seed: int = 1) -> Path:
    """The model that DFLASH_MODELS[name] drafts for."""
    target = DFLASH_MODELS[name].target
    assert target in STRENGTHS or target == "plain"
    return write_target(path, target, seed=seed)


def write_dflash(path: Path, name: str, *, seed: int = 1, keys: Keys | None = None, change: Any = None) -> Path:
    """One of DFLASH_MODELS. keys: those that differ. change: gets the tensors before they are written."""
    model = DFLASH_MODELS[name]
    tensors: Tensors = {
        f"{n}.weight": random_values(f"{n}.weight", shape, seed + 1) for n, shape in _shapes(model).items()
    }
    if model.d2t:
        tensors["d2t"] = draft_tokens(seed)
    if change is not None:
        change(tensors)
    write_model(path, model.architecture(keys), tensors)
    return path


def _shapes(model: DFlashModel) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "fc": (WIDTH, WIDTH * len(model.layers)),
        "enc.output_norm": (WIDTH,),
        "output_norm": (WIDTH,),
    }
    for layer in range(DEPTH):
        block = f"blk.{layer}."
        shapes |= {
            block + "attn_norm": (WIDTH,),
            block + "attn_q": (HEADS * HEAD, WIDTH),
            block + "attn_k": (KEY_HEADS * HEAD, WIDTH),
            block + "attn_output": (WIDTH, HEADS * HEAD),
            block + "attn_q_norm": (HEAD,),
            block + "attn_k_norm": (HEAD,),
            block + "ffn_norm": (WIDTH,),
            block + "ffn_gate": (INNER, WIDTH),
            block + "ffn_up": (INNER, WIDTH),
            block + "ffn_down": (WIDTH, INNER),
        }
        if model.values:
            shapes[block + "attn_v"] = (KEY_HEADS * HEAD, WIDTH)
    if "token_embd" in model.own:
        shapes["token_embd"] = (TOKENS, WIDTH)
    if "output" in model.own:
        shapes["output"] = (DRAFT_TOKENS if model.d2t else TOKENS, WIDTH)
    return shapes
