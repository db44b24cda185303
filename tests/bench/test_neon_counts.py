"""benchmarks/neon_counts.py: what it takes from a disassembly and from a trace, and how it counts."""

from __future__ import annotations

import shutil

import neon_counts
import pytest

DISASSEMBLY = """
0000000000400100 <f>:
  400100:\tldr\tq1, [x0]
  400104:\tsdot\tv0.4s, v1.16b, v2.4b[0]
  400108:\tstp\tq0, q1, [sp, #16]
  40010c:\tb.ne\t400100 <f>  // b.any
  400110:\tret
"""
LISTING = neon_counts.listing_of(DISASSEMBLY)


def test_a_listing_has_no_comments_and_no_addresses() -> None:
    assert LISTING[0x40010C] == "b.ne\ttarget"
    assert LISTING[0x400110] == "ret"
    assert len(LISTING) == 5


def test_a_trace_is_cut_where_products_begin() -> None:
    assert list(neon_counts.products([1, 8, 2, 3, 8, 4], {8})) == [[8, 2, 3], [8, 4]]
    assert list(neon_counts.products([1, 2], {8})) == []


def test_only_instructions_of_the_kernels_count() -> None:
    assert neon_counts.inside([0, 4, 100, 8, 4], [range(4, 12)]) == [4, 8, 4]


def test_counts_are_of_executed_instructions() -> None:
    once = [0x400100, 0x400104, 0x400108, 0x40010C]
    row = neon_counts.count([*once, *once, 0x400110], LISTING, blocks=3, columns=2).row()
    assert row == {"instructions": 3.0, "products": 3 * 2 * 32 / 9, "dots": 2 / 9, "stack": 2 / 9}


@pytest.mark.skipif(not shutil.which("llvm-mca-19"), reason="needs llvm-mca-19")
def test_cycles_grow_with_the_instructions() -> None:
    few, many = (neon_counts.cycles([LISTING[0x400104], "ret"] * count, "neoverse-n1") for count in (10, 1000))
    assert 0 < few < many
