"""Training rows from a corpus: which hidden state learns which tokens, and what is held out.

Row i of the corpus is the hidden state tokens[i] was sampled from: the state after the token before it, or for a text's
first row the state after the last prompt token. In the engine's words: with row i as h, tokens[i] is the root, and head
k (1-based) drafts the depth-k node, tokens[i + k]. A Hydra head k also reads the embeddings of tokens[i] ..
tokens[i + k - 1]. The base's own distribution over tokens[i + k], which distilled heads learn, follows from row i + k.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from .corpus import Text

HELD_OUT_PERCENT = 5
PIECE_ROWS = 16
"""Rows of a text in one batch, where each of them reads the text before it: neighbours resemble each other, so a batch
of few whole texts teaches less than one of pieces of many (docs/measurements/head-kinds.md)."""
MISSING = -1


@dataclass(frozen=True)
class Span:
    """Rows [start, start + length) of the corpus: one text. prompt: tokens before it, as far as they are known."""

    start: int
    length: int
    group: str
    prompt: int = 0


@dataclass(frozen=True)
class Split:
    """Texts by use. The tree is built on `build`, and its tokens per step are measured on `score`."""

    train: list[Span]
    build: list[Span]
    score: list[Span]


@dataclass(frozen=True)
class Examples:
    """Rows to train on. rows [N] and target [N, K]: from dataset.targets(); lengths: rows of each text, or of each
    piece of one.

    sequences: tokens of each text, its prompt included; without them, the rows count.
    """

    rows: NDArray[np.int64]
    target: NDArray[np.int32]
    lengths: Sequence[int]
    sequences: Sequence[int] = ()
    starts: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum([0, *self.lengths])[:-1])

    def in_pieces(self, rows: int = PIECE_ROWS) -> Examples:
        """The same rows, with texts cut into pieces of up to `rows` rows, each of which is picked by itself."""
        parts = [[min(rows, length - at) for at in range(0, length, rows)] for length in self.lengths]
        sequences = [
            sequence for part, sequence in zip(parts, self.sequences or self.lengths, strict=True) for _ in part
        ]
        return Examples(self.rows, self.target, [length for part in parts for length in part], sequences)


def bucket(group: str) -> int:
    """0..9999, the same on every machine."""
    return int.from_bytes(hashlib.sha256(group.encode("utf-8")).digest()[:8], "big") % 10000


def split_texts(texts: Sequence[Text], limit: int | None = None) -> Split:
    """Splits by group, so that no prompt is on both sides; `limit`: only the first texts, up to that many tokens.

    If chance holds nothing out (with a handful of prompts), the groups with the lowest buckets are taken instead.
    """
    ends = list(accumulate(text.length for text in texts))
    spans = [
        Span(end - text.length, text.length, text.group, text.prompt)
        for text, end in zip(texts, ends, strict=True)
        if limit is None or end - text.length < limit
    ]
    groups = sorted({span.group for span in spans}, key=lambda group: (bucket(group), group))
    held = [group for group in groups if bucket(group) < HELD_OUT_PERCENT * 100]
    if len(held) < 2:
        held = groups[: min(2, len(groups) - 1)]
    build, score = set(held[0::2]), set(held[1::2] or held)
    return Split(
        [span for span in spans if span.group not in build | score],
        [span for span in spans if span.group in build],
        [span for span in spans if span.group in score],
    )


def draft_vocabulary(
    tokens: NDArray[np.integer],
    spans: Sequence[Span],
    n_vocab: int,
    limit: int | None = None,
    prompts: Mapping[int, NDArray[np.integer]] = MappingProxyType({}),
) -> NDArray[np.int32]:
    """d2t [D]: up to `limit` tokens, the most frequent ones of `spans` first. In a short text, many come equally often,
    or never. Of these, the first are those that are most frequent in the prompts (by the first rows of their spans),
    then those that come first in the tokenizer, which usually knows frequent tokens from more text."""
    counts = _counts([tokens[span.start : span.start + span.length] for span in spans], n_vocab)
    asked = _counts([prompts[span.start] for span in spans if span.start in prompts], n_vocab)
    return np.lexsort((-asked, -counts))[:limit].astype(np.int32)


def frequent_tokens(tokens: NDArray[np.integer], spans: Sequence[Span]) -> int:
    """How many tokens `spans` have more than once."""
    return int(np.count_nonzero(_counts([tokens[span.start : span.start + span.length] for span in spans], 0) > 1))


def _counts(parts: Sequence[NDArray[np.integer]], n_vocab: int) -> NDArray[np.int64]:
    return np.bincount(np.concatenate([np.zeros(0, np.int64), *parts]), minlength=n_vocab)


def token_to_draft(d2t: NDArray[np.integer], n_vocab: int) -> NDArray[np.int32]:
    """[n_vocab]: the draft row of each token, MISSING for tokens outside the draft vocabulary."""
    rows = np.full(n_vocab, MISSING, dtype=np.int32)
    rows[d2t] = np.arange(len(d2t), dtype=np.int32)
    return rows


def targets(
    tokens: NDArray[np.integer], spans: Sequence[Span], t2d: NDArray[np.integer], heads: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(rows [N], targets [N, heads]): every row of `spans` with at least one target inside its text.

    targets[:, k - 1] is the draft row of tokens[row + k], MISSING beyond the text's end or outside the vocabulary.
    """
    starts = [np.arange(span.start, span.start + span.length - 1, dtype=np.int64) for span in spans]
    ends = [np.full(max(0, span.length - 1), span.start + span.length, dtype=np.int64) for span in spans]
    rows = np.concatenate(starts) if starts else np.zeros(0, np.int64)
    end = np.concatenate(ends) if ends else np.zeros(0, np.int64)
    table = np.full((len(rows), heads), MISSING, dtype=np.int32)
    for k in range(1, heads + 1):
        inside = rows + k < end
        table[inside, k - 1] = t2d[tokens[rows[inside] + k]]
    return rows, table


def examples_of(tokens: NDArray[np.integer], spans: Sequence[Span], t2d: NDArray[np.integer], heads: int) -> Examples:
    """targets() with what is known about each text."""
    rows, table = targets(tokens, spans, t2d, heads)
    kept = [span for span in spans if span.length > 1]
    return Examples(rows, table, [span.length - 1 for span in kept], [span.prompt + span.length for span in kept])


def token_places(tokens: NDArray[np.integer], n_vocab: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """(used [E]: the distinct tokens, ascending; place [len(tokens)]: each token's index in `used`)."""
    used = np.flatnonzero(np.bincount(tokens, minlength=n_vocab)).astype(np.int64)
    return used, token_to_draft(used, n_vocab)[tokens]
