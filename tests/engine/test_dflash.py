"""DFlash drafters: the drafts of llama.cpp's own driver, the text of plain decoding, and files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENS
from dflash_models import BLOCK, DFLASH_MODELS, write_dflash, write_dflash_target
from draft_comparison import chain, drafts_of
from draft_references import DFLASH, read_references

from medusa_cli import native

REFERENCES = {one.name: one for one in read_references(DFLASH)}
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]]


class Pair:
    def __init__(self, folder: Path, name: str, **how: Any) -> None:
        target, drafter = folder / f"{name}.gguf", folder / f"dflash-{name}.gguf"
        self.model = native.Model(str(write_dflash_target(target, name)), n_gpu_layers=0)
        self.drafter = native.Model(str(write_dflash(drafter, name, **how)), n_gpu_layers=0, next_layers=True)

    def session(self, **how: Any) -> native.Session:
        return native.Session(self.model, drafter=self.drafter, n_ctx=1024, n_threads=1, **how)

    def plain(self) -> native.Session:
        return native.Session(self.model, n_ctx=1024, n_threads=1)


@pytest.mark.parametrize("name", DFLASH_MODELS)
def test_drafts_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    """Through cuts in prompts and answers, and new texts. One in a hundred may be a tie that rounds otherwise."""
    reference = REFERENCES[name]
    assert reference.drafts == BLOCK - 1
    drafts, same, others = drafts_of(Pair(tmp_path, name).session(tree=chain(BLOCK - 1)), reference)
    assert drafts == sum(len(turn.steps) - 1 for turn in reference.turns) > 250
    assert same >= 0.99 * drafts, others


@pytest.mark.parametrize("way", ["chain", "tree", "dynamic"])
@pytest.mark.parametrize("name", DFLASH_MODELS)
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, name: str, way: str) -> None:
    """With lookup, several tokens of a step are accepted, and the drafter has to follow."""
    pair = Pair(tmp_path, name)
    if way == "tree" and pair.model.is_recurrent:
        pytest.skip("its states take chains only")
    how: dict[str, Any] = {"chain": {"tree": chain(4)}, "tree": {"tree": native.Tree(TREE)}}
    session = pair.session(**how.get(way, {"dynamic": native.DynamicTree()}), lookup=True)
    for length in (1, 2, 30, 200):
        prompt = [(7 * length + 31 * token) % 20 for token in range(length)]
        answer = session.generate(prompt, max_tokens=60, ignore_eos=True)
        assert answer.tokens == pair.plain().generate(prompt, max_tokens=60, ignore_eos=True).tokens


@pytest.mark.parametrize("name", DFLASH_MODELS)
def test_a_history_does_not_change_the_next_drafts(tmp_path: Path, name: str) -> None:
    """A session that was cut, saved and restored drafts what a fresh one does with the same text."""
    pair = Pair(tmp_path, name)
    prompt = [(31 * token) % TOKENS for token in range(50)]
    old = pair.session(tree=chain(3))
    for kept in (50, 20, 33):
        old.generate([*prompt[:kept], 7, 9], max_tokens=5, ignore_eos=True)
    state = np.empty(old.state_size, np.uint8)
    old.save_state(state)
    restored = pair.session(tree=chain(3))
    restored.restore_state(old.cached_tokens, state)
    fresh = pair.session(tree=chain(3))
    wanted = fresh.generate(prompt, max_tokens=8, ignore_eos=True).drafts
    assert old.generate(prompt, max_tokens=8, ignore_eos=True).drafts == wanted
    assert restored.generate(prompt, max_tokens=8, ignore_eos=True).drafts == wanted
