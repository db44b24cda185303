"""The published draft-head modules, written again as plainly as possible in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn


class ResBlock(nn.Module):
    """Medusa's block (extra = 0), or the first block of a Hydra head, which reads `extra` token embeddings too."""

    def __init__(self, hidden: int, extra: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden * (1 + extra), hidden)
        self.res_connection = nn.Linear(hidden * (1 + extra), hidden) if extra else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.res_connection(x) + nn.functional.silu(self.linear(x))


def medusa_heads(hidden: int, vocab: int, heads: int, layers: int, output: bool = True) -> nn.ModuleList:
    """`layers` references to one block, as the authors write it, then the output matrix."""

    def head() -> nn.Sequential:
        last = [nn.Linear(hidden, vocab, bias=False)] if output else []
        return nn.Sequential(*[ResBlock(hidden)] * layers, *last)

    return nn.ModuleList(head() for _ in range(heads))


class VllmHeads(nn.Module):
    """Blocks of their own in each layer; without biases unless asked."""

    def __init__(self, hidden: int, rows: int, heads: int, layers: int, bias: bool, shared_output: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        for _ in range(heads):
            block = nn.Module()
            block.layers = nn.ModuleList(nn.Linear(hidden, hidden, bias=bias) for _ in range(layers))
            self.blocks.append(block)
        self.lm_heads = nn.ModuleList(nn.Linear(hidden, rows, bias=False) for _ in range(1 if shared_output else heads))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        logits = []
        for i, block in enumerate(self.blocks):
            y = x
            layers: Any = block.layers
            for layer in layers:
                y = y + nn.functional.silu(layer(y))
            logits.append(self.lm_heads[i % len(self.lm_heads)](y))
        return logits


class HydraHeads(nn.Module):
    """Hydra heads on a sequence: head i reads the hidden state of t and the embeddings of tokens t+1 .. t+1+i."""

    def __init__(self, hidden: int, vocab: int, heads: int, layers: int, prefix: nn.Module | None = None) -> None:
        super().__init__()
        between = [nn.Dropout(0.0)] if prefix is not None else []
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(*between, ResBlock(hidden, i + 1), *[*between, ResBlock(hidden)] * (layers - 1))
            for i in range(heads)
        )
        self.hydra_lm_head = nn.ModuleList(
            nn.Sequential(*between, nn.Linear(hidden, vocab)) if between else nn.Linear(hidden, vocab)
            for _ in range(heads)
        )
        self.input_embed_fn = nn.Embedding(vocab, hidden)
        if prefix is not None:
            self.prefix_embeding_layer = prefix

    def forward(self, hidden: torch.Tensor, tokens: torch.Tensor) -> list[torch.Tensor]:
        """hidden [n, h]; tokens [n + heads], tokens[t] is consumed at position t. Result: [n, V] for each head."""
        n = len(hidden)
        if hasattr(self, "prefix_embeding_layer"):
            hidden = self.prefix_embeding_layer(inputs_embeds=hidden[None])[0][0]
        parts, logits = [hidden], []
        for i, (mlp, lm_head) in enumerate(zip(self.hydra_mlp, self.hydra_lm_head, strict=True)):
            parts.append(self.input_embed_fn(tokens[i + 1 : i + 1 + n]))
            logits.append(lm_head(mlp(torch.cat(parts, -1))))
        return logits


def prefix_layer(hidden: int, vocab: int, heads: int, heads_kv: int) -> nn.Module:
    """A LLaMA of one layer."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        hidden_size=hidden,
        vocab_size=vocab,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads_kv,
        intermediate_size=2 * hidden,
        rms_norm_eps=1e-5,
        max_position_embeddings=64,
    )
    return LlamaModel(config)


def fill(module: nn.Module, seed: int) -> nn.Module:
    """Random values from NumPy, whose streams do not change with the version of torch."""
    rng = np.random.default_rng(seed)
    for parameter in module.parameters():
        scale = 0.5 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
        values = rng.standard_normal(tuple(parameter.shape)) * scale + (0.5 if parameter.ndim == 1 else 0.0)
        parameter.data = torch.from_numpy(values.astype(np.float32))
    return module.eval()
