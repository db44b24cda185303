"""A benchmark's prompts: the built-in set, or a file in the format of MT-Bench and Spec-Bench."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medusa_cli.support.errors import MedusaError

BUILT_IN_FILE = Path(__file__).parent.parent / "data" / "bench_prompts.jsonl"
DEFAULT_CATEGORY = "all"
EXAMPLE = '{"prompt": "..."} or {"question_id": 1, "category": "writing", "turns": ["..."]}'


@dataclass(frozen=True)
class Prompt:
    """The first user turn of one line. `id`: its question_id, else its line number."""

    id: str
    category: str
    text: str


def built_in() -> list[Prompt]:
    """Five prompts of each of ten kinds, none of which occur in the training prompts."""
    return read(BUILT_IN_FILE)


def read(path: Path) -> list[Prompt]:
    """Prompts of a JSON lines file. MedusaError names the wrong line, or says that there are none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except IsADirectoryError as error:
        raise MedusaError(f"{path} is a directory: give a JSON lines file") from error
    except FileNotFoundError as error:
        raise MedusaError(f"no such file: {path}: give JSON lines such as {EXAMPLE}") from error
    prompts = [_prompt(line, number, path) for number, line in enumerate(lines, start=1) if line.strip()]
    if not prompts:
        raise MedusaError(f"{path} holds no prompts: give JSON lines such as {EXAMPLE}")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise MedusaError(f"{path}: question_id {prompt.id} appears twice: give each line its own")
        seen.add(prompt.id)
    return prompts


def _prompt(line: bytes, number: int, path: Path) -> Prompt:
    where = f"{path}, line {number}"
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise MedusaError(f"{where}: not UTF-8 text: convert the file first") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise MedusaError(f"{where}: not JSON ({error}): give lines such as {EXAMPLE}") from error
    turns = row.get("turns") if isinstance(row, dict) else None
    text = turns[0] if isinstance(turns, list) and turns else row.get("prompt") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise MedusaError(f"{where}: no text in 'prompt' or 'turns': give lines such as {EXAMPLE}")
    category, id = row.get("category", DEFAULT_CATEGORY), row.get("question_id", f"line {number}")
    if not isinstance(category, str) or not category.strip():
        raise MedusaError(f"{where}: 'category' is not a text")
    if isinstance(id, bool) or not isinstance(id, (str, int)):
        raise MedusaError(f"{where}: 'question_id' is neither a number nor a text")
    return Prompt(str(id), category.strip(), text)


def spread(prompts: Sequence[Prompt], limit: int | None = None) -> list[Prompt]:
    """The first prompt of each category, then the second of each, and so on; at most `limit` of them.

    A run that is cut short has then seen all categories alike.
    """
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    rounds = max(map(len, by_category.values()), default=0)
    ordered = [of[number] for number in range(rounds) for of in by_category.values() if number < len(of)]
    return ordered[:limit]
