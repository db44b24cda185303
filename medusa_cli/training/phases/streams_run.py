"""The phases of streams behind the text: with a model that stays as it is, or with a new one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..heads.schedule import Schedule
from ..report.messages import TrainResult
from ..text.corpus import Corpus
from . import changed, finish, shared, streams
from .collect import CollectedText
from .prepare import DataSet, DraftVocabulary, PreparedRows
from .setup import Setup


def train_streams(
    setup: Setup,
    corpus: Corpus,
    data: DataSet,
    vocabulary: DraftVocabulary,
    rows: PreparedRows,
    schedule: Schedule,
    text: CollectedText,
    seconds: float,
) -> tuple[TrainResult, list[Path]]:
    """What was measured, and the files written beside the output. seconds: spent before. Stopped after Ctrl-C, with
    everything saved."""
    drafted, new = streams.train(setup, corpus, data, vocabulary, rows, schedule, seconds), None
    if setup.options.joint:
        new = shared.merge_shared(setup, data, rows, drafted)
        setup, drafted = replace(setup, base=new.base), new.fitted
    data = streams.measured(drafted, data)
    result = finish.measure(setup, data, drafted.rank)
    finish.write_heads(setup, streams.content(setup, vocabulary, drafted, result))
    written = finish.write_record(setup, text, data, vocabulary, drafted, result, new, None)
    if new is not None:
        changed.tell(setup, new.own, new.foreign, new.base.path)
    return result, written
