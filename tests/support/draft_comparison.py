"""Our drafts beside those of llama.cpp's own drivers."""

from __future__ import annotations

from collections.abc import Callable

from architectures import TOKENS
from draft_references import Reference

from medusa_cli import native


def chain(length: int) -> native.Tree:
    return native.Tree([[0] * depth for depth in range(1, length + 1)])


def drafts_of(session: native.Session, reference: Reference) -> tuple[int, int, list[str]]:
    """How many drafts there are, how many are the reference's, and the first that are not.

    The reference drafts first after a prompt's last token, ours after the token that follows it: so the first step of
    each turn is part of our prompt.
    """
    text: list[int] = []
    drafts = same = 0
    others: list[str] = []
    for number, turn in enumerate(reference.turns):
        first, *steps = turn.steps
        prompt = text[: turn.kept] + turn.tokens + first.draft[: first.accepted]
        answer = session.generate(prompt, max_tokens=1 + sum(step.accepted + 1 for step in steps), ignore_eos=True)
        text = prompt + answer.tokens
        assert len(answer.drafts) == len(steps), f"turn {number}: another text"
        for step, ours in zip(steps, answer.drafts, strict=True):
            drafts += 1
            same += ours == [step.root, *step.draft]
            if ours != [step.root, *step.draft]:
                others.append(f"turn {number}: {ours} for {step}")
    return drafts, same, others[:3]


def check_chosen_rows(sessions: Callable[[int], native.Session], plain: native.Session, rows: int) -> None:
    """That drafts come from `rows` first tokens and the newest other ones of the text, and the text from the model.

    sessions: one whose drafter chooses from so many rows of its output matrix.
    """
    prompt = [(31 * token) % TOKENS for token in range(40)]
    wanted = plain.generate(prompt, max_tokens=80, ignore_eos=True).tokens
    answer = sessions(rows).generate(prompt, max_tokens=80, ignore_eos=True)
    assert answer.tokens == wanted
    drafted, text = set(), {*prompt, *wanted}
    for step in answer.drafts:
        drafted |= set(step[1:])
    others = {token for token in drafted if token >= rows}
    assert len(drafted) > 10
    assert others <= text | set(range(rows, rows + rows // 32)), "rows that are always there, or of the text"
    everything = sessions(0).generate(prompt, max_tokens=80, ignore_eos=True).drafts
    assert sessions(TOKENS).generate(prompt, max_tokens=80, ignore_eos=True).drafts == everything
    assert answer.drafts != everything, "nothing was left out"
