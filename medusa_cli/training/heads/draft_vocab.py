"""How many tokens the heads choose from: what more would catch, against what their rows cost on this machine."""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.converters.heads import draft_heads
from medusa_cli.models.base_file import BaseModel
from medusa_cli.support.atomic import scratch_folder
from medusa_cli.support.files import recall, remember
from medusa_cli.support.tables import Table

from ..recipes import RECURRENT
from ..resuming import SCRATCH
from ..text.dataset import Span

SIZES = (1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768)
FILLED, FILLED_FROM = 8192, 30_000
"""Where fewer tokens of the text come more than once, others fill the vocabulary up to this size, unless the text has
less than FILLED_FROM: heads that learned from so little get no better, or worse (docs/measurements/misses.md)."""
RARE = 0.4
"""How often drafts of the other tokens are right, relative to those that come more than once."""
ROWS = 64
"""The kernels take rows in groups; a matrix with a remainder is left to slower ones."""
ACCEPTANCE = 0.5
"""Chance that the next drafted token is right if it is in the draft vocabulary: about what trained heads reach (1.9
tokens per step with four heads). It only weighs coverage against cost."""
NODES = 8
"""Size of the tree whose verification is taken as the rest of a step's cost."""
ROUNDS, REPEATS = 4, 6
NEARLY = 0.01
"""Speeds within this share count as equal: times are no more exact."""


@dataclass(frozen=True)
class SizeTradeOff:
    """One size. coverage: share of held-out tokens inside. draft_ms: time of a step's drafts.

    tokens_per_step, tokens_per_second: expected from coverage, cost and ACCEPTANCE.
    """

    size: int
    coverage: float
    draft_ms: float
    tokens_per_step: float
    tokens_per_second: float


@dataclass(frozen=True)
class VocabularyChoice:
    """The sizes that were compared, with the chosen one. verify_ms: forward pass over NODES nodes. Empty rows: the
    size was given, or the text has too few tokens for a choice."""

    size: int
    verify_ms: float | None
    rows: list[SizeTradeOff]

    def as_table(self) -> Table:
        """A table for people; the chosen size is marked."""
        lines = []
        for row in self.rows:
            mark = "*" if row.size == self.size else ""
            shown = (f"{row.coverage:.2%}", f"{row.draft_ms:.2f}", f"{row.tokens_per_step:.3f}")
            lines.append((f"{mark}{row.size:,}", *shown, f"{row.tokens_per_second:.2f}"))
        return Table("Draft vocabulary", ("tokens", "coverage", "draft ms", "tokens per step", "expected tok/s"), lines)


def candidates(available: int) -> list[int]:
    """Sizes worth comparing if `available` tokens were seen often enough."""
    most = min(available, SIZES[-1])
    if most > SIZES[0]:
        most -= most % ROWS
    return [*(size for size in SIZES if size < most), most]


def largest_size(frequent: int, tokens: int) -> int:
    """The most tokens that heads should choose from. frequent: how many come more than once in a text of `tokens`."""
    return max(frequent, FILLED) if tokens >= FILLED_FROM else frequent


def coverage(
    ranked: NDArray[np.integer], tokens: NDArray[np.integer], spans: Sequence[Span], sizes: Sequence[int]
) -> list[float]:
    """For each size, the share of the tokens of `spans` among the first `size` of `ranked`."""
    held = np.concatenate([tokens[span.start : span.start + span.length] for span in spans])
    place = np.full(1 + max(int(ranked.max(initial=0)), int(held.max(initial=0))), len(ranked))
    place[ranked] = np.arange(len(ranked))
    return [float(np.mean(place[held] < size)) for size in sizes]


def trade_offs(
    sizes: Sequence[int],
    covered: Sequence[float],
    draft_ms: Sequence[float],
    verify_ms: float,
    heads: int,
    learned: float = 1.0,
) -> list[SizeTradeOff]:
    """learned: the share of all tokens that come more than once in the text."""
    rows = []
    for size, share, cost in zip(sizes, covered, draft_ms, strict=True):
        # 1 + the chances that 1, 2, .. `heads` drafts in a row are right, when `share` of all tokens can be drafted
        right = ACCEPTANCE * (min(share, learned) + RARE * max(0.0, share - learned))
        per_step = 1.0 + sum(right**depth for depth in range(1, heads + 1))
        rows.append(SizeTradeOff(size, share, cost, per_step, 1000.0 * per_step / (verify_ms + cost)))
    return rows


def best_size(rows: Sequence[SizeTradeOff]) -> int:
    """The largest of the sizes that are nearly the fastest: the speeds rest on held-out parts of the training text, and
    other people's text has more tokens that the training text lacks."""
    fastest = max(row.tokens_per_second for row in rows)
    return max(row.size for row in rows if row.tokens_per_second >= (1 - NEARLY) * fastest)


def choose(
    base: BaseModel,
    ranked: NDArray[np.int32],
    frequent: int,
    tokens: NDArray[np.integer],
    held_out: Sequence[Span],
    *,
    kind: str,
    heads: int,
    n_gpu_layers: int,
    threads: int,
    memory: Path,
) -> VocabularyChoice:
    """The best_size() of the first tokens of `ranked` (most frequent first). frequent: how many of these come more than
    once in the text.

    memory: a file that keeps the choice, since another measurement on the same machine could decide otherwise and a
    resumed run needs the same one. Times are those of random heads with the real rows.
    """
    sizes = candidates(len(ranked))
    asked = {"sizes": sizes, "kind": kind, "heads": heads, "tokens": len(tokens)}
    content = recall(memory)
    if content.get("asked") == asked:
        choice = content["choice"]
        return VocabularyChoice(choice["size"], choice["verify_ms"], [SizeTradeOff(**row) for row in choice["rows"]])
    if len(sizes) == 1:
        return VocabularyChoice(sizes[0], None, [])
    model = native.Model(str(base.path), n_gpu_layers=n_gpu_layers)
    timer = native.VerifyTimer(model, NODES, hidden=False, n_threads=threads)
    verify_ms = min(timer.time(NODES, passes=REPEATS))
    # All Medusa heads share one read of the rows, and so do streams, whose layers cost the same for all sizes; Hydra
    # heads and recurrent ones read them once for each depth, so one head is timed.
    at_once, reads = (1, heads) if kind == RECURRENT or kind.startswith("hydra") else (heads, 1)
    rng = np.random.default_rng(0)
    shape = (at_once, base.n_embd, base.n_embd)
    weight = (rng.standard_normal(shape, np.float32) * np.float32(base.n_embd**-0.5)).astype(np.float16)
    blocks = [[draft_heads.Block(matrix, np.zeros(base.n_embd, np.float32))] for matrix in weight]
    state = rng.standard_normal(base.n_embd, np.float32)
    best = [float("inf")] * len(sizes)
    with scratch_folder(memory.parent, SCRATCH) as scratch:
        path = scratch / "heads.gguf"
        for _ in range(ROUNDS):
            for index, size in enumerate(sizes):
                made = draft_heads.DraftHeads(
                    blocks, "draft_vocab", d2t=ranked[:size], base_name=base.name, base_fingerprint=base.fingerprint
                )
                draft_heads.write_heads(path, made)
                loaded = native.Heads(model, str(path))
                best[index] = min(best[index], reads * _fastest(loaded, state))
    *covered, learned = coverage(ranked, tokens, held_out, [*sizes, min(frequent, len(ranked))])
    rows = trade_offs(sizes, covered, at_most_as_larger(best), verify_ms, heads, learned)
    chosen = VocabularyChoice(best_size(rows), verify_ms, rows)
    remember(memory, {"asked": asked, "choice": asdict(chosen)})
    return chosen


def at_most_as_larger(times: Sequence[float]) -> list[float]:
    """A smaller vocabulary costs no more than a larger one: if it seems to, something else was running."""
    return [min(times[at:]) for at in range(len(times))]


def _fastest(loaded: native.Heads, state: NDArray[np.float32]) -> float:
    return 1000.0 * min(timeit.repeat(lambda: loaded.draft_tokens(state, 10), number=1, repeat=REPEATS))
