"""Our drafts beside those of llama.cpp's own drivers."""

from __future__ import annotations

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
