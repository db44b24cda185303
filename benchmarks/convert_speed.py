"""Time and memory of converting a model of about a billion parameters.

    python benchmarks/convert_speed.py --tokenizer tests/data/hf/FOLDER [--layers 22] [--quant Q4_K_M]

Makes a Llama of TinyLlama's shape with random F16 weights and the tokenizer of the given folder, and Medusa heads on
the base's lm_head, then runs `medusa convert` on them. Prints the time of each phase and the largest resident size.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, INNER, HEADS, KEY_HEADS = 2048, 5632, 32, 4


def make_base(folder: Path, tokenizer: Path, layers: int) -> None:
    folder.mkdir()
    for file in tokenizer.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, folder)
    config = json.loads((tokenizer / "config.json").read_text())
    config |= {
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "head_dim": HIDDEN // HEADS,
    }
    config |= {"num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS}
    (folder / "config.json").write_text(json.dumps(config))
    vocabulary, keys = config["vocab_size"], HIDDEN // HEADS * KEY_HEADS

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns) * 0.02).half()

    tensors = {"model.embed_tokens.weight": matrix(vocabulary, HIDDEN), "lm_head.weight": matrix(vocabulary, HIDDEN)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN).half()
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (keys, HIDDEN),
        "self_attn.v_proj": (keys, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = matrix(*shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN).half()
    save_file(tensors, folder / "model.safetensors")
    print(f"{sum(tensor.numel() for tensor in tensors.values()) / 1e9:.2f} billion parameters")


def make_heads(folder: Path) -> None:
    folder.mkdir()
    tensors = {f"{i}.0.linear.weight": (torch.randn(HIDDEN, HIDDEN) * 0.01).half() for i in range(4)}
    tensors |= {f"{i}.0.linear.bias": torch.zeros(HIDDEN).half() for i in range(4)}
    torch.save(tensors, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps({"version": "2"}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--quant", default="Q4_K_M")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        base, heads, out = (Path(scratch) / name for name in ("base", "heads", "out.gguf"))
        make_base(base, arguments.tokenizer, arguments.layers)
        make_heads(heads)
        command = ["medusa", "convert", heads, "--base", base, "-o", out, "--quant", arguments.quant, "--json"]
        begun = time.monotonic()
        done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
        total = time.monotonic() - begun
        if done.returncode:
            sys.exit("medusa convert failed")
        for title, seconds in json.loads(done.stdout)["seconds"].items():
            print(f"{title:<18} {seconds:7.1f} s  {seconds / total:5.0%}")
        print(f"{'in all':<18} {total:7.1f} s, {out.stat().st_size / 1e6:.0f} MB written")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    largest = INNER * HIDDEN * 2 / (1 << 20)
    print(f"largest resident size {peak:.0f} MiB (largest tensor of the layers {largest:.0f} MiB)")


if __name__ == "__main__":
    main()
