"""LlamaForCausalLM and MistralForCausalLM: GGUF's "llama"."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from .architecture import BLOCK_BIASES, Architecture
from .rope import llama3_factors


class Llama(Architecture):
    """Rotary pairs are neighbours in libllama and half a head apart in transformers, hence the reordered q and k."""

    kind = gguf.MODEL_ARCH.LLAMA
    defaults = {"max_position_embeddings": 2048}  # noqa: RUF012
    rope_kinds = ("default", "linear", "llama3", "yarn", "dynamic")
    biases = BLOCK_BIASES
    states_space_prefix = True

    def extra_tensors(self) -> dict[str, NDArray[np.float32]]:
        """The frequency factors of Llama 3's scaling."""
        return {"rope_freqs.weight": llama3_factors(self.rope, self.head_size)} if self.rope.kind == "llama3" else {}

    def transform(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Rows of q and k in libllama's order."""
        part = name.split(".")[-2]
        if part == "attn_q":
            return interleave_halves(values, self.heads)
        if part == "attn_k":
            return interleave_halves(values, self.heads_kv)
        return values

    def write_parameters(self, writer: gguf.GGUFWriter) -> None:
        """The usual ones, and sizes that libllama asks for here."""
        super().write_parameters(writer)
        writer.add_vocab_size(self.vocabulary)
        writer.add_rope_dimension_count(self.head_size)
        if self.config.get("head_dim") is None:
            writer.add_key_length(self.head_size)
            writer.add_value_length(self.head_size)


class Mistral(Llama):
    """Llama with grouped heads by default. libllama attends fully here: its sliding window is not applied."""

    defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 8}  # noqa: RUF012


def interleave_halves(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows (first half, second half) of each head become pairs: row i and row i + half lie side by side."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, -1)
    return halves.swapaxes(1, 2).reshape(values.shape)
