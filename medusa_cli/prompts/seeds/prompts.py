"""Made-up conversations of many kinds: an endless, repeatable stream for models that are given no prompts.

Templates are crossed with hundreds of subjects, numbers and texts; no prompt comes twice from one stream.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from medusa_cli.prompts.seeds.data import TEMPLATES, WORDS
from medusa_cli.prompts.seeds.problems import PROBLEMS

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
_SLOT = re.compile(r"\{([a-z]+)\d?\}")


@dataclass(frozen=True)
class Conversation:
    """User turns; the answers between them are the model's own. source: a word for where they came from, one of WEIGHTS
    where they are made up."""

    turns: tuple[str, ...]
    system: str | None = None
    source: str = "given"

    @property
    def group(self) -> str:
        """Conversations that open alike belong together: they are held out together."""
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
