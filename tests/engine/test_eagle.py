"""EAGLE-3: the drafts of llama.cpp's own driver, and the text of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from architectures import TOKENS
from draft_comparison import chain, check_chosen_rows, drafts_of
from draft_references import EAGLE, read_references
from eagle_models import EAGLE_MODELS, write_eagle, write_target

from medusa_cli import native

REFERENCES = {f"{one.name}-{one.agree}": one for one in read_references(EAGLE)}
AGREEING = [name for name, one in REFERENCES.items() if one.agree]
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]


class Pair:
    """A made-up model and the drafter for it."""

    def __init__(self, folder: Path, name: str, agree: bool) -> None:
        target = write_target(folder / f"{name}.gguf", name, agree=agree)
        drafter = write_eagle(folder / f"eagle3-{name}.gguf", name, agree=agree)
        self.model = native.Model(str(target), n_gpu_layers=0)
        self.eagle = native.Model(str(drafter), n_gpu_layers=0, next_layers=True)

    def session(self, **how: Any) -> native.Session:
        return native.Session(self.model, drafter=self.eagle, n_ctx=1024, n_threads=1, **how)

    def plain(self) -> native.Session:
        return native.Session(self.model, n_ctx=1024, n_threads=1)


@pytest.mark.parametrize("name", REFERENCES)
def test_drafts_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    """Through refused drafts, cuts in prompts and answers, and new texts. The fixture knows how close the target's
    choices were, not a draft's: one in a hundred may be a tie that rounds otherwise."""
    reference = REFERENCES[name]
    pair = Pair(tmp_path, reference.name, bool(reference.agree))
    drafts, same, others = drafts_of(pair.session(tree=chain(reference.drafts)), reference)
    assert drafts == sum(len(turn.steps) - 1 for turn in reference.turns) > 250
    assert same >= 0.99 * drafts, others


@pytest.mark.parametrize("name", AGREEING)
def test_agreeing_pairs_draft_right_often(name: str) -> None:
    """Otherwise the fixture would hold hardly any accepted draft."""
    steps = [step for turn in REFERENCES[name].turns for step in turn.steps]
    assert 2 <= 1 + sum(step.accepted for step in steps) / len(steps) <= 4


@pytest.mark.parametrize("way", ["chain", "tree", "dynamic"])
@pytest.mark.parametrize("name", EAGLE_MODELS)
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, name: str, way: str) -> None:
    """From prompts of one token on: before the first one, there is no state that a draft could begin with."""
    pair = Pair(tmp_path, name, agree=True)
    if way == "tree" and pair.model.is_recurrent:
        pytest.skip("its states take chains only")
    tree = {"chain": chain(4), "tree": native.Tree(TREE), "dynamic": None}[way]
    session = pair.session(tree=tree, dynamic=native.DynamicTree() if way == "dynamic" else None)
    for length in (1, 2, 30, 200):
        prompt = [(7 * length + 31 * token) % TOKENS for token in range(length)]
        answer = session.generate(prompt, max_tokens=60, ignore_eos=True)
        assert answer.tokens == pair.plain().generate(prompt, max_tokens=60, ignore_eos=True).tokens
        # How often prices ask for drafts depends on the clock, and drafters of tiny targets cost much.
        assert way == "dynamic" or sum(map(len, answer.paths)) > 1.3 * len(answer.paths), "hardly any draft was right"


@pytest.mark.parametrize("name", ["plain", "residual", "fc", "qwen35"])
def test_drafts_from_some_rows_of_the_output_matrix(tmp_path: Path, name: str) -> None:
    pair = Pair(tmp_path, name, agree=True)
    check_chosen_rows(lambda rows: pair.session(tree=chain(3), draft_rows=rows), pair.plain(), 96)


def test_a_vocabulary_of_its_own_serves_whole(tmp_path: Path) -> None:
    """However many rows are wanted."""
    pair = Pair(tmp_path, "d2t", agree=True)
    prompt = list(range(40))
    drafts = [
        pair.session(tree=chain(3), draft_rows=rows).generate(prompt, max_tokens=60, ignore_eos=True).drafts
        for rows in (None, 0, 64)
    ]
    assert drafts[0] == drafts[1] == drafts[2]


def test_fewer_rows_than_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(native.NativeError, match="draft_rows is -1"):
        Pair(tmp_path, "plain", agree=False).session(tree=chain(1), draft_rows=-1)
