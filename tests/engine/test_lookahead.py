"""Lookahead decoding: step by step what the paper's algorithm does, losslessness, and the bounds of its trees."""

from __future__ import annotations

from pathlib import Path

import _native_testing as testing
import lossless
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine_fake import PROMPT

from medusa_cli import native
from medusa_cli.decoding.prompts import chat_tokens


def fake(
    params: native.Lookahead | None, *, memory: int, seed: int = 5, vocab_size: int = 16, context_size: int = 512
) -> testing.FakeSession:
    return testing.FakeSession(
        native.Tree([]), memory=memory, seed=seed, vocab_size=vocab_size, context_size=context_size, lookahead=params
    )


class Published:
    """Lookahead decoding as published, greedy, one path of tokens at a time: no tree, no cache.

    rows: the window, oldest iteration first; each a token by position, counted from the root. Position p of row r sees
    row 0 up to p - r, and one token of each row between.
    """

    def __init__(self, target: testing.FakeSession, params: native.Lookahead, prompt: list[int]) -> None:
        self.target, self.n, self.most = target, params.ngram, params.guesses
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        for start in range(len(prompt) - self.n + 1):
            self.add(tuple(prompt[start : start + self.n]))
        count = params.window + self.n - 3
        guesses = [prompt[int(testing.uniform(0, index) * len(prompt))] for index in range(count)]
        self.rows: list[dict[int, int]] = [dict(enumerate(guesses, 1))]
        self.paths: set[tuple[int, ...]] = set()

    def add(self, ngram: tuple[int, ...]) -> None:
        known = self.pool.setdefault(ngram[0], [])
        if ngram[1:] in known:
            known.remove(ngram[1:])
        known.append(ngram[1:])
        del known[: -self.most]

    def next(self, text: list[int]) -> int:
        return testing.argmax(self.target.logits_after(text))

    def verify(self, text: list[int]) -> list[int]:
        """The tokens that a step brings: those of the longest right n-gram, and one more."""
        best: list[int] = []
        for guess in self.pool.get(text[-1], []):
            self.paths |= {guess[:length] for length in range(1, self.n)}
            right = 0
            while right < len(guess) and self.next([*text, *guess[:right]]) == guess[right]:
                right += 1
            best = max(best, list(guess[:right]), key=len)
        return [*best, self.next([*text, *best])]

    def look_ahead(self, text: list[int]) -> None:
        depth = len(self.rows)
        line = [text[-1], *self.rows[0].values()]
        answers, ngrams = {}, []
        for column in range(len(line)):
            own = [self.rows[row][column + row] for row in range(1, depth)]
            path = [*line[1 : column + 1], *own]
            self.paths |= {tuple(path[:length]) for length in range(1, len(path) + 1)}
            answers[column + depth] = self.next([*text, *path])
            ngrams.append((line[column], *own, answers[column + depth]))
        rows = [*self.rows, answers]
        if depth == self.n - 1:
            rows = rows[1:]
            for ngram in ngrams:
                self.add(ngram)
        # The next root stands where position 1 is: what lies before a row's first place goes.
        self.rows = [
            {at - 1: token for at, token in row.items() if at - 1 >= max(number, 1)} for number, row in enumerate(rows)
        ]

    def step(self, text: list[int]) -> tuple[list[int], int]:
        """What a step brings, and the nodes of its tree."""
        self.paths = set()
        came = self.verify(text)
        self.look_ahead(text)
        return came, 1 + len(self.paths)


PARAMS = st.builds(native.Lookahead, st.integers(1, 6), st.integers(2, 6), st.integers(1, 5))


@given(params=PARAMS, memory=st.sampled_from([1, 2, 3]), seed=st.integers(0, 100), vocab_size=st.sampled_from([4, 16]))
@settings(max_examples=60)
def test_steps_are_those_of_the_paper(params: native.Lookahead, memory: int, seed: int, vocab_size: int) -> None:
    session = fake(params, memory=memory, seed=seed, vocab_size=vocab_size)
    prompt = [token % vocab_size for token in PROMPT]
    drafted = session.generate(prompt, max_tokens=80, ignore_eos=True)
    published = Published(session, params, prompt)
    text = [*prompt, drafted.tokens[0]]
    for path, parents in zip(drafted.paths, drafted.parents, strict=True):
        came, nodes = published.step(text)
        assert (len(path), len(parents)) == (len(came), nodes)
        text += came
    assert text[len(prompt) :][: len(drafted.tokens)] == drafted.tokens


@given(params=PARAMS, memory=st.sampled_from([0, 1, 3]), seed=st.integers(0, 100), hot=st.booleans())
@settings(max_examples=60)
def test_lookahead_changes_no_text(params: native.Lookahead, memory: int, seed: int, hot: bool) -> None:
    sampling = native.Sampling(temperature=0.8 if hot else 0.0, top_k=12, repeat_penalty=1.1, seed=seed)
    plain, session = fake(None, memory=memory, seed=seed), fake(params, memory=memory, seed=seed)
    for prompt in (PROMPT, PROMPT[:2]):
        expected = plain.generate(prompt, max_tokens=60, sampling=sampling, ignore_eos=True)
        drafted = session.generate(prompt, max_tokens=60, sampling=sampling, ignore_eos=True)
        assert drafted.tokens == expected.tokens
        assert session.sequence(0) == session.cached_tokens
        assert session.cell_count == len(session.cached_tokens)


@pytest.mark.parametrize("ngram", [2, 3, 5, 7])
def test_an_ngram_that_always_hits_brings_its_length(ngram: int) -> None:
    # The text becomes periodic: soon the pool holds what comes, N - 1 tokens of it, and the model adds one.
    drafted = fake(native.Lookahead(4, ngram, 4), memory=1, context_size=900).generate(
        PROMPT, max_tokens=600, ignore_eos=True
    )
    assert [len(path) for path in drafted.paths[-40:-1]] == [ngram] * 39


def test_a_full_context_is_used_to_its_end() -> None:
    plain = fake(None, memory=2, context_size=60).generate(PROMPT, ignore_eos=True)
    session = fake(native.Lookahead(), memory=2, context_size=60)
    drafted = session.generate(PROMPT, ignore_eos=True)
    assert plain.stop_reason == drafted.stop_reason == "context_full"
    assert drafted.tokens == plain.tokens
    assert len(session.cached_tokens) == 60


@pytest.mark.model
def test_the_demo_model_says_the_same(demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path), n_gpu_layers=0)
    prompt = chat_tokens(model, [{"role": "user", "content": "Count from one to forty."}])
    expected = native.Session(model).generate(prompt, max_tokens=96)
    for params in (native.Lookahead(), native.Lookahead(15, 5, 15)):
        drafted = native.Session(model, lookahead=params).generate(prompt, max_tokens=96)
        result = lossless.compare(model, prompt, expected, drafted)
        assert result.explained, result
        assert drafted.stats["tokens_per_step"] > 1.05


@pytest.mark.model
def test_numbers_that_cannot_be_are_refused(demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path), n_gpu_layers=0)
    for params, message in (
        (native.Lookahead(0, 3, 4), "lookahead 0,3,4: give a window from 1"),
        (native.Lookahead(4, 1, 4), "n-grams from 2"),
        (native.Lookahead(40, 7, 20), "lookahead 40,7,20 checks 360 tokens at a time, at most 256 are possible"),
    ):
        with pytest.raises(native.NativeError, match=message):
            native.Session(model, lookahead=params)
    with pytest.raises(native.NativeError, match="lookahead cannot be combined with other drafts"):
        native.Session(model, lookahead=native.Lookahead(), lookup=True)
