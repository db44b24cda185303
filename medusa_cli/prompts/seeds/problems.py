"""Prompts with made-up numbers, names and code: mathematics, reasoning, programming, extraction."""

from __future__ import annotations

import random
from collections.abc import Callable

from medusa_cli.prompts.seeds import words
from medusa_cli.prompts.seeds.snippets import BUGGY, SNIPPETS, TASKS

Problem = Callable[[random.Random], str]


def _two(rng: random.Random, items: list[str]) -> list[str]:
    return rng.sample(items, 2)


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
    name, other = _two(rng, words.NAMES)
    thing, place = rng.choice(words.OBJECTS), rng.choice(words.PLACES)
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


def logic(rng: random.Random) -> str:
    first, second, third = rng.sample(words.NAMES, 3)
    job, other = _two(rng, words.JOBS)
    thing = rng.choice(words.OBJECTS)
    start, step = rng.randint(1, 9), rng.randint(2, 7)
    row = ", ".join(str(start + step * i + i * (i - 1) // 2) for i in range(5))
    return rng.choice(
        [
            f"{first} is taller than {second}, and {second} is taller than {third}. Who is the shortest?",
            f"All {job}s in the village own a boat. {first} owns a boat. Is {first} a {job}? Explain.",
            f"What comes next: {row}, ...? Explain the rule.",
            f"{first}, {second} and {third} sit in a row. {first} is not at an end and {third} is on the left. "
            "Who is where?",
            f"If it rains, {first} takes the bus. {first} walked today. What can we conclude?",
            f"One of {first}, {second} and {third} took the {thing}. {first} says it was {second}; {second} says it "
            f"was {third}; {third} says nothing. Only one statement is true. Who took them?",
            f"{first} is a {job} or a {other}, but not both. {first} is not a {other}. What follows?",
            f"There are {step + 3} {thing} on a table. {first} takes {step} of them. How many does {first} have?",
            f"{first} says: 'I always lie.' Can this be true? Discuss.",
            "A farmer has to bring a dog, a hen and a sack of corn across a river, one at a time. How should "
            f"{first} do it?",
            f"{first}'s mother has three children: one is called {second}, one {third}. What is the third one called?",
            f"Yesterday was two days before Friday. What day is it tomorrow? And in {step * 10} days?",
            f"Rearrange these events in a sensible order: {first} pays, {first} sits down, {first} orders, "
            f"{first} leaves.",
            f"Some {job}s are {other}s. All {other}s like tea. Does it follow that some {job}s like tea?",
            f"{first} walks {step} km north, {start} km east and {step} km south. How far is the starting point?",
            f"Which weighs more: {start} kg of feathers or {start} kg of iron? And which takes up more space?",
        ]
    )


def programming(rng: random.Random) -> str:
    task, language = rng.choice(TASKS), rng.choice(words.PROGRAMMING)
    return rng.choice(
        [
            f"Write a {language} function that {task}.",
            f"Write a {language} function that {task}. {rng.choice(_EXTRAS)}",
            f"Implement a function in {language} which {task}.",
            f"In {language}, how do I write something that {task}?",
            f"Create a small {language} program that {task}.",
            f"I need a {language} script that {task}. {rng.choice(_EXTRAS)}",
            f"Show me two different ways to write a {language} function that {task}.",
            f"Describe in pseudocode an algorithm that {task}.",
        ]
    )


_EXTRAS = [
    "Include an example call.",
    "Add comments.",
    "Handle invalid input.",
    "Explain how it works.",
    "Keep it as short as possible.",
    "Do not use any libraries.",
    "Write tests for it too.",
    "State its complexity.",
]


def about_code(rng: random.Random) -> str:
    snippet, broken = rng.choice(SNIPPETS), rng.choice(BUGGY)
    return rng.choice(
        [
            f"What does this code do?\n\n```\n{snippet}\n```",
            f"Explain this code line by line:\n```\n{snippet}\n```",
            f"Rewrite this in {rng.choice(words.PROGRAMMING)}:\n```\n{snippet}\n```",
            f"Write a docstring and {rng.randint(2, 4)} tests for the following function.\n\n```\n{snippet}\n```",
            "How could this code be made "
            f"{rng.choice(['faster', 'clearer', 'safer', 'shorter'])}?\n```\n{snippet}\n```",
            f"This code does not work. Find the error.\n\n```\n{broken}\n```",
            f"```\n{broken}\n```\nWhy is the result wrong, and how do I fix it?",
            f"Review this function:\n```\n{broken}\n```",
        ]
    )


def code_concept(rng: random.Random) -> str:
    concept, language = rng.choice(words.TECH), rng.choice(words.PROGRAMMING)
    table = rng.choice(["orders", "students", "books", "flights", "employees", "songs"])
    column = rng.choice(["price", "age", "year", "distance", "salary", "length"])
    return rng.choice(
        [
            f"Explain {concept} with a {language} example.",
            f"What are best practices for {concept} in {language}?",
            f"Write a SQL query that returns the {rng.randint(3, 10)} rows of the table {table} with the highest "
            f"{column}.",
            f"Given a table {table} with a column {column}, write a query for the average {column} per month.",
            f"What is the difference between a list and a {rng.choice(['set', 'tuple', 'dictionary', 'queue'])} "
            f"in {language}?",
            f"Write an HTML page about {rng.choice(words.ANYTHING)} with a heading, a paragraph and a list.",
            f"Write a regular expression that matches {rng.choice(_PATTERNS)}.",
            f"How do I {rng.choice(_CHORES)} in {language}?",
            f"Design a class for {rng.choice(words.PRODUCTS)} in {language} with {rng.randint(2, 5)} methods.",
            f"Write a shell command that {rng.choice(_COMMANDS)}.",
        ]
    )


_PATTERNS = [
    "a date such as 2024-03-17", "a time in 24-hour form", "an email address", "a hexadecimal colour", "a "
    "licence plate",
    "words that start with a capital letter", "numbers with two decimals", "lines that end with a semicolon",
]  # fmt: skip
_CHORES = [
    "read a text file line by line", "sort a list of objects by two keys", "parse JSON", "measure how long a "
    "call takes",
    "download a file", "split a string", "format a date", "catch an error", "read command-line arguments",
    "generate a random password", "connect to a database", "write a log file", "run code every ten minutes",
]  # fmt: skip
_COMMANDS = [
    "finds the ten largest files in a folder", "counts the lines of all .txt files", "renames all .jpeg files to .jpg",
    "shows which process uses the most memory", "replaces a word in all files", "lists files changed today",
]  # fmt: skip


def _person(rng: random.Random) -> str:
    return f"{rng.choice(words.NAMES)} {rng.choice(words.SURNAMES)}"


def records(rng: random.Random) -> str:
    count = rng.randint(3, 6)
    people = [_person(rng) for _ in range(count)]
    jobs, cities = rng.sample(words.JOBS, count), rng.sample(words.PLACES, count)
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
            f"{name} ({age}) from {city} spent ${amount} on {rng.choice(words.OBJECTS)}."
            for name, _, city, age, amount in rows
        )
    question = rng.choice(
        [
            "Who is the oldest person?",
            "List the names in alphabetical order.",
            "Turn this into a JSON array.",
            "Make a table of names and ages.",
            "Extract all place names, separated by commas.",
            "How many people are younger than 40?",
            "Write one sentence about each person.",
            "What is the sum of all numbers mentioned?",
            "Return only the surnames, one per line.",
        ]
    )
    return f"{question}\n\n{text}" if rng.random() < 0.5 else f"{text}\n{question}"


def message_facts(rng: random.Random) -> str:
    name, city = _person(rng), rng.choice(words.PLACES)
    day, month = rng.randint(1, 28), rng.choice(["January", "March", "May", "June", "August", "October", "November"])
    number, price = rng.randint(1000, 9999), rng.randint(12, 480)
    thing = rng.choice(words.PRODUCTS)
    text = rng.choice(
        [
            f"Dear {name}, your order {number} ({thing}) was shipped to {city} on {day} {month}. Total: ${price}.99.",
            f"Booking {number}: room for {name}, arrival {day} {month}, {rng.randint(1, 6)} nights in {city}, "
            f"${price} per night.",
            f"Hi, this is {name}. I bought {thing} on {day} {month} for ${price} and it broke in {city}. My "
            f"number is {number}.",
            f"Meeting on {day} {month} at {rng.randint(8, 17)}:30 in {city}. {name} presents {thing}. Room {number}.",
        ]
    )
    task = rng.choice(
        [
            "Extract name, date, place and amount",
            "Which facts does this message contain? List them",
            "Fill in: who, what, when, where",
            "Return the date in the form YYYY-MM-DD and the name in capital letters",
            "Convert this message to JSON with sensible keys",
            "Reply to this message politely",
        ]
    )
    return f"{task}: {text}" if rng.random() < 0.6 else f"{text}\n\n{task}."


PROBLEMS: dict[str, list[Problem]] = {
    "math": [arithmetic, algebra, word_problem, word_problem, geometry],
    "reasoning": [logic],
    "coding": [programming, programming, about_code, code_concept],
    "extraction": [records, message_facts],
}
