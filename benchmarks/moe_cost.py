"""What checking several tokens costs on a mixture of experts, with our kernels and the stock ones.

    python benchmarks/moe_cost.py [--layers 4] [--experts 128] [--used 8] [--type q4_K] [--widths 1 2 4 8 16]
                                  [--rounds 3]

No such model is small enough to fetch, so one is made: layers of Qwen3-30B-A3B's shapes and random weights, all experts
with the same ones, a router of random weights, and a vocabulary without words whose output matrix has the share of a
whole model's weights that it has there. Random tokens are decoded `width` at a time, so that each is sent to experts of
its own; the table shows medians over the rounds of ours and stock in turn. "experts": their share of our time, from the
same model with half as many experts per token.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import gguf
import numpy as np
from common import OURS, STOCK, in_worker
from rich.console import Console
from rich.table import Table

from medusa_cli import native

HIDDEN, EXPERT_HIDDEN, HEADS, KEY_HEADS, HEAD_SIZE, VOCABULARY = 2048, 768, 32, 4, 128, 16384
TOKENS = 256


def write_model(path: Path, layers: int, experts: int, used: int, type_name: str) -> None:
    """A Qwen3 MoE of random weights, matrices in one ggml type."""
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType[type_name.upper()]
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(EXPERT_HIDDEN * used)
    writer.add_expert_feed_forward_length(EXPERT_HIDDEN)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(used)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(VOCABULARY)

    def random(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

    def quantized(rows: int, columns: int) -> np.ndarray:
        data = native.quantize_rows(type_name, random(rows, columns))
        return np.frombuffer(data, np.uint8).reshape(rows, -1)

    def matrix(name: str, data: np.ndarray) -> None:
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)

    # One array for all layers: the writer keeps what it is given.
    attention = {
        "attn_q": quantized(HEADS * HEAD_SIZE, HIDDEN),
        "attn_k": quantized(KEY_HEADS * HEAD_SIZE, HIDDEN),
        "attn_v": quantized(KEY_HEADS * HEAD_SIZE, HIDDEN),
        "attn_output": quantized(HIDDEN, HEADS * HEAD_SIZE),
    }
    up, down = (
        np.tile(quantized(rows, columns), (experts, 1, 1))
        for rows, columns in ((EXPERT_HIDDEN, HIDDEN), (HIDDEN, EXPERT_HIDDEN))
    )
    matrix("token_embd", quantized(VOCABULARY, HIDDEN))
    matrix("output", quantized(VOCABULARY, HIDDEN))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    for layer in range(layers):
        for name, size in (("attn_norm", HIDDEN), ("attn_q_norm", HEAD_SIZE), ("attn_k_norm", HEAD_SIZE)):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_norm.weight", np.ones(HIDDEN, np.float32))
        writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", random(experts, HIDDEN))
        for name, data in attention.items():
            matrix(f"blk.{layer}.{name}", data)
        for name, data in (("gate", up), ("up", up), ("down", down)):
            matrix(f"blk.{layer}.ffn_{name}_exps", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def work(path: str, widths: list[int]) -> None:
    """Prints {width: milliseconds of one decode}."""
    model = native.Model(path)
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, TOKENS).tolist()
    native.score(model, tokens, width=64)
    out = {}
    for width in widths:
        begin = time.perf_counter()
        native.score(model, tokens, width=width)
        out[width] = 1e3 * (time.perf_counter() - begin) / math.ceil(TOKENS / width)
    print(json.dumps(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--used", type=int, default=8)
    parser.add_argument("--type", default="q4_K")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.widths)

    widths = ["--widths", *map(str, arguments.widths)]
    runs: dict[str, list[dict[str, float]]] = {OURS: [], STOCK: [], "half": []}
    with tempfile.TemporaryDirectory() as folder:
        whole, half = Path(folder) / "model.gguf", Path(folder) / "half.gguf"
        for path, used in ((whole, arguments.used), (half, arguments.used // 2)):
            write_model(path, arguments.layers, arguments.experts, used, arguments.type)
        for _ in range(arguments.rounds):
            for name, kernels, path in ((OURS, OURS, whole), (STOCK, STOCK, whole), ("half", OURS, half)):
                runs[name].append(in_worker(kernels, __file__, "--worker", str(path), *widths))
    table = Table("tokens", "ours ms", "stock ms", "ours / stock step", "stock / stock step", "speedup", "experts")
    ms = {name: {w: statistics.median(run[w] for run in found) for w in found[0]} for name, found in runs.items()}
    step = ms[STOCK][str(min(arguments.widths))]
    for width in map(str, sorted(arguments.widths)):
        ours, stock, fewer = (ms[name][width] for name in (OURS, STOCK, "half"))
        share = 2 * (ours - fewer) / ours
        figures = (f"{ours:.2f}", f"{stock:.2f}", f"{ours / step:.2f}", f"{stock / step:.2f}", f"{stock / ours:.2f}")
        table.add_row(width, *figures, f"{share:.0%}")
    Console().print(table)


if __name__ == "__main__":
    main()
