"""Time and memory of converting a model of about a billion parameters.

    python benchmarks/convert_speed.py --tokenizer tests/data/hf/FOLDER [--layers 22] [--quant Q4_K_M]

Makes a Llama of TinyLlama's shape with random F16 weights and the tokenizer of the given folder, and Medusa heads on
the base's lm_head, then runs `medusa convert` on them. Prints the time of each phase and the peak of its memory.
"""

from __future__ import annotations

import argparse
import json
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


def tree_of(pid: int) -> list[int]:
    """The process and its children (Linux)."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *(one for child in children for one in tree_of(int(child)))]


def memory(pid: int) -> tuple[int, int]:
    """Bytes of anonymous memory, and of all resident memory (Linux)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {
        name: int(rest.split()[0]) << 10
        for name, _, rest in (line.partition(":") for line in lines)
        if "Rss" in name or "VmRSS" in name
    }
    return sizes.get("RssAnon", 0), sizes.get("VmRSS", 0)


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
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
        own = resident = 0
        while process.poll() is None:
            now = [memory(pid) for pid in tree_of(process.pid)]
            own, resident = max(own, sum(one for one, _ in now)), max(resident, sum(one for _, one in now))
            time.sleep(0.02)
        total = time.monotonic() - begun
        if process.returncode:
            sys.exit("medusa convert failed")
        assert process.stdout is not None
        vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
        for title, seconds in json.loads(process.stdout.read())["seconds"].items():
            print(f"{title:<18} {seconds:7.1f} s  {seconds / total:5.0%}")
        print(f"{'in all':<18} {total:7.1f} s, {out.stat().st_size / 1e6:.0f} MB written")
    # The self-check maps the finished model: pages of a file, which the system takes back when it needs them.
    print(f"largest memory of its own {own >> 20} MiB, with mapped files {resident >> 20} MiB")
    largest = max(INNER * HIDDEN, vocabulary * HIDDEN) * 2
    print(f"largest tensor {largest >> 20} MiB; x 4 + 1 GiB: {(4 * largest >> 20) + 1024} MiB")


if __name__ == "__main__":
    main()
