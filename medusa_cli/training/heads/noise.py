"""Noise on what heads read: Hydra A.1, with NEFTune's scale (Jain et al. 2023, arXiv:2310.05914) as in the authors'
program (github.com/zankner/Hydra, hydra_model.py)."""

from __future__ import annotations

import torch
from torch import Tensor

from .layers import HeadInputs
from .recipe import Recipe


def noisy(inputs: HeadInputs, sequences: Tensor, recipe: Recipe, seed: int, embedding_scale: float = 1.0) -> HeadInputs:
    """`inputs` with uniform noise of up to alpha / sqrt(L h) in each place: L tokens of the text with its prompt, h
    numbers of a state.

    sequences [B]: L of each row. alpha: the recipe's noise for the states, its embedding_noise for the embeddings as
    the model has them, which come multiplied with embedding_scale.
    """
    if recipe.noise == 0 and recipe.embedding_noise == 0:
        return inputs
    generator = torch.Generator().manual_seed(seed)

    def added(values: Tensor, alpha: float) -> Tensor:
        if alpha == 0:
            return values
        scale = alpha * (sequences.float() * values.shape[-1]).rsqrt()
        drawn = (torch.rand(values.shape, generator=generator) * 2 - 1) * scale.view(-1, *[1] * (values.ndim - 1))
        return values.float() + drawn.to(values.device)

    states = added(inputs.states, recipe.noise)
    embedded = None if inputs.embedded is None else added(inputs.embedded, recipe.embedding_noise * embedding_scale)
    return HeadInputs(states, embedded, inputs.lengths, inputs.context)
