"""Prompts with made-up numbers, names and code: mathematics, reasoning, programming, extraction."""

from __future__ import annotations

import random
from collections.abc import Callable

from medusa_cli.prompts.seeds.data import CODE, TEMPLATES, WORDS

Problem = Callable[[random.Random], str]


def arithmetic(rng: random.Random) -> str:
    a, b, c = rng.randint(12, 980), rng.randint(3, 97), rng.randint(2, 19)
    return rng.choice(
        [
            f"What is {a} {rng.choice('+-*')} {b}?",
            f"Calculate {a} * {c} - {b}.",
            f"Compute ({a} + {b}) / {c} and round to two decimals.",
            f"What is {c * 5}% of {a}?",
            f"Is {a} divisible by {c}? Show how you know.",
            f"Find the greatest common divisor of {a} and {b * c}.",
            f"Write {a} as a product of prime numbers.",
            f"Convert {a} from decimal to binary.",
            f"What is the square root of {c * c}? And what is {c} squared plus {b}?",
            f"Which is larger: {c}/{c + 7} or {b}/{b + 5}?",
            f"What is the average of {a}, {b}, {c} and {a + b}?",
            f"Simplify the fraction {c * 6}/{c * 14}.",
        ]
    )


def algebra(rng: random.Random) -> str:
    a, b, c, d = (rng.randint(2, 15) for _ in range(4))
    return rng.choice(
        [
            f"Solve for x: {a}x + {b} = {a * c + b}.",
            f"Solve {a}(x - {b}) = {c}x + {d}.",
            f"Solve the system: x + y = {a + b}, x - y = {abs(a - b)}.",
            f"Factor x^2 + {a + b}x + {a * b}.",
            f"Expand (x + {a})(x - {b}).",
            f"If g(t) = {a}t^2 - {b}t + {c}, what is g({d % 6})?",
            f"Find the derivative of {a}x^{b % 5 + 2} + {c}x.",
            f"What is the integral of {a}x^{b % 4 + 1} from 0 to {c % 4 + 1}?",
            f"A line passes through ({a}, {b}) and ({a + c}, {b + d}). What is its slope?",
            f"Find the {d + 5}th term of the sequence {a}, {a + b}, {a + 2 * b}, {a + 3 * b}, ...",
            f"For which x does {a}x > {b * c} hold?",
            f"Rearrange the formula v = {a}u + {b}w for w.",
        ]
    )


def word_problem(rng: random.Random) -> str:
    name, other = rng.sample(WORDS["name"], 2)
    thing, place = rng.choice(WORDS["object"]), rng.choice(WORDS["place"])
    a, b, c = rng.randint(3, 60), rng.randint(2, 12), rng.randint(2, 9)
    return rng.choice(
        [
            f"{name} has {a * b} {thing} and packs them into bags of {b}. How many bags are needed?",
            f"{name} buys {b} {thing} at ${c}.50 each and pays with a ${b * (c + 1) + 10} note. How much change "
            "is due?",
            f"{name} cycles {a} km at {b + 9} km/h. How long does the ride take in minutes?",
            f"A bus leaves for {place} at {b % 12 + 1}:15 and takes {c} hours and {a % 55 + 5} minutes. When does "
            "it arrive?",
            f"{name} is {c} times as old as {other}. Together they are {(c + 1) * b} years old. How old is each "
            "of them?",
            f"A garden is {a} metres long and {b} metres wide. What are its area and perimeter?",
            f"{name} reads {b + 10} pages a day. How many days does a book of {a * 9} pages take?",
            f"A jacket costs ${a + 40}. It is reduced by {c * 5}%. What does {name} pay?",
            f"{b} workers need {c * 2} days to build a wall. How long would {b * 2} workers need?",
            f"{name} saves ${a} every month. After how many months is a trip to {place} for ${a * b + 20} possible?",
            f"A bag holds {a % 9 + 2} red, {b} blue and {c} green marbles. What is the probability of drawing a "
            "blue one?",
            f"A tank of {a * 10} litres loses {c} litres an hour. How much is left after {b} hours?",
            f"{name} invests ${a * 100} at {c}% interest a year. How much is it worth after {b % 4 + 2} years?",
            f"A recipe for {b} people needs {a * 10} g of flour. How much is needed for {b + c} people?",
            f"{name} scored {a + 20}, {a + 28} and {a + 13} points. What must the fourth score be for an average "
            f"of {a + 22}?",
            f"In a class of {a % 15 + 16} pupils, {b} play chess and {c} play the violin; {c // 2} do both. How "
            "many do neither?",
        ]
    )


def geometry(rng: random.Random) -> str:
    a, b, c = rng.randint(2, 25), rng.randint(2, 25), rng.randint(2, 12)
    return rng.choice(
        [
            f"What is the area of a circle with radius {a} cm?",
            f"A right triangle has legs of {3 * c} and {4 * c}. How long is the hypotenuse?",
            f"Find the volume of a cylinder with radius {c} and height {b}.",
            f"Two angles of a triangle measure {a + 20} and {b + 30} degrees. What is the third?",
            f"How many cubes with edges of {c} cm fit into a box of {c * 4} x {c * 3} x {c * 5} cm?",
            f"What is the distance between the points ({a}, {b}) and ({c}, {a})?",
            f"A ladder of {5 * c} dm leans against a wall, its foot {3 * c} dm away. How high does it reach?",
            f"By what factor does the area of a square grow when its side goes from {c} to {c * 3}?",
        ]
    )


def _filled(heading: str, rng: random.Random, **slots: object) -> str:
    """One of the templates under `heading`. All slots are drawn for each, also those that it does not have."""
    return rng.choice(TEMPLATES[heading]).format(**slots)


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
        more=step + 3,
        days=step * 10,
        row=", ".join(str(start + step * i + i * (i - 1) // 2) for i in range(5)),
    )


def programming(rng: random.Random) -> str:
    return _filled(
        "ask programming",
        rng,
        task=rng.choice(WORDS["task"]),
        language=rng.choice(WORDS["programming"]),
        extra=rng.choice(TEMPLATES["extra"]),
        extra2=rng.choice(TEMPLATES["extra"]),
    )


def about_code(rng: random.Random) -> str:
    return _filled(
        "ask about code",
        rng,
        snippet=rng.choice(CODE["snippet"]),
        broken=rng.choice(CODE["buggy"]),
        language=rng.choice(WORDS["programming"]),
        tests=rng.randint(2, 4),
        better=rng.choice(["faster", "clearer", "safer", "shorter"]),
    )


def code_concept(rng: random.Random) -> str:
    return _filled(
        "ask concept",
        rng,
        concept=rng.choice(WORDS["tech"]),
        language=rng.choice(WORDS["programming"]),
        table=rng.choice(WORDS["table"]),
        column=rng.choice(WORDS["column"]),
        rows=rng.randint(3, 10),
        other=rng.choice(["set", "tuple", "dictionary", "queue"]),
        topic=rng.choice(WORDS["topic"]),
        pattern=rng.choice(WORDS["pattern"]),
        chore=rng.choice(WORDS["chore"]),
        product=rng.choice(WORDS["product"]),
        methods=rng.randint(2, 5),
        command=rng.choice(WORDS["command"]),
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
