"""Names on the Hub that somebody may have meant. Nothing here fails: no answer is no suggestion."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable
from typing import Any

from medusa_cli.hub.repository import REPO

MOST_QUERIES = 4
MOST_RESULTS = 50
SHOWN = 3
ALIKE = 0.75


def similar(repo: str, known: Iterable[str] = ()) -> list[str]:
    """Repositories with GGUF files whose names come close, the closest first. known: more of them to weigh."""
    owner, _, name = repo.partition("/")
    words = re.split(r"[-_.]", name)
    starts = [name, *(name[: len("-".join(words[:count]))] for count in (len(words) // 2, 1) if count)]
    queries: list[dict[str, Any]] = [{"author": owner}, *({"search": start} for start in dict.fromkeys(starts))]
    found = dict.fromkeys(known)
    for query in queries[:MOST_QUERIES]:
        found |= dict.fromkeys(_models(filter="gguf", **query))
    scored = sorted(((_likeness(repo, one), one) for one in found), reverse=True)
    return [one for score, one in scored if score >= ALIKE][:SHOWN]


def _likeness(one: str, other: str) -> float:
    """0 to 1; what follows the owner counts most."""
    ratios = [
        difflib.SequenceMatcher(None, mine, theirs).ratio()
        for mine, theirs in zip(one.lower().split("/"), other.lower().split("/"), strict=True)
    ]
    return 0.25 * ratios[0] + 0.75 * ratios[1]


def quantized(repo: str) -> list[str]:
    """Repositories with GGUF files of this model, those that most people fetch first."""
    return _models(filter=["gguf", f"base_model:quantized:{repo}"])[:SHOWN]


def _models(**query: Any) -> list[str]:
    from huggingface_hub import HfApi

    found: list[str] = []
    with contextlib.suppress(Exception):
        for model in HfApi().list_models(**query, sort="downloads", limit=MOST_RESULTS):
            if REPO.fullmatch(model.id):
                found.append(model.id)
    return found
