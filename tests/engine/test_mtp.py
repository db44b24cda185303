"""Layers for further tokens (MTP): the drafts of llama.cpp's own driver, and the text of plain decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model
from mtp_reference import Reference, read_references

from medusa_cli import native

REFERENCES = {f"{one.name}-{one.agree}": one for one in read_references()}


def chain(length: int) -> native.Tree:
    return native.Tree([[0] * depth for depth in range(1, length + 1)])


class Pair:
    """A made-up model and the model that drafts for it: the same one, or an assistant."""

    def __init__(self, folder: Path, name: str, agree: float) -> None:
        path = write_mtp_model(folder / f"{name}.gguf", name, agree=agree)
        own = MTP_MODELS[name].layers > 0
        self.model = native.Model(str(path), n_gpu_layers=0, next_layers=own)
        self.mtp = self.model
        if not own:
            assistant = write_assistant(folder / "assistant.gguf", agree=agree)
            self.mtp = native.Model(str(assistant), n_gpu_layers=0, next_layers=True)

    def session(self, *, tree: native.Tree | None = None, dynamic: native.DynamicTree | None = None) -> native.Session:
        return native.Session(self.model, mtp=self.mtp, tree=tree, dynamic=dynamic, n_ctx=1024, n_threads=1)


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


@pytest.mark.parametrize("name", REFERENCES)
def test_drafts_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    """Through refused drafts, cuts in prompts and answers, and new texts. The fixture knows how close the target's
    choices were, not a draft's: one in a hundred may be a tie that rounds otherwise."""
    reference = REFERENCES[name]
    pair = Pair(tmp_path, reference.name, reference.agree)
    drafts, same, others = drafts_of(pair.session(tree=chain(reference.drafts)), reference)
    assert drafts == sum(len(turn.steps) - 1 for turn in reference.turns) > 250
    assert same >= 0.99 * drafts, others
