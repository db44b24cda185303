"""The model writes the text that its heads learn from."""

from __future__ import annotations

import time
from dataclasses import dataclass

from medusa_cli import native
from medusa_cli.support.progress import phase

from ..heads.schedule import Schedule
from ..report.messages import say
from ..text.corpus import Corpus
from ..text.dialogs import MAX_TURN, FileSource, PromptSource
from ..text.generate import TextWriter
from .setup import Setup


@dataclass(frozen=True)
class CollectedText:
    """What the corpus came to. tokens: in all its texts; seconds: writing took, over all calls."""

    tokens: int
    seconds: float


def collect_text(setup: Setup, corpus: Corpus, source: PromptSource, schedule: Schedule) -> CollectedText:
    """Fills `corpus` until the schedule has enough; writes nothing when an earlier call of the same kind had.

    Stopped after Ctrl-C: complete answers are on disk then.
    """
    asked, before = setup.options.asked_amount(), float(corpus.state.get("seconds", 0.0))
    if corpus.state.get("complete") == asked:
        return CollectedText(corpus.tokens, before)
    begin = time.monotonic()

    def seconds() -> float:
        return before + time.monotonic() - begin

    def tokens_left() -> float:
        return schedule.tokens_left(corpus.tokens, seconds())

    def should_stop() -> bool:
        return setup.interrupt.requested or (schedule.tokens is None and tokens_left() <= 0)

    if tokens_left() > 0:
        writer = _text_writer(setup, corpus, source)
        with phase(setup.options.console, "Writing text", "tokens") as bar:

            def on_tokens(unfinished: int) -> None:
                corpus.state["seconds"] = seconds()
                have = corpus.tokens + unfinished
                bar.update(have, have + max(0.0, tokens_left() - unfinished))

            writer.run(tokens_left, should_stop, on_tokens)
        _tell_too_long(setup, writer, source)
    setup.interrupt.check()
    taken = seconds()
    corpus.state.update(complete=asked, seconds=taken)
    corpus.flush()
    return CollectedText(corpus.tokens, taken)


def _text_writer(setup: Setup, corpus: Corpus, source: PromptSource) -> TextWriter:
    options = setup.options
    return TextWriter(
        native.Model(str(options.model), n_gpu_layers=options.n_gpu_layers),
        corpus,
        source,
        seed=options.seed,
        parallel=options.parallel,
        threads=options.threads,
        self_written=options.data is None,
        recipe=options.text,
    )


def _tell_too_long(setup: Setup, writer: TextWriter, source: PromptSource) -> None:
    """What part of the prompts was not answered, where some were not."""
    if writer.too_long:
        limit = f"{writer.max_prompt} tokens (the model's context less its answer)"
        say(setup.options.console, f"Skipped {writer.too_long} prompts of over {limit}")
    if isinstance(source, FileSource) and source.too_long:
        what = f"{source.too_long} conversations that open with over {MAX_TURN} characters"
        say(setup.options.console, f"Skipped {what}")
