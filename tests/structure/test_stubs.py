"""The stubs in the repository are those that nanobind's stubgen makes of the compiled modules."""

from __future__ import annotations

import ast

import pytest

pytest.importorskip("nanobind", reason="stubs are made with nanobind: pip install -c constraints.txt nanobind")
from make_stubs import STUBS, stub


def declarations(text: str) -> list[str]:
    """Its lines, however they were formatted."""
    return ast.unparse(ast.parse(text)).splitlines()


@pytest.mark.parametrize("module", STUBS)
def test_stubs_are_as_generated(module: str) -> None:
    checked_in = declarations(STUBS[module].read_text(encoding="utf-8"))
    remedy = "run `python tests/support/make_stubs.py`, with the nanobind of constraints.txt"
    assert checked_in == declarations(stub(module)), remedy
