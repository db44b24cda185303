"""Does a converted file draft what its source would? Read back through the native loader and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from medusa_cli.errors import MedusaError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from medusa_cli import native
    from medusa_cli.converters.head_formats import SourceHeads

STATES = 4
"""Random hidden states each head is evaluated on."""
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
    base_rows: Callable[[], NDArray[np.float32]],
    types: Sequence[str],
) -> Check:
    """Compares `heads` with a NumPy evaluation of `source`, then drafts along greedy text of `model`.

    base_rows(): rows of the base's output matrix that heads without an lm_head of their own use. types: those of the
    stored weights. MedusaError when the file does not compute what the source does.
    """
    bound = 8.0 * 2.0 ** -min(BITS.get(type_, FEWEST_BITS) for type_ in types)
    deviation = _deviation(model, heads, source, base_rows)
    if not deviation <= bound:
        raise MedusaError(
            f"self-check failed: the written heads differ from their source by {deviation:.3f} (allowed: {bound:.3f}); "
            "please report this with the checkpoint's name"
        )
    return Check(deviation, bound, accuracy(model, heads))


def reference_logits(
    source: SourceHeads, hidden: NDArray[np.float32], base_rows: Callable[[], NDArray[np.float32]]
) -> NDArray[np.float32]:
    """hidden [n, h] -> logits [head, n, rows]: x + SiLU(Wx + b) per block, then the lm_head (Medusa 2.1).

    Holds one head's matrices at a time.
    """
    tensors = {tensor.name: tensor for tensor in source.tensors}
    shared = (
        None
        if "medusa.0.output.weight" in tensors
        else (tensors["medusa.output.weight"].load() if "medusa.output.weight" in tensors else base_rows())
    )
    out = []
    for k in range(source.head_count):
        x = hidden
        for j in range(source.block_count):
            y = x @ tensors[f"medusa.{k}.block.{j}.weight"].load().astype(np.float32).T
            if (bias := tensors.get(f"medusa.{k}.block.{j}.bias")) is not None:
                y = y + bias.load()
            x = x + y / (1 + np.exp(-y))
        matrix = tensors[f"medusa.{k}.output.weight"].load() if shared is None else shared
        logits = x @ matrix.astype(np.float32).T
        if (bias := tensors.get(f"medusa.{k}.output.bias")) is not None:
            logits = logits + bias.load()
        out.append(logits)
    return np.stack(out)


def accuracy(model: native.Model, heads: native.Heads) -> list[float]:
    """Top-1 accuracy of each head along short greedy answers of the model; NaN where nothing was generated."""
    from medusa_cli import native, template

    prompts = []
    for text in SAMPLE_PROMPTS:
        if model.chat_template:
            messages = [{"role": "user", "content": text}]
            text = template.render(model.chat_template, messages, bos_text=model.bos_text, eos_text=model.eos_text)
        prompts.append(model.tokenize(text, add_special=not (model.bos_text and text.startswith(model.bos_text))))
    right, tried = np.zeros(heads.head_count), np.zeros(heads.head_count)

    def on_sequence(_: int, tokens: list[int], states: NDArray[np.float16] | None) -> None:
        assert states is not None
        for at in range(len(tokens) - 1):
            drafts = heads.draft_tokens(states[at].astype(np.float32), 1)
            for k in range(min(heads.head_count, len(tokens) - 1 - at)):
                right[k] += drafts[k][0] == tokens[at + 1 + k]
                tried[k] += 1

    native.collect(
        model, prompts, [0.0] * len(prompts), max_tokens=SAMPLE_TOKENS, n_parallel=len(prompts), on_sequence=on_sequence
    )
    with np.errstate(invalid="ignore"):
        return [float(share) for share in right / tried]


def _deviation(
    model: native.Model, heads: native.Heads, source: SourceHeads, base_rows: Callable[[], NDArray[np.float32]]
) -> float:
    """Largest norm of a head's logit error, relative to the norm of the logits, over random states."""
    hidden = np.random.default_rng(0).standard_normal((STATES, model.n_embd)).astype(np.float32)
    expected = reference_logits(source, hidden, base_rows)
    worst = 0.0
    for at in range(STATES):
        with np.errstate(divide="ignore"):
            actual = np.log(heads.probabilities(hidden[at]))
        wanted = expected[:, at]
        # Probabilities fix logits up to a constant; those that underflow to 0 carry no information.
        for ours, theirs in zip(actual, wanted, strict=True):
            known = np.isfinite(ours)
            ours, theirs = ours[known] - ours[known].mean(), theirs[known] - theirs[known].mean()
            worst = max(worst, float(np.linalg.norm(ours - theirs) / (np.linalg.norm(theirs) + 1e-9)))
    return worst
