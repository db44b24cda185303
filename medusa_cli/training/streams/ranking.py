"""From streams and held-out texts to the ranks that trees are grown from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from medusa_cli.decoding.tree_search import RANKS

from ..backbone.layers import TopLayers
from ..heads.loss import target_ranks
from ..heads.rows import text_batches
from .fit import StreamsData
from .layers import Streams

RANKED_ROWS = 1024
"""Rows ranked at a time, about."""


@torch.no_grad()
def rank_streams(
    top: TopLayers, streams: Streams, data: StreamsData, on_rows: Callable[[int], None] = lambda rows: None
) -> list[NDArray[np.int64]]:
    """For each text its [positions, streams] ranks (positions with all targets inside), as heads.ranking has them.

    on_rows(rows done so far) may raise.
    """
    parts: list[NDArray[np.int64]] = []
    texts: list[NDArray[np.int64]] = []
    for picked in text_batches(data.examples, RANKED_ROWS):
        z, _ = data.streams(top, streams, picked)
        parts.append(target_ranks(z, data.wanted(picked), data.output, RANKS).cpu().numpy())
        on_rows(sum(map(len, parts)))
    table, at = np.concatenate(parts), 0
    for rows in data.examples.lengths:
        if rows >= streams.count:
            texts.append(table[at : at + rows - streams.count + 1])
        at += rows
    return texts
