"""What llama.cpp drafts with made-up models and drafters of three kinds, as make_draft_fixtures.py stored it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
MTP, EAGLE, DFLASH = (DATA / f"{kind}_reference.json" for kind in ("mtp", "eagle", "dflash"))


@dataclass(frozen=True)
class Step:
    """root: the text's last token, which neither model has decoded. accepted: how many of the draft are the target's
    choice; its choice after them is the next root."""

    root: int
    draft: list[int]
    accepted: int


@dataclass(frozen=True)
class Turn:
    """kept: how many tokens of the text before stay; 0 begins a text. tokens: what follows, the first root last."""

    kept: int
    tokens: list[int]
    steps: list[Step]


@dataclass(frozen=True)
class Reference:
    """All turns in one context, one after another. name: of the models. drafts: tokens in a chain.

    agree: of write_mtp_model; in those of EAGLE-3, 1 for pairs that agree.
    """

    name: str
    agree: float
    drafts: int
    turns: list[Turn]


def read_references(path: Path) -> list[Reference]:
    """Two for each model, from MTP or EAGLE: of random weights, and of such that draft right often. One from DFLASH."""
    return [
        Reference(name, agree, drafts, [Turn(kept, tokens, _steps(flat, drafts)) for kept, tokens, flat in turns])
        for name, agree, drafts, turns in json.loads(path.read_text())
    ]


def _steps(flat: list[int], drafts: int) -> list[Step]:
    """flat: root, draft and number accepted of one step after another."""
    each = drafts + 2
    rows = (flat[start : start + each] for start in range(0, len(flat), each))
    return [Step(root, draft, accepted) for root, *draft, accepted in rows]


def write_references(path: Path, references: list[Reference]) -> None:
    """A line for each turn."""
    lines = []
    for reference in references:
        turns = ",\n".join(
            json.dumps([t.kept, t.tokens, [n for s in t.steps for n in (s.root, *s.draft, s.accepted)]])
            for t in reference.turns
        )
        lines.append(f'["{reference.name}", {reference.agree}, {reference.drafts}, [\n{turns}\n]]')
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
