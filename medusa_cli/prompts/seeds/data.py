"""What made-up prompts are made of: words, texts, code and templates, from the files in medusa_cli/data/seeds."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "data" / "seeds"


def _sections(name: str, end: str) -> dict[str, list[str]]:
    """{heading: items} of a file whose items stop at `end`; anything before its first heading is a comment."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    _, *parts = re.split(r"^== (.+)\n", text, flags=re.MULTILINE)
    return {
        heading: [item for item in map(str.strip, body.split(end)) if item]
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _unwrapped(sections: dict[str, list[str]]) -> dict[str, list[str]]:
    return {heading: [" ".join(item.split()) for item in items] for heading, items in sections.items()}


CODE = _sections("code.txt", "\n---\n")
TEMPLATES = {
    heading: [item.replace("\\n", "\n") for item in items]
    for heading, items in _sections("templates.txt", "\n").items()
}
WORDS = _unwrapped(_sections("words.txt", ";")) | _unwrapped(_sections("texts.txt", "\n\n"))
WORDS["stem"] = WORDS["science"] + WORDS["tech"] + WORDS["nature"]
WORDS["culture"] = WORDS["history"] + WORDS["humanities"]
WORDS["knowledge"] = WORDS["science"] + WORDS["tech"] + WORDS["culture"] + WORDS["nature"]
WORDS["everyday"] = [
    word for heading in ("food", "hobby", "home", "work", "health", "place") for word in WORDS[heading]
]
WORDS["topic"] = WORDS["knowledge"] + WORDS["everyday"]
PASSAGES = WORDS["passage"]
OPENERS = WORDS["opener"]
