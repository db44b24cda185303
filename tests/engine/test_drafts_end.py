"""A drafter that cannot go on ends its drafts, not the answer."""

from __future__ import annotations

from typing import Any

import _native_testing as testing
import pytest
from random_bases import random_base
from random_heads import random_streams
from stream_numpy import Base
from test_streams import TEXT, Case

from medusa_cli import native
from medusa_cli.decoding import figures

PROMPT = [3, 1, 2, 5]
SMALL = native.Tree([[0], [1], [0, 0], [0, 0, 0]])
WAYS: dict[str, dict[str, Any]] = {"static": {}, "dynamic": {"dynamic": True}, "lookup": {"lookup": True, "memory": 2}}


@pytest.mark.parametrize("rule", ["greedy", "exact", "rejection"])
@pytest.mark.parametrize("way", WAYS)
def test_the_rest_of_the_answer_is_decoded_plainly(way: str, rule: str) -> None:
    sampling = native.Sampling(temperature=0.0 if rule == "greedy" else 0.8, seed=4)
    asked: dict[str, Any] = {"max_tokens": 60, "sampling": sampling, "ignore_eos": True}
    session = testing.FakeSession(SMALL, acceptance=0.6, ends_after=5, **WAYS[way])
    plain = testing.FakeSession(native.Tree([]), **{**WAYS[way], "lookup": False, "dynamic": False})
    wanted = plain.generate(PROMPT, **asked)
    for _ in range(2):  # the next answer drafts again
        answer = session.generate(PROMPT, accept=native.Accept(rule), **asked)
        assert answer.stop_reason == "length"
        assert answer.tokens == wanted.tokens or rule == "rejection"
        assert answer.stats["drafts_ended"] == "the guesses end here"
        assert answer.stats["tokens_per_step"] > 1.1 or way == "dynamic"  # a tree that has learned nothing yet
        steps = answer.stats["steps"] - answer.stats["plain_steps"]
        assert 0 < steps <= 5
        assert all(len(parents) == 1 for parents in answer.parents[5:])
        assert figures.stats_line(answer.stats).endswith("(no more drafts: the guesses end here)")


def test_answers_whose_drafts_go_on_say_nothing() -> None:
    answer = testing.FakeSession(SMALL, ends_after=500).generate(PROMPT, max_tokens=30, ignore_eos=True)
    assert answer.stats["drafts_ended"] is None
    assert "drafts" not in figures.stats_line(answer.stats)


def test_streams_follow_one_text_alone(tmp_path: Any) -> None:
    """Where the cells that the last token saw are not those of the text so far, there is nothing to draft from."""
    path = random_base(tmp_path / "base.gguf", "llama")
    case = Case(path, random_streams(Base(path)))
    probe = testing.StreamProbe(case.model, case.heads, 256)
    probe.prefill(TEXT[:20])
    with pytest.raises(native.NativeError, match="the last of 19 tokens saw 20 of them, which streams cannot follow"):
        probe.probabilities(TEXT[:20], 0)
    probe.probabilities([*TEXT[:20], 5], 0)
