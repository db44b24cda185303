"""Draft heads evaluated in NumPy from what read_heads() returns: the layout's meaning, spelt out once."""

from __future__ import annotations

from typing import Any

import numpy as np
from medusa_cli.converters.heads.formats import SourceHeads
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]


class NumpyHeads:
    """All tensors loaded, in double precision."""

    def __init__(self, heads: SourceHeads) -> None:
        self.heads = heads
        self.values = {tensor.name: tensor.load().astype(np.float64) for tensor in heads.tensors}

    def get(self, name: str, default: float = 0.0) -> Any:
        """The tensor, or a number that changes nothing when there is none."""
        return self.values.get(name, default)

    def logits(self, head: int, inputs: Array, vocabulary: int, base_output: Array | None = None) -> Array:
        """inputs [n, h], or [n, h * (head + 2)] unless Medusa's. Result [n, vocabulary]; tokens not drafted: -inf."""
        x = self._through_cell(inputs, head) if self.heads.kind == "recurrent" else inputs
        for j in range(0 if self.heads.kind == "recurrent" else self.heads.block_count):
            block = f"medusa.{head}.block.{j}"
            y = x @ self.values[f"{block}.weight"].T + self.get(f"{block}.bias")
            residual = self.get(f"{block}.residual.weight", 1.0)
            kept = x if np.isscalar(residual) else x @ residual.T + self.get(f"{block}.residual.bias")
            x = kept + y / (1 + np.exp(-y))
        output: Any = self.values.get(
            f"medusa.{head}.output.weight", self.values.get("medusa.output.weight", base_output)
        )
        rows = x @ output.T + self.get(f"medusa.{head}.output.bias")
        if self.heads.lm_head != "draft_vocab":
            return rows
        logits = np.full((len(x), vocabulary), -np.inf)
        logits[:, self.values["medusa.d2t"].astype(int)] = rows
        return logits

    def _through_cell(self, inputs: Array, level: int) -> Array:
        """inputs [n, h * (level + 2)]: a state and the tokens' embeddings -> the state [n, h] of the last token."""
        cell = {name: self.values[f"medusa.cell.{name}.weight"] for name in ("residual", "gate", "up", "down")}
        state, *tokens = np.split(inputs, level + 2, axis=1)
        for token in tokens:
            y = np.concatenate([normed(state, np.ones(1), 1e-5), normed(token, np.ones(1), 1e-5)], axis=1)
            gate = y @ cell["gate"].T
            added = (gate / (1 + np.exp(-gate)) * (y @ cell["up"].T)) @ cell["down"].T
            state = np.concatenate([state, token], axis=1) @ cell["residual"].T + added
        return state

    def prefix(self, hidden: Array, keys: dict[str, Any]) -> Array:
        """The Hydra++ layer over positions 0..n-1: hidden [n, h] -> [n, h]."""
        part = {name.removeprefix("medusa.prefix."): value for name, value in self.values.items()}
        eps = keys["medusa.prefix.norm_eps"]
        x = hidden
        y = normed(x, part["attn_norm.weight"], eps)
        query, key, value = (y @ part[f"attn_{name}.weight"].T for name in "qkv")
        x = x + attention(query, key, value, keys) @ part["attn_output.weight"].T
        y = normed(x, part["ffn_norm.weight"], eps)
        gate = y @ part["ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ part["ffn_up.weight"].T)) @ part["ffn_down.weight"].T
        return normed(x, part["output_norm.weight"], eps)


def normed(x: Array, weight: Array, eps: float) -> Array:
    """RMS norm."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def attention(query: Array, key: Array, value: Array, keys: dict[str, Any]) -> Array:
    """Causal attention with rotary embedding over halves: [n, q], [n, kv], [n, kv] -> [n, q]."""
    heads, heads_kv = keys["medusa.prefix.head_count"], keys["medusa.prefix.head_count_kv"]
    n, size = len(query), query.shape[1] // heads
    frequencies = keys["medusa.prefix.rope_freq_base"] ** (-np.arange(0, size, 2) / size)
    angles = np.arange(n)[:, None] * frequencies

    def turned(x: Array) -> Array:
        first, second = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    query = turned(query.reshape(n, heads, size))
    key = turned(key.reshape(n, heads_kv, size)).repeat(heads // heads_kv, axis=1)
    value = value.reshape(n, heads_kv, size).repeat(heads // heads_kv, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size)
    scores = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, value).reshape(n, heads * size)
