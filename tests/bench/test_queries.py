"""benchmarks/queries.py: questions about made-up tables."""

from __future__ import annotations

import sqlite3

import pytest
import queries


def test_questions_are_different_and_of_other_tables_in_the_test() -> None:
    trained, tested = queries.records(queries.TRAINED, 400, 1), queries.records(queries.TESTED, 100, 1)
    assert len({one["prompt"] for one in trained}) == 400
    assert trained == queries.records(queries.TRAINED, 400, 1)
    assert not {table.name for table in queries.TRAINED} & {table.name for table in queries.TESTED}
    names = {table.name for table in queries.TESTED}
    assert {one["completion"].split("FROM ")[1].split()[0] for one in tested} == names


def test_the_queries_can_be_run() -> None:
    with sqlite3.connect(":memory:") as base:
        for table in (*queries.TRAINED, *queries.TESTED):
            base.execute(f"CREATE TABLE {table.name} ({', '.join(['name', *table.texts, *table.numbers])})")
        for one in queries.records(queries.TRAINED, 300, 2) + queries.records(queries.TESTED, 200, 2):
            base.execute(one["completion"])
    base.close()


@pytest.mark.parametrize(("gained", "lost", "p"), [(0, 0, 1.0), (5, 5, 1.0), (10, 0, 2 / 1024), (0, 10, 2 / 1024)])
def test_mcnemar(gained: int, lost: int, p: float) -> None:
    assert queries.mcnemar(gained, lost) == pytest.approx(p)


def test_what_counts_as_the_same_query() -> None:
    assert queries.normalized(" SELECT a\n  FROM b; ") == "SELECT a FROM b"
