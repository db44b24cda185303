"""Text that the demo writes: what becomes of answers under way when time is up, and after Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medusa_cli import native
from medusa_cli.training.text.corpus import Corpus
from medusa_cli.training.text.dialogs import SeedSource
from medusa_cli.training.text.generate import TextWriter

pytestmark = pytest.mark.model
TOKENS = 12
"""Of each answer, when the run ends."""


class Run:
    """A run that ends in the middle of the first answers, four at a time."""

    def __init__(self, model: native.Model, folder: Path) -> None:
        self.corpus, self.unfinished = Corpus(folder, model.n_embd), [0]
        self.writer = TextWriter(model, self.corpus, SeedSource(1), seed=1, parallel=4, threads=1, self_written=False)

    def in_the_middle(self) -> bool:
        return max(self.unfinished) >= 4 * TOKENS


def test_when_time_is_up_unfinished_answers_count(tmp_path: Path, demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path))
    run = Run(model, tmp_path / "text")
    run.writer.run(lambda: 1e6, lambda: False, run.unfinished.append, time_is_up=run.in_the_middle)
    assert run.unfinished[-1] == 0
    stored = Corpus(tmp_path / "text", model.n_embd)
    assert [text.length for text in stored.texts] == [TOKENS] * 4
    assert not any(text.complete for text in stored.texts)
    assert np.concatenate(stored.open_states()).shape == (4 * TOKENS, model.n_embd)


def test_after_ctrl_c_they_do_not(tmp_path: Path, demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path))
    run = Run(model, tmp_path / "text")
    run.writer.run(lambda: 1e6, run.in_the_middle, run.unfinished.append)
    assert Corpus(tmp_path / "text", model.n_embd).texts == []
