"""Is speculative decoding saying what plain decoding says? Greedy texts compared, differences explained.

Kernels round differently for different batch widths, and attention sums over the cache in the order of its cells, so a
near-tie between two tokens can fall the other way in a verify step than in a plain one. A difference is *explained*
when both hold:
- decoding the common prefix again in batches of the same width and cells of the same order, but with other tokens in
  place of the drafts and without acceptance, yields the speculative token;
- plain decoding gives the two tokens nearly the same logit (MAX_GAP).
Anything else is an error in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medusa_cli import native
from medusa_cli.decoding.lossless import first_difference

END = -1
"""Stands for any end-of-generation token, which no Generation lists."""
MAX_GAP = 1.5
"""Most that a batch width moves the difference of two logits: stock kernels were seen to move a logit by 0.66."""


@dataclass(frozen=True)
class Comparison:
    """Two greedy texts of one prompt. `tokens`: length of the speculative one."""

    tokens: int
    first_difference: int | None = None
    """Index of the first token that differs; None: identical."""
    gap: float = 0.0
    """By how much plain decoding prefers its own token there (difference of logits)."""
    repeated: bool = True
    """Whether the common prefix at the same width and layout yields the speculative token."""

    @property
    def explained(self) -> bool:
        """The difference is one of numerics alone (True where there is none)."""
        return self.repeated and self.gap <= MAX_GAP


def compare(
    model: native.Model, prompt: Sequence[int], plain: native.Generation, drafted: native.Generation
) -> Comparison:
    """Compares two greedy generations after `prompt`: a plain one, and a drafted one of a new or reset session."""
    from _native_testing import teacher_forced

    ours, reference = _ended(drafted), _ended(plain)
    first = first_difference(reference, ours)
    if first is None:
        return Comparison(len(drafted.tokens))
    if first >= min(len(ours), len(reference)):
        return Comparison(len(drafted.tokens), first, float("inf"), False)
    prefix = [*prompt, *drafted.tokens[:first]]
    plainly, logits = teacher_forced(model, prefix, prompt_length=len(prompt))
    again, _ = teacher_forced(model, prefix, prompt_length=len(prompt), parents=drafted.parents, paths=drafted.paths)
    repeated = _is(model, plainly[-1], reference[first]) and _is(model, again[-1], ours[first])
    return Comparison(len(drafted.tokens), first, logits[plainly[-1]] - logits[again[-1]], repeated)


def _is(model: native.Model, token: int, said: int) -> bool:
    return model.is_eog(token) if said == END else token == said


def _ended(generation: native.Generation) -> list[int]:
    return [*generation.tokens, END] if generation.stop_reason == "eos" else list(generation.tokens)
