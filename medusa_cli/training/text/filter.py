"""Which part of an answer is worth training on, and what became of the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.decoding.loops import is_degenerate, loop_start

from .corpus import Corpus, NewText, Text
from .sources import KnownTexts

MIN_TEXT = 6
"""Shorter texts do not teach the deeper heads anything."""


class TextFilter:
    """Adds answers to a corpus, up to where they loop, without those that say what an earlier one said."""

    def __init__(self, model: native.Model, corpus: Corpus) -> None:
        self._model, self._corpus = model, corpus
        self._known = KnownTexts(tokens for _, tokens in corpus.stored())

    def keep(self, text: Text, prompt: list[int], tokens: list[int], states: NDArray[np.float16]) -> bool:
        """Whether any of an answer was added. text: of the whole answer; states [length, h]: as in NewText.

        Counts what there was and what became of it.
        """
        self._count("generated", text.source, len(tokens))
        kept = loop_start(tokens)
        states = np.array(states[:kept], dtype=np.float16)
        usable = kept >= MIN_TEXT and not is_degenerate(tokens[:kept]) and bool(np.isfinite(states).all())
        duplicate = usable and self._known.add(tokens[:kept])
        if duplicate:
            self._count("duplicates", text.source, kept)
        if duplicate or not usable:
            return False
        complete = kept == len(tokens) and self._model.is_eog(tokens[-1])
        text = replace(text, length=kept, complete=complete)
        self._corpus.add(NewText(text, np.array(tokens[:kept], np.int32), states, np.array(prompt, np.int32)))
        return True

    def _count(self, what: str, source: str, tokens: int) -> None:
        """Adds to the corpus's state, which is written together with its texts."""
        counts = self._corpus.state.setdefault(what, {})
        counts[source] = counts.get(source, 0) + tokens
