"""Made-up conversations of many kinds: an endless, repeatable stream for models without given prompts.

Templates are crossed with hundreds of subjects, numbers and texts; no prompt comes twice in one stream.
"""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jinja2 import Environment, StrictUndefined, Template

from medusa_cli.prompts.seeds.data import CODE, TEMPLATES, WORDS

Problem = Callable[[random.Random], str]

WEIGHTS = {
    "writing": 14,
    "roleplay": 8,
    "reasoning": 5,
    "thinking": 4,
    "math": 9,
    "coding": 14,
    "extraction": 6,
    "reading": 5,
    "stem": 9,
    "humanities": 9,
    "chat": 6,
    "editing": 5,
    "lists": 5,
    "howto": 7,
    "translation": 2,
}
"""How often each kind comes, per hundred and a bit."""

FOLLOW_UP_SHARE = 0.35
SYSTEM_SHARE = 0.12
SUFFIX_SHARE = 0.22
POLITE_SHARE = 0.08
CASUAL_SHARE = 0.08

_FREE_FORM = ("writing", "stem", "humanities", "lists", "howto", "thinking", "roleplay")
_ALTERNATIVES = re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa]) (?=(?!one|uni|use|eu)[aeiou])")
_SLOTTED = Environment(variable_start_string="{", variable_end_string="}", undefined=StrictUndefined)
_SLOT = re.compile(r"\{([a-z]+)\d?\}")


@dataclass(frozen=True)
class Conversation:
    """User turns; the answers between them are the model's own. source: a word for where they came from; one of WEIGHTS
    if made up."""

    turns: tuple[str, ...]
    system: str | None = None
    source: str = "given"

    @property
    def group(self) -> str:
        """Conversations that open alike belong to one group: they are held out together."""
        return hashlib.sha256(self.turns[0].strip().lower().encode("utf-8", "replace")).hexdigest()[:16]


def fill(template: str, rng: random.Random) -> str:
    """A template with its alternatives chosen and its slots filled; slots of one name never hold the same value."""
    while (found := _ALTERNATIVES.search(template)) is not None:
        choice = rng.choice(found[1].split("|"))
        template = template[: found.start()] + choice + template[found.end() :]
    used: set[str] = set()

    def value(match: re.Match[str]) -> str:
        options = WORDS[match[1]]
        chosen = rng.choice(options)
        while chosen in used:
            chosen = rng.choice(options)
        used.add(chosen)
        return chosen

    text = _SLOT.sub(value, template)
    return with_articles(re.sub(r" +([.?!,]|$)", r"\1", text).strip())


def with_articles(text: str) -> str:
    """ "a engineer" -> "an engineer"."""
    return _ARTICLE.sub(r"\1n ", text)


def follow_up(rng: random.Random, kind: str = "any") -> str:
    """A second user turn that fits any answer, or answers of one kind."""
    own = TEMPLATES.get(f"after {kind}")
    templates = own if own and rng.random() < 0.5 else TEMPLATES["after any"]
    return fill(rng.choice(templates), rng)


def iter_conversations(seed: int) -> Iterator[Conversation]:
    """The stream that belongs to `seed`, of one or two turns each."""
    rng = random.Random(f"conversations {seed}")
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    seen: set[str] = set()
    while True:
        kind = rng.choices(kinds, weights)[0]
        prompt = _vary(_prompt(kind, rng), kind, rng)
        key = prompt.lower()
        if key in seen:
            continue
        seen.add(key)
        later = (follow_up(rng, kind),) if rng.random() < FOLLOW_UP_SHARE else ()
        system = rng.choice(TEMPLATES["system"]) if rng.random() < SYSTEM_SHARE else None
        yield Conversation((prompt, *later), system, kind)


def _prompt(kind: str, rng: random.Random) -> str:
    if kind in PROBLEMS:
        return with_articles(rng.choice(PROBLEMS[kind])(rng))
    return fill(rng.choice(TEMPLATES[kind]), rng)


def _vary(prompt: str, kind: str, rng: random.Random) -> str:
    """The same request as different people would type it."""
    if kind in _FREE_FORM and rng.random() < SUFFIX_SHARE:
        prompt = f"{prompt} {rng.choice(TEMPLATES['suffix'])}"
    if rng.random() < POLITE_SHARE:
        prompt = f"{rng.choice(TEMPLATES['lead'])} {prompt}"
    elif rng.random() < CASUAL_SHARE and "\n" not in prompt:
        prompt = prompt.lower().rstrip(".")
    return prompt


# --- prompts with made-up numbers, names and code: mathematics, reasoning, programming, extraction --


def _filled(heading: str, rng: random.Random, **slots: object) -> str:
    """One of the templates under `heading`. All slots are drawn each time, even those that it does not have."""
    return _compiled(rng.choice(TEMPLATES[heading])).render(slots)


@functools.cache
def _compiled(template: str) -> Template:
    return _SLOTTED.from_string(template)


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
