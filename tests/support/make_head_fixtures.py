"""Makes tests/data/heads/: one tiny seeded checkpoint for each layout, and golden.json with what must come out.

    python tests/make_head_fixtures.py

The golden values are taken from the modules, not from the code under test. `build` is also called by the tests, which
compare its golden values with the committed ones.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file, save_model
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from head_modules import HydraHeads, VllmHeads, fill, medusa_heads, prefix_layer

HIDDEN, VOCAB, HEADS = 16, 48, 3
FOLDER = Path(__file__).parents[1] / "data" / "heads"
Tensors = dict[str, torch.Tensor]


def half(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    return module.to(dtype)


def state(module: nn.Module, prefix: str = "") -> Tensors:
    """The state dict; entries of a shared module share their memory, as torch has it."""
    return {prefix + name: value.detach() for name, value in module.state_dict().items()}


def medusa_golden(module: nn.ModuleList, blocks: int) -> Tensors:
    found: Tensors = {}
    for i, head in enumerate(module):
        layers: Any = head
        for j in range(blocks):
            found[f"medusa.{i}.block.{j}.weight"] = layers[j].linear.weight
            found[f"medusa.{i}.block.{j}.bias"] = layers[j].linear.bias
        if len(layers) > blocks:
            found[f"medusa.{i}.output.weight"] = layers[blocks].weight
    return found


def tiny_llama(seed: int, dtype: torch.dtype) -> Tensors:
    """Names and shapes of a base of one layer."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for part in "qkvo":
        shapes[f"model.layers.0.self_attn.{part}_proj.weight"] = (HIDDEN, HIDDEN)
    shapes["model.layers.0.mlp.gate_proj.weight"] = (24, HIDDEN)
    shapes["model.layers.0.mlp.up_proj.weight"] = (24, HIDDEN)
    shapes["model.layers.0.mlp.down_proj.weight"] = (HIDDEN, 24)
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        shapes[f"model.{name}.weight"] = (HIDDEN,)
    shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: torch.from_numpy(rng.standard_normal(shape) / 4).to(dtype) for name, shape in shapes.items()}


def write_config(folder: Path, **values: Any) -> None:
    (folder / "config.json").write_text(json.dumps(values, indent=1) + "\n")


def medusa_v1(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """torch.save repeats the shared block; the configuration counts 2 heads, as the published ones do."""
    module = half(fill(medusa_heads(HIDDEN, VOCAB, HEADS, 2), 1), torch.float16)
    torch.save(state(module), folder / "medusa_lm_head.pt")
    write_config(folder, medusa_num_heads=2, medusa_num_layers=2, base_model_name_or_path="example/base-7b")
    facts = {"family": "v1", "lm_head": "own", "block_count": 2, "base_reference": "example/base-7b"}
    return facts, medusa_golden(module, 2)  # type: ignore[arg-type]


def medusa_v1_once(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """safetensors stores the shared block once: its place in the file says nothing about how often it is applied."""
    module = fill(medusa_heads(HIDDEN, VOCAB, HEADS, 3), 2)
    save_model(module, str(folder / "medusa_lm_head.safetensors"))
    write_config(folder, medusa_num_heads=HEADS, medusa_num_layers=3, base_model_name_or_path="example/base-7b")
    facts = {"family": "v1", "lm_head": "own", "block_count": 3, "base_reference": "example/base-7b"}
    return facts, medusa_golden(module, 3)  # type: ignore[arg-type]


def medusa_v2(folder: Path) -> tuple[dict[str, Any], Tensors]:
    module = half(fill(medusa_heads(HIDDEN, VOCAB, HEADS, 1, output=False), 3), torch.bfloat16)
    save_file(state(module), str(folder / "medusa_lm_head.safetensors"))
    write_config(folder, version="2", medusa_num_heads=HEADS, medusa_num_layers=1, base_model_name_or_path="a/b")
    facts = {"family": "v2", "lm_head": "base", "block_count": 1, "base_reference": "a/b"}
    return facts, medusa_golden(module, 1)  # type: ignore[arg-type]


def medusa_full(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Two shards and an index; the heads lie beside a base that was tuned with them."""
    module = half(fill(medusa_heads(HIDDEN, VOCAB, HEADS, 1), 4), torch.bfloat16)
    base, heads = tiny_llama(5, torch.bfloat16), state(module, "medusa_head.")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    split = list(base)[:6]
    first = {name: base[name].contiguous() for name in split}
    second = {**{name: value for name, value in base.items() if name not in first}, **heads}
    where: dict[str, str] = {}
    for shard, tensors in zip(shards, (first, second), strict=True):
        save_file(tensors, str(folder / shard), metadata={"format": "pt"})
        where.update(dict.fromkeys(tensors, shard))
    index = {"metadata": {"total_size": 0}, "weight_map": dict(sorted(where.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    write_config(folder, architectures=["LlamaForCausalLM"], medusa_num_heads=HEADS, hidden_size=HIDDEN)
    facts = {"family": "full", "lm_head": "own", "block_count": 1, "is_full_model": True}
    return facts, medusa_golden(module, 1)  # type: ignore[arg-type]


def modelopt(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """FP8 weights with one scale each, in the base too; activation and KV-cache scales stand beside them."""
    module = fill(medusa_heads(HIDDEN, VOCAB, HEADS, 1), 6)
    tensors = {**tiny_llama(7, torch.float32), **state(module, "medusa_heads.")}
    golden = medusa_golden(module, 1)  # type: ignore[arg-type]
    stored: Tensors = {}
    for name, value in tensors.items():
        if not ("linear.weight" in name or "_proj.weight" in name):
            stored[name] = value.to(torch.float32 if name.startswith("medusa") else torch.bfloat16)
            continue
        scale = value.abs().max() / 448
        stored[name] = (value / scale).to(torch.float8_e4m3fn)
        stored[name + "_scale"] = scale
        stored[name.replace("weight", "input_scale")] = torch.tensor(0.01)
        if name.startswith("medusa_heads."):
            ours = f"medusa.{name.split('.')[1]}.block.0.weight"
            golden[ours] = stored[name].float() * scale
    stored["model.layers.0.self_attn.k_proj.k_scale"] = torch.tensor(1.0)
    save_file(stored, str(folder / "model.safetensors"))
    write_config(folder, architectures=["LlamaForCausalLM"], medusa={"num_medusa_heads": HEADS, "num_medusa_layers": 1})
    quantization = {
        "producer": {"name": "modelopt"},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    }
    (folder / "hf_quant_config.json").write_text(json.dumps(quantization, indent=1) + "\n")
    facts = {"family": "modelopt", "lm_head": "own", "block_count": 1, "is_full_model": True}
    return facts, golden


def vllm_golden(module: VllmHeads, layers: int) -> Tensors:
    found: Tensors = {}
    for i, block in enumerate(module.blocks):
        own: Any = block.layers
        for j in range(layers):
            found[f"medusa.{i}.block.{j}.weight"] = own[j].weight
            if own[j].bias is not None:
                found[f"medusa.{i}.block.{j}.bias"] = own[j].bias
    return found


def vllm(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Two layers of their own, no biases, a draft vocabulary of 20 tokens."""
    rows = 20
    module = fill(VllmHeads(HIDDEN, rows, HEADS, 2, bias=False, shared_output=False), 8)
    assert isinstance(module, VllmHeads)
    token_map = torch.from_numpy(np.random.default_rng(9).permutation(VOCAB)[:rows])
    save_file({**state(module), "token_map": token_map}, str(folder / "model.safetensors"))
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "truncated_vocab_size": rows}
    write_config(folder, model_type="medusa", num_heads=HEADS, num_hidden_layers=2, **sizes)
    golden = vllm_golden(module, 2)
    golden.update({f"medusa.{i}.output.weight": own.weight for i, own in enumerate(module.lm_heads)})  # type: ignore[misc]
    golden["medusa.d2t"] = token_map.to(torch.int32)
    return {"family": "vllm", "lm_head": "draft_vocab", "block_count": 2}, golden


def vllm_original(folder: Path) -> tuple[dict[str, Any], Tensors]:
    """Biases, and one whole output matrix for all heads, of which the map takes 20 rows."""
    module = fill(VllmHeads(HIDDEN, VOCAB, HEADS, 1, bias=True, shared_output=True), 10)
    assert isinstance(module, VllmHeads)
    token_map = torch.from_numpy(np.random.default_rng(11).permutation(VOCAB)[:20])
    tensors = {f"medusa_heads.{name}": value for name, value in state(module).items()}
    save_file({**tensors, "token_map": token_map}, str(folder / "model.safetensors"))
    sizes = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "truncated_vocab_size": 20, "original_lm_head": True}
    write_config(folder, model_type="medusa", num_heads=HEADS, num_hidden_layers=1, medusa_fc_bias=True, **sizes)
    golden = vllm_golden(module, 1)
    whole: Any = module.lm_heads[0].weight
    golden["medusa.output.weight"] = whole[token_map]
    golden["medusa.d2t"] = token_map.to(torch.int32)
    return {"family": "vllm", "lm_head": "draft_vocab", "block_count": 1}, golden


def hydra_golden(module: HydraHeads, blocks: int, start: int, step: int) -> Tensors:
    found: Tensors = {}
    for i, (mlp, lm_head) in enumerate(zip(module.hydra_mlp, module.hydra_lm_head, strict=True)):
        layers: Any = mlp
        last: Any = lm_head[1] if isinstance(lm_head, nn.Sequential) else lm_head
        for j in range(blocks):
            block = layers[start + j * step]
            found[f"medusa.{i}.block.{j}.weight"] = block.linear.weight
            found[f"medusa.{i}.block.{j}.bias"] = block.linear.bias
        found[f"medusa.{i}.block.0.residual.weight"] = layers[start].res_connection.weight
        found[f"medusa.{i}.block.0.residual.bias"] = layers[start].res_connection.bias
        found[f"medusa.{i}.output.weight"] = last.weight
        found[f"medusa.{i}.output.bias"] = last.bias
    return found


def hydra_mlp(folder: Path) -> tuple[dict[str, Any], Tensors]:
    module = half(fill(HydraHeads(HIDDEN, VOCAB, HEADS, 3), 12), torch.float16)
    assert isinstance(module, HydraHeads)
    torch.save(state(module), folder / "hydra_lm_head.pt")
    write_config(folder, **hydra_config("mlp", 3))
    facts = {"family": "hydra-mlp", "kind": "hydra", "lm_head": "own", "block_count": 3, "base_reference": "a/b"}
    return facts, hydra_golden(module, 3, 0, 1)


def hydra_config(architecture: str, layers: int) -> dict[str, Any]:
    return {
        "hydra_num_heads": HEADS,
        "hydra_num_layers": layers,
        "hydra_head_arch": architecture,
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "base_model_name_or_path": "a/b",
    }


def hydra_prefix_mlp(folder: Path) -> tuple[dict[str, Any], Tensors]:
    prefix = prefix_layer(HIDDEN, VOCAB, heads=4, heads_kv=2)
    module = half(fill(HydraHeads(HIDDEN, VOCAB, HEADS, 4, prefix), 13), torch.float16)
    assert isinstance(module, HydraHeads)
    tensors = state(module)
    tensors["prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    torch.save(tensors, folder / "hydra_lm_head.pt")
    write_config(folder, **hydra_config("prefix-mlp", 4))
    golden = hydra_golden(module, 4, 1, 2)
    names = {
        "attn_norm": "layers.0.input_layernorm",
        "attn_q": "layers.0.self_attn.q_proj",
        "attn_k": "layers.0.self_attn.k_proj",
        "attn_v": "layers.0.self_attn.v_proj",
        "attn_output": "layers.0.self_attn.o_proj",
        "ffn_norm": "layers.0.post_attention_layernorm",
        "ffn_gate": "layers.0.mlp.gate_proj",
        "ffn_up": "layers.0.mlp.up_proj",
        "ffn_down": "layers.0.mlp.down_proj",
        "output_norm": "norm",
    }
    for ours, theirs in names.items():
        golden[f"medusa.prefix.{ours}.weight"] = tensors[f"prefix_embeding_layer.{theirs}.weight"]
    facts = {"family": "hydra-prefix-mlp", "kind": "hydra++", "lm_head": "own", "block_count": 4}
    return {**facts, "base_reference": "a/b"}, golden


BUILDERS: dict[str, Callable[[Path], tuple[dict[str, Any], Tensors]]] = {
    "medusa-v1": medusa_v1,
    "medusa-v1-once": medusa_v1_once,
    "medusa-v2": medusa_v2,
    "medusa-full": medusa_full,
    "modelopt": modelopt,
    "vllm": vllm,
    "vllm-original": vllm_original,
    "hydra-mlp": hydra_mlp,
    "hydra-prefix-mlp": hydra_prefix_mlp,
}


def describe(value: torch.Tensor) -> dict[str, Any]:
    values = value.detach()
    data = (values if values.dtype == torch.int32 else values.float()).contiguous().numpy()
    return {"shape": list(data.shape), "sha256": hashlib.sha256(data.tobytes()).hexdigest()}


def build(folder: Path) -> dict[str, Any]:
    """Writes every checkpoint into a folder of its own. Result: the golden values, by folder name."""
    golden = {}
    for name, builder in BUILDERS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        facts, tensors = builder(folder / name)
        full = {"kind": "medusa", "base_reference": None, "is_full_model": False, **facts}
        golden[name] = {**full, "tensors": {key: describe(tensors[key]) for key in sorted(tensors)}}
    return golden


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "golden.json").write_text(json.dumps(build(FOLDER), indent=1) + "\n")
