"""Does a converted file draft what its source would? Reads it back through the native loader and compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from gguf.constants import GGMLQuantizationType

from medusa_cli.converters.heads import schema
from medusa_cli.models.base_file import embedding_rows, output_rows, read_base
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from medusa_cli import native
    from medusa_cli.converters.heads.formats import SourceHeads

STATES = 4
"""Random steps each head is evaluated on."""
LENGTH = 5
"""Hidden states that lead up to each step."""
BITS = {"f32": 16, "bf16": 8, "f16": 11, "q8_0": 7, "q6_k": 5, "q5_0": 4, "q5_1": 4, "q5_k": 4}
"""Significant bits of a weight, by type; fewer for all others. F32 stands for the rounding of the activations."""
FEWEST_BITS = 3
SAMPLE_PROMPTS = (
    "Explain why the sky is blue.",
    "Write a Python function that adds two numbers.",
    "List three things to pack for a journey.",
    "What is the capital of France, and what is it known for?",
)
SAMPLE_TOKENS = 64
USELESS = 0.02
"""Top-1 accuracy below which a head predicts nothing: the most frequent token alone is right about as often."""


@dataclass(frozen=True)
class Check:
    """deviation: largest relative difference of a head's logits to the source's; bound: what the types allow.
    accuracy: [head], share of positions where the head's best token came."""

    deviation: float
    bound: float
    accuracy: list[float]

    @property
    def useless(self) -> list[int]:
        """Heads (from 1) that predict nothing."""
        return [head for head, share in enumerate(self.accuracy, 1) if share < USELESS]


def check(
    model: native.Model,
    heads: native.Heads,
    source: SourceHeads,
    base: Path,
    types: Sequence[str],
) -> Check:
    """Compares `heads` with a NumPy evaluation of `source`, then drafts along greedy text of `model`.

    base: the base model's file. types: those of the stored weights. MedusaError when the file does not compute what
    the source does.
    """
    if not any(tensor.role == "output" for tensor in source.tensors):
        types = [*types, GGMLQuantizationType(read_base(base).output.type).name.lower()]
    bound = bound_of(types)
    deviation = _deviation(model, heads, source, base)
    if not deviation <= bound:
        raise MedusaError(
            f"self-check failed: the written heads differ from their source by {deviation:.3f} (allowed: {bound:.3f}); "
            "please report this with the checkpoint's name"
        )
    return Check(deviation, bound, accuracy(model, heads))


def bound_of(types: Sequence[str]) -> float:
    """The largest relative difference that weights of these types may cause."""
    return 8.0 * 2.0 ** -min(BITS.get(type_, FEWEST_BITS) for type_ in types)


def reference_logits(
    source: SourceHeads, states: NDArray[np.float32], path: NDArray[np.integer], base: Path
) -> NDArray[np.float32]:
    """states [n, t, h], of tokens in a row; path [n, head], the tokens from the root on -> logits [head, n, rows].

    x + SiLU(Wx + b) per block, then the lm_head (Medusa 2.1). Hydra: the first block reads the embeddings of the path,
    too, and is Rx + b_R + SiLU(Wx + b); Hydra++ puts the prefix layer's output in the place of the newest state.
    base: its file, for what heads read from it. Holds one head's matrices at a time.
    """
    tensors = {tensor.name: tensor for tensor in source.tensors}
    shared = None
    if schema.SHARED_OUTPUT in tensors:
        shared = tensors[schema.SHARED_OUTPUT].load()
    elif schema.output(0, "weight") not in tensors:
        read = read_base(base)
        kept = tensors[schema.D2T].load() if schema.D2T in tensors else np.arange(read.n_vocab)
        shared = output_rows(read, kept)

    def linear(named: Callable[[schema.Part], str], x: NDArray[np.float32]) -> NDArray[np.float32]:
        y = x @ tensors[named("weight")].load().astype(np.float32).T
        return y + tensors[named("bias")].load() if named("bias") in tensors else y

    newest = prefix_output(source, states) if source.has_prefix else states[:, -1]
    scale = float(source.metadata.get(schema.EMBEDDING_SCALE_KEY, 1.0))
    out = []
    for k in range(source.head_count):
        x = newest
        if source.kind != "medusa":
            embedded = scale * embedding_rows(read_base(base), path[:, : k + 1].reshape(-1))
            x = np.concatenate([newest, embedded.reshape(len(newest), -1)], axis=1, dtype=np.float32)
        for j in range(source.block_count):
            has_residual = j == 0 and schema.residual(k, "weight") in tensors
            kept = linear(partial(schema.residual, k), x) if has_residual else x
            x = kept + _silu(linear(partial(schema.block, k, j), x))
        if shared is None:
            out.append(linear(partial(schema.output, k), x))
        else:
            out.append(x @ shared.astype(np.float32).T)
    return np.stack(out)


def prefix_output(source: SourceHeads, states: NDArray[np.float32]) -> NDArray[np.float32]:
    """states [n, t, h] -> [n, h]: Hydra++'s decoder layer (as in LLaMA) and its norm, at the newest token."""
    tensors, keys = {tensor.name: tensor for tensor in source.tensors}, source.metadata
    names = (*schema.PREFIX_MATRICES, *schema.PREFIX_NORMS)
    part = {name: tensors[schema.prefix(name)].load().astype(np.float32) for name in names}
    heads, heads_kv = int(keys[schema.PREFIX_HEAD_COUNT_KEY]), int(keys[schema.PREFIX_HEAD_COUNT_KV_KEY])
    base, eps = float(keys[schema.PREFIX_ROPE_FREQ_BASE_KEY]), float(keys[schema.PREFIX_NORM_EPS_KEY])

    def normed(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * part[name])

    def split(x: NDArray[np.float32], name: str, count: int) -> NDArray[np.float32]:
        y = x @ part[f"attn_{name}"].T
        return y.reshape(*y.shape[:-1], count, -1)

    def turned(x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Rotary embedding over halves; x [n, t, heads, size]."""
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None, None] * base ** (-np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    y = normed(states, "attn_norm")
    query = turned(split(y, "q", heads))[:, -1]
    key = turned(split(y, "k", heads_kv)).repeat(heads // heads_kv, axis=2)
    value = split(y, "v", heads_kv).repeat(heads // heads_kv, axis=2)
    scores = np.einsum("nhd,nthd->nht", query, key) / np.sqrt(query.shape[-1])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    attended = np.einsum("nht,nthd->nhd", weights, value).reshape(len(states), -1)
    x = states[:, -1] + attended @ part["attn_output"].T
    y = normed(x, "ffn_norm")
    x = x + (_silu(y @ part["ffn_gate"].T) * (y @ part["ffn_up"].T)) @ part["ffn_down"].T
    return normed(x, "output_norm").astype(np.float32)


def _silu(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(x / (1 + np.exp(-x)))


def accuracy(model: native.Model, heads: native.Heads) -> list[float]:
    """Top-1 accuracy of each head along short greedy answers of the model; NaN if nothing was generated."""
    from medusa_cli import native
    from medusa_cli.decoding.prompts import chat_tokens

    asked = [[{"role": "user", "content": text}] for text in SAMPLE_PROMPTS]
    prompts = [chat_tokens(model, messages, bare_if_no_template=True) for messages in asked]
    right, tried = np.zeros(heads.head_count), np.zeros(heads.head_count)

    def on_sequence(_: int, tokens: list[int], states: NDArray[np.float16] | None) -> None:
        assert states is not None
        known = states.astype(np.float32)
        for at in range(len(tokens) - 1):
            path = tokens[at : at + heads.head_count]
            seen = known[: at + 1] if heads.has_prefix else known[at]
            drafts = heads.draft_tokens(seen, 1, path)
            for k in range(min(heads.head_count, len(tokens) - 1 - at)):
                right[k] += drafts[k][0] == tokens[at + 1 + k]
                tried[k] += 1

    native.collect(
        model, prompts, [0.0] * len(prompts), max_tokens=SAMPLE_TOKENS, n_parallel=len(prompts), on_sequence=on_sequence
    )
    with np.errstate(invalid="ignore"):
        return [float(share) for share in right / tried]


def _deviation(model: native.Model, heads: native.Heads, source: SourceHeads, base: Path) -> float:
    """Largest norm of a head's logit errors over random steps, relative to the norm of the logits."""
    rng = np.random.default_rng(0)
    states = rng.standard_normal((STATES, LENGTH, model.n_embd)).astype(np.float32)
    path = rng.integers(0, model.n_vocab, (STATES, heads.head_count))
    expected = reference_logits(source, states, path, base)
    errors, sizes = np.zeros(heads.head_count), np.zeros(heads.head_count)
    for at in range(STATES):
        with np.errstate(divide="ignore"):
            actual = np.log(heads.probabilities(states[at], path[at].tolist()))
        for head, (ours, theirs) in enumerate(zip(actual, expected[:, at], strict=True)):
            # Probabilities determine logits up to a constant; those that underflow to 0 carry no information.
            known = np.isfinite(ours)
            ours, theirs = ours[known] - ours[known].mean(), theirs[known] - theirs[known].mean()
            errors[head] += np.sum((ours - theirs) ** 2)
            sizes[head] += np.sum(theirs**2)
    return float(np.sqrt(errors / (sizes + 1e-18)).max())
