"""Lookahead decoding as a method of `medusa bench`: its numbers, and which worker gets them."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from medusa_cli.bench.measure import Plan
from medusa_cli.bench.methods import LOOKAHEAD_NUMBERS, METHODS, parse_lookahead
from medusa_cli.support.errors import MedusaError


def test_its_numbers() -> None:
    assert parse_lookahead("4, 3,2") == (4, 3, 2)
    assert parse_lookahead(LOOKAHEAD_NUMBERS) == (4, 3, 4)


@pytest.mark.parametrize("text", ["4,4", "a,4,4", "4,4,4,4", "-1,3,4", ""])
def test_what_are_no_numbers(text: str) -> None:
    with pytest.raises(MedusaError) as caught:
        parse_lookahead(text)
    assert str(caught.value) == f"--lookahead {text}: give three numbers such as 4,3,4"


@pytest.mark.parametrize(("asked", "told"), [(None, "4,3,4"), ("7,5,7", "7,5,7")])
def test_its_worker_alone_gets_them(asked: str | None, told: str) -> None:
    plan = Plan("m.gguf", list(METHODS.values()), [], lookahead=asked)
    for method in plan.methods:
        spec = plan.spec(method)
        assert spec.lookahead == (told if method.name == "lookahead" else None)
        assert pickle.loads(pickle.dumps(spec)) == spec


def test_it_drafts_without_heads_in_a_session_of_its_own() -> None:
    spec = Plan("m.gguf", [], []).spec(METHODS["lookahead"])
    assert spec.draft == dataclasses.replace(spec.draft, no_spec=True, heads=None, tree=None, draft_model=None)
