"""Streams in NumPy: dense attention over a whole text, from states of the engine below the top layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads.stream_heads import StreamHeads
from numpy.typing import NDArray

from medusa_cli import native

Matrix = NDArray[np.float64]


class Tensors(Mapping[str, Matrix]):
    """Of a GGUF, dequantized when they are asked for."""

    def __init__(self, path: Path | str) -> None:
        self.stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        self.known: dict[str, Matrix] = {}

    def __getitem__(self, name: str) -> Matrix:
        if name not in self.known:
            tensor = self.stored[name]
            self.known[name] = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return self.known[name]

    def __contains__(self, name: object) -> bool:
        return name in self.stored

    def __iter__(self) -> Iterator[str]:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


class Base:
    """The top layers of a GGUF of llama, qwen2 or qwen3, dequantized."""

    def __init__(self, path: Path | str) -> None:
        metadata = native.read_gguf(str(path)).metadata
        self.name, self.fingerprint = str(metadata.get("general.name", "")), fingerprint(metadata)
        self.tensors = Tensors(path)
        self.architecture = str(metadata["general.architecture"])

        def value(name: str, otherwise: Any = None) -> Any:
            return metadata.get(f"{self.architecture}.{name}", otherwise)

        self.heads = int(value("attention.head_count"))
        self.heads_kv = int(value("attention.head_count_kv", self.heads))
        self.hidden = int(value("embedding_length"))
        self.head_size = int(value("attention.key_length", self.hidden // self.heads))
        self.eps = float(value("attention.layer_norm_rms_epsilon"))
        self.base = float(value("rope.freq_base", 10000.0))
        self.layers = int(value("block_count"))

    def norm(self, x: Matrix, name: str) -> Matrix:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + self.eps) * self.tensors[f"{name}.weight"])

    def turned(self, x: Matrix, positions: NDArray[np.integer]) -> Matrix:
        """x [n, heads, size]. llama turns neighbouring places, the others places half a head apart."""
        half = self.head_size // 2
        frequencies = self.base ** (-np.arange(half) / half) / self.tensors.get("rope_freqs.weight", np.ones(half))
        angles = positions[:, None, None] * frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        pairs = self.architecture == "llama"
        first, second = (x[..., ::2], x[..., 1::2]) if pairs else (x[..., :half], x[..., half:])
        turned = (first * cos - second * sin, second * cos + first * sin)
        return np.stack(turned, -1).reshape(x.shape) if pairs else np.concatenate(turned, -1)


Cache = list[tuple[Matrix, Matrix]]


class NumpyStreams:
    """Streams of a base, and its layers that they run through."""

    def __init__(self, base: Base, streams: StreamHeads) -> None:
        self.base, self.streams = base, streams

    def product(self, layer: int, name: str, x: Matrix, adapted: bool) -> Matrix:
        block = f"blk.{self.streams.first_layer + layer}.{name}"
        y = x @ self.base.tensors[f"{block}.weight"].T
        if f"{block}.bias" in self.base.tensors:
            y = y + self.base.tensors[f"{block}.bias"]
        if adapted and self.streams.adapters:
            a, b = self.streams.adapters[layer][name]
            scale = self.streams.alpha / self.streams.rank
            y = y + scale * (x @ a.astype(np.float64).T) @ b.astype(np.float64).T
        return np.asarray(y)

    def keys(self, layer: int, x: Matrix, positions: NDArray[np.integer], adapted: bool) -> tuple[Matrix, ...]:
        """Normed states -> queries, keys, values, each [n, heads, size]."""
        base, block = self.base, f"blk.{self.streams.first_layer + layer}"
        parts = []
        for name, heads in (("q", base.heads), ("k", base.heads_kv), ("v", base.heads_kv)):
            y = self.product(layer, f"attn_{name}", x, adapted).reshape(len(x), heads, -1)
            if f"{block}.attn_{name}_norm.weight" in base.tensors:
                y = base.norm(y, f"{block}.attn_{name}_norm")
            parts.append(base.turned(y, positions) if name != "v" else y)
        return tuple(parts)

    def rest(self, layer: int, x: Matrix, seen: Matrix, adapted: bool) -> Matrix:
        """What follows attention. seen [n, heads * size]."""
        x = x + self.product(layer, "attn_output", seen, adapted)
        y = self.base.norm(x, f"blk.{self.streams.first_layer + layer}.ffn_norm")
        gate, up = (self.product(layer, f"ffn_{name}", y, adapted) for name in ("gate", "up"))
        return x + self.product(layer, "ffn_down", gate / (1 + np.exp(-gate)) * up, adapted)

    def attend(self, query: Matrix, keys: Matrix, values: Matrix, visible: NDArray[np.bool_]) -> Matrix:
        """query [n, heads, size], keys and values [m, key heads, size], visible [n, m] -> [n, heads * size]."""
        group = self.base.heads // self.base.heads_kv
        scores = np.einsum("nhd,mhd->hnm", query, keys.repeat(group, 1)) / np.sqrt(self.base.head_size)
        scores = np.where(visible, scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return np.asarray(np.einsum("hnm,mhd->nhd", weights, values.repeat(group, 1)).reshape(len(query), -1))

    def caches(self, states: NDArray[np.floating]) -> Cache:
        """states [t, h] below the top layers -> keys and values of each of them, as an F16 cache holds them."""
        x, positions, out = states.astype(np.float64), np.arange(len(states)), []
        for layer in range(self.streams.layers):
            normed = self.base.norm(x, f"blk.{self.streams.first_layer + layer}.attn_norm")
            query, key, value = self.keys(layer, normed, positions, adapted=False)
            out.append((key.astype(np.float16).astype(np.float64), value.astype(np.float16).astype(np.float64)))
            if layer == self.streams.layers - 1:
                break
            visible = positions[:, None] >= positions
            x = self.rest(layer, x, self.attend(query, *out[-1], visible), adapted=False)
        return out

    def logits(self, state: NDArray[np.floating], root: int, caches: Cache) -> Matrix:
        """[gamma, D] behind the token whose state that is, the last one of the caches."""
        streams, base = self.streams, self.base
        x = state.astype(np.float64) + streams.embedding
        if streams.root_scale is not None:
            x = x + streams.root_scale * base.tensors["token_embd.weight"][root]
        if streams.root is not None:
            a, b = (part.astype(np.float64) for part in streams.root)
            x = x + b @ (a @ base.tensors["token_embd.weight"][root])
        gamma, text = len(x), len(caches[0][0])
        positions = text - 1 + np.arange(1, gamma + 1)
        visible = np.concatenate([np.ones((gamma, text), bool), np.tri(gamma, dtype=bool)], 1)
        for layer in range(self.streams.layers):
            normed = base.norm(x, f"blk.{streams.first_layer + layer}.attn_norm")
            query, key, value = self.keys(layer, normed, positions, adapted=True)
            keys, values = (np.concatenate([old, new]) for old, new in zip(caches[layer], (key, value), strict=True))
            x = self.rest(layer, x, self.attend(query, keys, values, visible), adapted=True)
        output = base.tensors["output.weight" if "output.weight" in base.tensors else "token_embd.weight"]
        return np.asarray(base.norm(x, "output_norm") @ output[streams.d2t].T)
