"""Prompts with made-up numbers, names and code: mathematics, reasoning, programming, extraction."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence

from jinja2 import Environment, StrictUndefined, Template

from medusa_cli.prompts.seeds.data import CODE, TEMPLATES, WORDS

Problem = Callable[[random.Random], str]
_TEMPLATES = Environment(variable_start_string="{", variable_end_string="}", undefined=StrictUndefined)


def _filled(heading: str, rng: random.Random, **slots: object) -> str:
    """One of the templates under `heading`. All slots are drawn for each, also those that it does not have."""
    return _compiled(rng.choice(TEMPLATES[heading])).render(slots)


@functools.cache
def _compiled(template: str) -> Template:
    return _TEMPLATES.from_string(template)


def _drawn(heading: str, **options: Sequence[object]) -> Problem:
    """Each slot holds one of its options."""
    return lambda rng: _filled(heading, rng, **{slot: rng.choice(of) for slot, of in options.items()})


arithmetic = _drawn("ask arithmetic", a=range(12, 981), b=range(3, 98), c=range(2, 20), sign="+-*")
algebra = _drawn("ask algebra", **dict.fromkeys("abcd", range(2, 16)))
geometry = _drawn("ask geometry", a=range(2, 26), b=range(2, 26), c=range(2, 13))
programming = _drawn(
    "ask programming",
    task=WORDS["task"],
    language=WORDS["programming"],
    extra=TEMPLATES["extra"],
    extra2=TEMPLATES["extra"],
)
about_code = _drawn(
    "ask about code",
    snippet=CODE["snippet"],
    broken=CODE["buggy"],
    language=WORDS["programming"],
    tests=range(2, 5),
    better=("faster", "clearer", "safer", "shorter"),
)
code_concept = _drawn(
    "ask concept",
    concept=WORDS["tech"],
    language=WORDS["programming"],
    table=WORDS["table"],
    column=WORDS["column"],
    rows=range(3, 11),
    other=("set", "tuple", "dictionary", "queue"),
    topic=WORDS["topic"],
    pattern=WORDS["pattern"],
    chore=WORDS["chore"],
    product=WORDS["product"],
    methods=range(2, 6),
    command=WORDS["command"],
)


def word_problem(rng: random.Random) -> str:
    name, other = rng.sample(WORDS["name"], 2)
    thing, place = rng.choice(WORDS["object"]), rng.choice(WORDS["place"])
    a, b, c = rng.randint(3, 60), rng.randint(2, 12), rng.randint(2, 9)
    return _filled("ask word problem", rng, name=name, other=other, thing=thing, place=place, a=a, b=b, c=c)


def logic(rng: random.Random) -> str:
    first, second, third = rng.sample(WORDS["name"], 3)
    job, other = rng.sample(WORDS["job"], 2)
    thing = rng.choice(WORDS["object"])
    start, step = rng.randint(1, 9), rng.randint(2, 7)
    return _filled(
        "ask logic",
        rng,
        first=first,
        second=second,
        third=third,
        job=job,
        other=other,
        thing=thing,
        start=start,
        step=step,
        row=", ".join(str(start + step * i + i * (i - 1) // 2) for i in range(5)),
    )


def _person(rng: random.Random) -> str:
    return f"{rng.choice(WORDS['name'])} {rng.choice(WORDS['surname'])}"


def records(rng: random.Random) -> str:
    count = rng.randint(3, 6)
    people = [_person(rng) for _ in range(count)]
    jobs, cities = rng.sample(WORDS["job"], count), rng.sample(WORDS["place"], count)
    ages, amounts = rng.sample(range(21, 70), count), rng.sample(range(110, 980), count)
    rows = list(zip(people, jobs, cities, ages, amounts, strict=True))
    style = rng.randrange(3)
    if style == 0:
        text = "\n".join(f"{name}, {age}, works as a {job} in {city}." for name, job, city, age, _ in rows)
    elif style == 1:
        text = "name,job,city,age,amount\n" + "\n".join(
            f"{name},{job},{city},{age},{amount}" for name, job, city, age, amount in rows
        )
    else:
        text = " ".join(
            f"{name} ({age}) from {city} spent ${amount} on {rng.choice(WORDS['object'])}."
            for name, _, city, age, amount in rows
        )
    question = _filled("ask records", rng)
    return f"{question}\n\n{text}" if rng.random() < 0.5 else f"{text}\n{question}"


def message_facts(rng: random.Random) -> str:
    text = _filled(
        "message",
        rng,
        name=_person(rng),
        city=rng.choice(WORDS["place"]),
        day=rng.randint(1, 28),
        month=rng.choice(WORDS["month"]),
        number=rng.randint(1000, 9999),
        price=rng.randint(12, 480),
        thing=rng.choice(WORDS["product"]),
        nights=rng.randint(1, 6),
        hour=rng.randint(8, 17),
    )
    task = _filled("ask message", rng)
    return f"{task}: {text}" if rng.random() < 0.6 else f"{text}\n\n{task}."


PROBLEMS: dict[str, list[Problem]] = {
    "math": [arithmetic, algebra, word_problem, word_problem, geometry],
    "reasoning": [logic],
    "coding": [programming, programming, about_code, code_concept],
    "extraction": [records, message_facts],
}
