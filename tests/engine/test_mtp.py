"""Layers for further tokens (MTP): the drafts of llama.cpp's own driver, and the text of plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draft_comparison import chain, check_chosen_rows, drafts_of
from draft_references import MTP, read_references
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model

from medusa_cli import native

REFERENCES = {f"{one.name}-{one.agree}": one for one in read_references(MTP)}


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

    def session(self, **how: Any) -> native.Session:
        return native.Session(self.model, drafter=self.mtp, n_ctx=1024, n_threads=1, **how)


@pytest.mark.parametrize("name", REFERENCES)
def test_drafts_are_those_of_llama_cpp(tmp_path: Path, name: str) -> None:
    """Through refused drafts, cuts in prompts and answers, and new texts. The fixture knows how close the target's
    choices were, not a draft's: one in a hundred may be a tie that rounds otherwise."""
    reference = REFERENCES[name]
    pair = Pair(tmp_path, reference.name, reference.agree)
    drafts, same, others = drafts_of(pair.session(tree=chain(reference.drafts)), reference)
    assert drafts == sum(len(turn.steps) - 1 for turn in reference.turns) > 250
    assert same >= 0.99 * drafts, others


@pytest.mark.parametrize("name", ["qwen35", "glm4moe", "deepseek2"])
def test_drafts_from_some_rows_of_the_output_matrix(tmp_path: Path, name: str) -> None:
    pair = Pair(tmp_path, name, agree=0.67)
    plain = native.Session(pair.model, n_ctx=1024, n_threads=1)
    check_chosen_rows(lambda rows: pair.session(tree=chain(1), draft_rows=rows), plain, 96)
