"""A task to train on: questions about made-up tables, and their queries in SQL. And how many of them models get right.

    python benchmarks/queries.py make DIR
    medusa train demo -o J.gguf --joint --data DIR/train.jsonl --answers given --recipe R.toml
    python benchmarks/queries.py score demo J.gguf --data DIR/test.jsonl

No table of the test occurs in the training. An answer is right if it is the query, white space and a last semicolon
apart.
"""

from __future__ import annotations

import json
import math
import random
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import NamedTuple

import common
from rich.table import Table as Shown

from medusa_cli.api.model import Model
from medusa_cli.prompts.prompt_files import read_records
from medusa_cli.support.atomic import atomic_file
from medusa_cli.support.errors import MedusaError


class Table(NamedTuple):
    """texts, numbers: its columns besides the name, with values, and with the lowest and the highest number."""

    name: str
    texts: dict[str, tuple[str, ...]]
    numbers: dict[str, tuple[int, int]]


CITIES = ("Oslo", "Lima", "Kyoto", "Porto", "Accra", "Quito", "Turin", "Perth")
COLORS = ("red", "green", "white", "black", "yellow", "blue")
NAMES = ("Ann", "Boris", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana")
LANDS = ("Norway", "Peru", "Japan", "Ghana", "Chile", "Italy", "India", "Canada")
TRAINED = (
    Table("books", {"author": NAMES, "language": LANDS}, {"year": (1900, 2024), "pages": (80, 900)}),
    Table("employees", {"city": CITIES, "manager": NAMES}, {"salary": (20000, 90000), "age": (18, 67)}),
    Table("cars", {"color": COLORS, "owner": NAMES}, {"price": (3000, 90000), "doors": (2, 5)}),
    Table("flights", {"origin": CITIES, "destination": CITIES}, {"distance": (200, 12000), "seats": (30, 500)}),
    Table("songs", {"singer": NAMES, "country": LANDS}, {"length": (90, 600), "plays": (100, 99000)}),
    Table("hotels", {"city": CITIES, "owner": NAMES}, {"rooms": (5, 400), "stars": (1, 5)}),
    Table("players", {"country": LANDS, "coach": NAMES}, {"goals": (0, 60), "height": (150, 210)}),
    Table("orders", {"customer": NAMES, "city": CITIES}, {"amount": (5, 2000), "items": (1, 40)}),
    Table("movies", {"director": NAMES, "country": LANDS}, {"year": (1930, 2024), "budget": (1, 300)}),
    Table("farms", {"farmer": NAMES, "region": LANDS}, {"cows": (0, 300), "hectares": (2, 900)}),
    Table("ships", {"harbour": CITIES, "captain": NAMES}, {"tons": (100, 90000), "crew": (2, 90)}),
    Table("phones", {"maker": NAMES, "color": COLORS}, {"price": (50, 1500), "storage": (16, 1024)}),
)
TESTED = (
    Table("museums", {"city": CITIES, "director": NAMES}, {"visitors": (100, 90000), "opened": (1700, 2024)}),
    Table("students", {"teacher": NAMES, "country": LANDS}, {"grade": (1, 12), "absences": (0, 40)}),
    Table("lamps", {"color": COLORS, "designer": NAMES}, {"watts": (2, 100), "price": (5, 400)}),
    Table("rivers", {"country": LANDS, "source": CITIES}, {"length": (20, 6000), "bridges": (0, 90)}),
    Table("bakeries", {"owner": NAMES, "city": CITIES}, {"loaves": (50, 4000), "ovens": (1, 12)}),
)
COMPARED = {">": ("more than", "over", "above"), "<": ("less than", "under", "below"), "=": ("exactly", "equal to")}
ASKED = {"AVG": "average", "MAX": "highest", "MIN": "lowest", "SUM": "total"}


def question(table: Table, rng: random.Random) -> tuple[str, str]:
    """A question about a table, and its query."""
    return rng.choice((_names, _names, _count, _value, _first, _groups))(table, rng)


def _condition(table: Table, rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        column, values = rng.choice(list(table.texts.items()))
        value = rng.choice(values)
        return f"whose {column} is {value}", f"{column} = '{value}'"
    column, (low, high) = rng.choice(list(table.numbers.items()))
    sign, words = rng.choice(list(COMPARED.items()))
    number = rng.randint(low, high)
    return f"whose {column} is {rng.choice(words)} {number}", f"{column} {sign} {number}"


def _conditions(table: Table, rng: random.Random) -> tuple[str, str]:
    said, written = _condition(table, rng)
    if rng.random() < 0.4:
        also, more = _condition(table, rng)
        if more.split()[0] != written.split()[0]:
            return f"{said} and {also}", f"{written} AND {more}"
    return said, written


def _names(table: Table, rng: random.Random) -> tuple[str, str]:
    said, written = _conditions(table, rng)
    column = rng.choice([one for one in ("name", *table.texts, *table.numbers) if one not in written.split()])
    asks = rng.choice(
        [f"What is the {column} of {table.name} {said}?", f"List the {column} of all {table.name} {said}."]
    )
    return asks, f"SELECT {column} FROM {table.name} WHERE {written}"


def _count(table: Table, rng: random.Random) -> tuple[str, str]:
    said, written = _conditions(table, rng)
    asks = rng.choice([f"How many {table.name} are there {said}?", f"Count the {table.name} {said}."])
    return asks, f"SELECT COUNT(*) FROM {table.name} WHERE {written}"


def _value(table: Table, rng: random.Random) -> tuple[str, str]:
    said, written = _conditions(table, rng)
    column, (function, word) = rng.choice(list(table.numbers)), rng.choice(list(ASKED.items()))
    asks = f"What is the {word} {column} of {table.name} {said}?"
    return asks, f"SELECT {function}({column}) FROM {table.name} WHERE {written}"


def _first(table: Table, rng: random.Random) -> tuple[str, str]:
    column, count = rng.choice(list(table.numbers)), rng.randint(2, 9)
    word, order = rng.choice((("highest", " DESC"), ("lowest", "")))
    asks = f"Which {count} {table.name} have the {word} {column}?"
    return asks, f"SELECT name FROM {table.name} ORDER BY {column}{order} LIMIT {count}"


def _groups(table: Table, rng: random.Random) -> tuple[str, str]:
    by, count = rng.choice(list(table.texts)), rng.randint(2, 20)
    if rng.random() < 0.5:
        return (
            f"How many {table.name} are there for each {by}?",
            f"SELECT {by}, COUNT(*) FROM {table.name} GROUP BY {by}",
        )
    asks = f"For which {by} are there more than {count} {table.name}?"
    return asks, f"SELECT {by} FROM {table.name} GROUP BY {by} HAVING COUNT(*) > {count}"


def prompt(table: Table, asked: str, rng: random.Random) -> str:
    columns = ["name text", *(f"{name} text" for name in table.texts), *(f"{name} integer" for name in table.numbers)]
    rng.shuffle(columns)
    return f"Table {table.name} ({', '.join(columns)}). {asked} Answer with one SQL query."


def records(tables: Sequence[Table], count: int, seed: int) -> list[dict[str, str]]:
    """Different questions, with their queries."""
    rng, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        table = rng.choice(tables)
        asked, query = question(table, rng)
        found.setdefault(prompt(table, asked, rng), query)
    return [{"prompt": asked, "completion": query} for asked, query in found.items()]


@dataclass
class Make:
    """Writes train.jsonl and test.jsonl into a folder."""

    folder: Path
    _: KW_ONLY
    train: int = 6000
    test: int = 500
    seed: int = 1

    def run(self) -> None:
        for name, tables, count in (("train", TRAINED, self.train), ("test", TESTED, self.test)):
            lines = [json.dumps(record) for record in records(tables, count, self.seed)]
            with atomic_file(self.folder / f"{name}.jsonl") as file:
                file.write(("\n".join(lines) + "\n").encode())


def normalized(query: str) -> str:
    return " ".join(query.strip().removesuffix(";").split())


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided p of the exact test: how likely so uneven a split is where both models are equally good."""
    total, most = gained + lost, max(gained, lost)
    tail = sum(math.comb(total, at) for at in range(most, total + 1)) / 2**total
    return min(1.0, 2 * tail)


@dataclass
class Score:
    """Greedy answers to the questions: how many are right, compared with the first model's, and tokens per step."""

    models: tuple[str, ...]
    _: KW_ONLY
    data: Path
    limit: int = 500
    max_tokens: int = 80

    def run(self) -> None:
        asked = [record for _, record in read_records(self.data)][: self.limit]
        if not all(isinstance(one, dict) and {"prompt", "completion"} <= one.keys() for one in asked):
            raise MedusaError(f"{self.data}: not a file of `queries.py make`")
        shown = Shown("model", "right", "gained / lost", "p (McNemar)", "tokens per step", "times plain")
        first: list[bool] = []
        for name in self.models:
            right, per_step, gain = self._answers(name, asked)
            first = first or right
            gained, lost = (
                sum(a is which and b is not which for a, b in zip(right, first, strict=True)) for which in (True, False)
            )
            p = f"{mcnemar(gained, lost):.3f}" if right is not first else ""
            share = f"{sum(right)} of {len(right)}"
            shown.add_row(Path(name).name, share, f"{gained} / {lost}", p, f"{per_step:.3f}", f"{gain:.2f}")
        common.show(shown)

    def _answers(self, name: str, asked: Sequence[dict[str, str]]) -> tuple[list[bool], float, float]:
        """Which are right, tokens per step, and how many times as fast as plain decoding."""
        right, tokens, steps, seconds = [], 0, 0, {True: 0.0, False: 0.0}
        with Model(name, quiet=True) as drafted, Model(name, quiet=True, no_spec=True) as plain:
            for one in asked:
                texts = {}
                for is_drafted, model in ((True, drafted), (False, plain)):
                    answer = model.generate(one["prompt"], temperature=0, max_tokens=self.max_tokens)
                    texts[is_drafted] = answer.text
                    timings = answer.stats["timings_ms"]
                    seconds[is_drafted] += sum(timings.values()) / 1000
                    if is_drafted:
                        tokens += answer.stats["tokens_per_step"] * answer.stats["steps"]
                        steps += answer.stats["steps"]
                right.append(normalized(texts[True]) == normalized(one["completion"]))
        return right, tokens / max(1, steps), seconds[False] / seconds[True]


def parser() -> ArgumentParser:
    return common.parser(__doc__, Make, Score)


if __name__ == "__main__":
    common.main(parser())
