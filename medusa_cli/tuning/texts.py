"""The model's own text, and where its heads rank the tokens that really came."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medusa_cli.converters.heads import schema
from medusa_cli.decoding import tree_search
from medusa_cli.decoding.loops import loop_start
from medusa_cli.support.errors import MedusaError
from medusa_cli.tuning.decode import TEMPERATURES

if TYPE_CHECKING:
    from medusa_cli import native

Ranks = NDArray[np.integer]
PROMPTS = 64
MIN_PROMPTS = 4
"""Half of the answers make the trees, half score them; some prompts are kept back for real decoding."""
MIN_TEXTS = 8
MAX_TOKENS = 128
PARALLEL = 8
SEED = 20_011
"""Seed of the made-up prompts: training makes its own from the user's seed, 0 by default."""


def prompts(file: Path | None) -> list[str]:
    """First user turns: from `file` (JSON lines, as for `medusa bench --data`), else made up.

    MedusaError when the file is no such file or holds too few prompts.
    """
    if file is None:
        from medusa_cli.prompts.seeds.prompts import iter_conversations

        return [item.turns[0] for item in itertools.islice(iter_conversations(SEED), PROMPTS)]
    from medusa_cli.prompts.bench_set import read, spread

    found = [prompt.text for prompt in spread(read(file), PROMPTS)]
    if len(found) < MIN_PROMPTS:
        raise MedusaError(f"{file} holds {len(found)} prompts: give at least {MIN_PROMPTS}")
    return found


def rank_texts(
    model: native.Model,
    heads: native.Heads,
    prompts: Sequence[Sequence[int]],
    n_threads: int,
    deadline: float,
    on_progress: Callable[[int], None],
) -> list[NDArray[np.integer]]:
    """Continuations of `prompts` (token ids), as the ranks that medusa_cli.training.evaluate works on.

    Half of them are greedy, half sampled, in pairs, so that taking every other one takes as many of both. Ends after
    MIN_TEXTS of them once `deadline` (time.monotonic) has passed; loops are cut off.
    """
    from medusa_cli import native

    texts: list[NDArray[np.integer]] = []
    streams = None
    if heads.kind == schema.STREAMS:
        longest = max(map(len, prompts)) + MAX_TOKENS
        streams = native.StreamReader(model, heads, longest, n_threads=n_threads)

    def on_sequence(index: int, tokens: list[int], states: NDArray[np.float16] | None) -> bool:
        assert states is not None
        kept = tokens[: loop_start(tokens)]
        if streams is None:
            texts.append(ranks_of(heads, kept, states.astype(np.float32)))
        else:
            texts.append(ranks_of_streams(heads, streams, prompts[index], kept))
        return len(texts) < min(MIN_TEXTS, len(prompts)) or time.monotonic() < deadline

    native.collect(
        model,
        prompts,
        [TEMPERATURES[index // 2 % 2] for index in range(len(prompts))],
        max_tokens=MAX_TOKENS,
        n_parallel=min(PARALLEL, len(prompts)),
        n_threads=n_threads,
        on_sequence=on_sequence,
        on_progress=on_progress,
    )
    return texts


def ranks_of(heads: native.Heads, tokens: Sequence[int], states: NDArray[np.float32]) -> NDArray[np.integer]:
    """[positions, heads]: the rank of tokens[i + k] at head k for states[i]; RANKS if it is not among them.

    Heads that read the path get the text's own tokens.
    """
    count = heads.head_count
    ranks = min(tree_search.RANKS, heads.output_rows)

    def drafted(row: int) -> list[list[int]]:
        known = states[: row + 1] if heads.has_prefix else states[row]
        return heads.draft_tokens(known, ranks, tokens[row : row + count])

    return _table(count, tokens, drafted)


def ranks_of_streams(
    heads: native.Heads, reader: native.StreamReader, prompt: Sequence[int], tokens: Sequence[int]
) -> NDArray[np.integer]:
    """The same for streams, which read a text together with its prompt."""
    ranks = min(tree_search.RANKS, heads.output_rows)
    drafts = reader.draft_tokens([*prompt, *tokens], ranks, first=len(prompt) - 1)
    return _table(heads.head_count, tokens, drafts.__getitem__)


def _table(count: int, tokens: Sequence[int], drafted: Callable[[int], list[list[int]]]) -> NDArray[np.integer]:
    """drafted(i): what each head guesses after the root tokens[i]."""
    table = np.full((max(0, len(tokens) - count), count), tree_search.RANKS, dtype=np.int64)
    for row in range(len(table)):
        for head, guesses in enumerate(drafted(row)):
            wanted = tokens[row + head + 1]
            if wanted in guesses:
                table[row, head] = guesses.index(wanted)
    return table
