"""Spec-Bench's six kinds of text (Xia et al. 2024, arXiv:2401.07851), reported as its leaderboard does.

Its question file is JSON lines of `question_id`, `category`, `turns`; the eight categories of MT-Bench count as one
kind. A speedup is the questions' mean speed over plain decoding's, the time for the prompt included; mean accepted
tokens are the tokens per step, root included.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from medusa_cli.bench.protocol import Outcome
from medusa_cli.support.tables import Table, number

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
KINDS = {
    "multi-turn conversation": MT_BENCH,
    "translation": ("translation",),
    "summarization": ("summarization",),
    "question answering": ("qa",),
    "mathematical reasoning": ("math_reasoning",),
    "retrieval-augmented": ("rag",),
}
"""Categories of the file by kind, in the order of the leaderboard."""
OWN = {"translation", "summarization", "qa", "math_reasoning", "rag"}
"""Categories that distinguish its file from MT-Bench's."""
OVERALL = "overall"


Question = tuple[Outcome, float]
"""An answer, and the speed of plain decoding, the time for the prompt included."""


def is_its_file(categories: Iterable[str]) -> bool:
    """Whether prompts of these categories come from Spec-Bench."""
    return bool(OWN & set(categories))


def figures(questions: Sequence[Question]) -> dict[str, Any]:
    """By kind and OVERALL: `questions`, `speedup`, `mean_accepted_tokens`. Kinds without questions are left out."""
    parts = {kind: [q for q in questions if q[0].category in categories] for kind, categories in KINDS.items()}
    parts[OVERALL] = [q for part in parts.values() for q in part]
    return {kind: _of(part) for kind, part in parts.items() if part}


def _of(questions: Sequence[Question]) -> dict[str, Any]:
    steps = sum(answer.steps for answer, _ in questions)
    plain = statistics.mean(speed for _, speed in questions)
    return {
        "questions": len(questions),
        "speedup": statistics.mean(answer.whole_speed for answer, _ in questions) / plain if plain else None,
        "mean_accepted_tokens": sum(answer.committed for answer, _ in questions) / steps if steps else None,
    }


def tables(found: Mapping[str, Any]) -> list[Table]:
    """One table per name, so that they stay narrow."""
    result = []
    for name, kinds in found.items():
        rows = [
            (kind, str(of["questions"]), number(of["speedup"]), number(of["mean_accepted_tokens"]))
            for kind, of in kinds.items()
        ]
        result.append(Table(f"Spec-Bench: {name}", ("kind", "questions", "speedup", "accepted"), rows))
    return result
