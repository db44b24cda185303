"""Duplicates among generated texts, and what each source of prompts brought."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from medusa_cli.decoding import loops
from medusa_cli.support.tables import print_table
from medusa_cli.training.text import sources
from medusa_cli.training.text.corpus import Corpus, NewText, Text
from medusa_cli.training.text.sources import KnownTexts, gram_hashes, sketch


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.integers(1, 9))
def test_grams_are_equal_where_their_hashes_are(tokens: list[int], gram: int) -> None:
    count = max(1, len(tokens) - gram + 1)
    grams = [tuple(tokens[at : at + gram]) for at in range(count)]
    hashes = gram_hashes(tokens, gram).tolist()
    assert len(hashes) == count
    assert len(set(hashes)) == len(set(grams)) == len(set(zip(grams, hashes, strict=True)))


def test_a_text_of_zeros_is_told_by_its_length() -> None:
    assert len({tuple(sketch([0] * length)) for length in range(1, 8)}) == 7


@given(st.integers(0, 10**6))
@example(391)
def test_near_copies_are_found_and_other_texts_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, other = rng.integers(0, 50_000, 300), rng.integers(0, 50_000, 300)
    changed = first.copy()
    changed[150] += 1
    half = np.concatenate([first[:150], other[150:]])
    known = KnownTexts([first])
    assert known.add(first)
    assert known.add(changed)
    assert known.add(first[:-2])
    assert not known.add(half)
    assert not known.add(other)
    assert known.add(other)


def test_short_texts_are_compared_as_a_whole() -> None:
    known = KnownTexts()
    assert not known.add([1, 2, 3])
    assert not known.add([1, 2, 4])
    assert known.add([1, 2, 3])


@pytest.mark.parametrize(
    ("tokens", "degenerate"),
    [
        ([5] * 20, True),
        ([1, 2] * 12, True),
        ([1, 2, 3, 4, 5, 6] * 2, False),
        (list(range(30)), False),
        ([5] * 6, False),
    ],
)
def test_short_loops_are_degenerate(tokens: list[int], degenerate: bool) -> None:
    assert loops.loop_start(tokens) == len(tokens)
    assert loops.is_degenerate(tokens) == degenerate


def add(corpus: Corpus, text: Text, tokens: list[int]) -> None:
    states, prompt = np.zeros((len(tokens), corpus.n_embd), np.float16), np.zeros(0, np.int32)
    corpus.add(NewText(text, np.array(tokens, np.int32), states, prompt))


def test_shares_of_each_source(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, 2)
    add(corpus, Text(0, "a", 10, True, "math", 0.0), list(range(10)))
    add(corpus, Text(1, "b", 20, True, "math", 0.7), list(range(100, 120)))
    add(corpus, Text(2, "c", 10, True, "later turn", 0.0), [7] * 10)
    corpus.state.update(generated={"math": 60, "later turn": 10, "chat": 5}, duplicates={"math": 15})
    corpus.flush()
    math, later = sources.source_shares(Corpus(tmp_path, 2))
    assert (math.source, math.texts, math.tokens, math.share) == ("math", 2, 30, 0.75)
    assert math.greedy == pytest.approx(1 / 3)
    assert (math.kept, math.duplicates, math.distinct) == (0.5, 0.25, 1.0)
    assert (later.greedy, later.kept, later.duplicates, later.distinct) == (1.0, 1.0, 0.0, 1 / 3)
    screen = io.StringIO()
    print_table(sources.as_table([math, later]), Console(file=screen, width=80, force_terminal=True, color_system=None))
    assert "later turn" in screen.getvalue()
    assert "75.0%" in screen.getvalue()
    assert "…" not in screen.getvalue()
    assert json.loads(json.dumps(sources.as_json([math])))[0]["kept"] == 0.5


def test_text_of_older_versions_is_still_read(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, 2)
    add(corpus, Text(0, "a", 10, True, "math", 0.0), list(range(10)))
    corpus.flush()
    (shard,) = tmp_path.glob("shard-*.json")
    shard.write_text(json.dumps([{"job": 0, "group": "a", "length": 10, "complete": True}]))
    (row,) = sources.source_shares(Corpus(tmp_path, 2))
    assert (row.source, row.tokens, row.greedy, row.kept) == ("unknown", 10, None, None)
