"""The text that heads learn from: the model writes it, if the devices have the memory, or reads what a file gives."""

from __future__ import annotations

import time

from medusa_cli import native
from medusa_cli.decoding import offload
from medusa_cli.decoding.context_size import bytes_per_token
from medusa_cli.support import machine
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.progress import phase

from ..options import TrainOptions
from ..reporting import say
from ..text.corpus import Corpus
from ..text.dialogs import MAX_TURN, PromptSource
from ..text.generate import MAX_PROMPT, TextWriter, longest_answer
from ..text.given import Dialog, GivenTexts
from . import Setup
from .planning import Schedule

USUAL_PROMPT = 256
"""Few prompts are longer. Tokens."""


def collect_text(setup: Setup, corpus: Corpus, source: PromptSource | list[Dialog], schedule: Schedule) -> float:
    """Fills `corpus` until the schedule has enough; adds nothing if an earlier call of the same kind had. source: of
    prompts, or conversations with answers. Returns the seconds that this took, over all calls.

    Stopped after Ctrl-C: complete answers are then on disk.
    """
    options = setup.options
    asked, before = options.asked_amount(), float(corpus.state.get("seconds", 0.0))
    if corpus.state.get("complete") == asked:
        return before
    begin, unfinished = time.monotonic(), 0

    def seconds() -> float:
        return before + time.monotonic() - begin

    def tokens_left() -> float:
        return schedule.tokens_left(corpus.tokens + unfinished, seconds())

    if tokens_left() > 0:
        writer = _writer(setup, corpus, source)
        title = "Reading text" if isinstance(source, list) else "Writing text"
        with phase(options.console, title, "tokens") as bar:

            def on_tokens(count: int) -> None:
                nonlocal unfinished
                unfinished = count
                corpus.state["seconds"] = seconds()
                have = corpus.tokens + unfinished
                bar.update(have, have + max(0.0, tokens_left()))

            writer.run(
                tokens_left,
                should_stop=lambda: setup.interrupt.requested,
                on_tokens=on_tokens,
                time_is_up=lambda: schedule.tokens is None and tokens_left() <= 0,
            )
        if writer.too_long:
            limit = f"{writer.max_prompt} tokens (the model's context less its answer)"
            say(options.console, f"Skipped {writer.too_long} prompts of over {limit}")
        if not isinstance(source, list) and source.too_long:
            say(options.console, f"Skipped {source.too_long} conversations that open with over {MAX_TURN} characters")
    setup.interrupt.check()
    taken = seconds()
    corpus.state.update(complete=asked, seconds=taken)
    corpus.flush()
    return taken


def _writer(setup: Setup, corpus: Corpus, source: PromptSource | list[Dialog]) -> TextWriter | GivenTexts:
    options, model = setup.options, setup.open()
    if isinstance(source, list):
        return GivenTexts(model, corpus, source, options.text, options.threads)
    texts = texts_that_fit(options, model)
    if texts < options.parallel:
        say(options.console, f"{texts} texts at a time: there is no memory for {options.parallel}")
    return TextWriter(
        model,
        corpus,
        source,
        seed=options.seed,
        parallel=texts,
        threads=options.threads,
        self_written=options.data is None,
        recipe=options.text,
    )


def texts_that_fit(options: TrainOptions, model: native.Model) -> int:
    """How many texts can be written at a time: as many as was asked for, on a CPU as far as the memory holds their
    caches beside the model."""
    _, available = machine.memory()
    each = bytes_per_token(str(options.model), "f16", "f16")
    if model.gpu or available is None or each == 0:
        return options.parallel
    prompt = USUAL_PROMPT if native.buffers_are_lazy() else MAX_PROMPT
    text = each * (longest_answer(model.n_ctx_train, options.text) + prompt)
    return max(1, min(options.parallel, int((available - model.size_bytes) / text)))


def check_memory(options: TrainOptions) -> None:
    """Estimates, before anything is loaded, whether the text can be written on the devices at all. MedusaError, with
    what would fit, if the layers do not fit even with the shortest prompts."""
    known = native.system_info()["devices"]
    used = offload.used_devices(None, known)
    if options.n_gpu_layers == 0 or not used or any(device.free is None for device in used):
        return
    file = native.read_gguf(str(options.model))
    shape = offload.shape_of(file)
    most = len(shape.layers) + 1
    count = most if options.n_gpu_layers < 0 else min(options.n_gpu_layers, most)
    context = int(file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length", 0))
    answer = longest_answer(context, options.text)
    if _fits(shape, answer, options.parallel, count, used):
        return
    most_layers = max(n for n in range(count) if _fits(shape, answer, options.parallel, n, used))
    remedies = [f"-ngl {most_layers}"]
    fewer = (texts for texts in range(options.parallel - 1, 0, -1) if _fits(shape, answer, texts, count, used))
    if (texts := next(fewer, None)) is not None:
        remedies.append(f"parallel = {texts} in a recipe")
    raise MedusaError(
        f"{options.model} does not fit on {offload.described(used)} with {options.parallel} texts at a time; by "
        f"estimate, {' or '.join(remedies)} would"
    )


def _fits(shape: offload.Shape, answer: int, texts: int, count: int, devices: list[offload.Device]) -> bool:
    """Whether it fits into all the free memory: a margin is for what one could do without."""
    context = offload.Context(answer + 1, sequences=texts)
    return offload.needed(shape, context, count) <= sum(device.free or 0 for device in devices)
