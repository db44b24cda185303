"""`medusa train`: text and hidden states from the model itself, heads from torch, a GGUF in the end."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from pathlib import Path

from medusa_cli.decoding import trial
from medusa_cli.models.base_file import BaseModel, read_base
from medusa_cli.support import paths
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import check_name
from medusa_cli.support.locks import only_user

from .heads.torch_setup import deterministic, pick_device, require_torch
from .interrupts import Interrupt, Stopped, interrupt_flag
from .leftovers import remove_leftovers
from .options import TrainOptions
from .report.messages import TrainResult, announce, report, say
from .streams.recipe import STREAMS
from .text.corpus import Corpus
from .text.dataset import examples_of
from .text.dialogs import FileSource, PromptSource, SeedSource

IN_USE = "wait until it has ended, or give another --work-dir or --seed"


def run(options: TrainOptions) -> TrainResult:
    """Trains heads and writes options.output, whole or not at all.

    Progress goes to options.console. Ctrl-C saves and raises KeyboardInterrupt; the same call continues. MedusaError
    for everything a person can put right.
    """
    options.check()
    for path in (options.model, options.output, options.work_dir):
        if path is not None:
            check_name(path)
    require_torch()
    base = read_base(options.model)
    if base.parts > 1 and not options.sidecar:
        raise MedusaError(
            f"{options.model}: a model of {base.parts} files cannot hold its heads: leave out -o, or add --sidecar"
        )
    trial.run(options.model)
    source = FileSource(options.data) if options.data else SeedSource(options.seed)
    folder = work_folder(options, base)
    with only_user(folder, IN_USE):
        remove_leftovers(folder, options.output)
        result, written = _run_interruptibly(options, base, folder, source)
    report(options.console, result, written)
    return result


def _run_interruptibly(
    options: TrainOptions, base: BaseModel, folder: Path, source: PromptSource
) -> tuple[TrainResult, list[Path]]:
    """_run_phases(); KeyboardInterrupt after Ctrl-C, with everything saved."""
    with interrupt_flag() as interrupt, deterministic(options.threads):
        try:
            return _run_phases(options, base, folder, source, interrupt)
        except Stopped:
            say(options.console, f"Saved in {folder}. The same command continues from here.")
            raise KeyboardInterrupt from None


def _run_phases(
    options: TrainOptions, base: BaseModel, folder: Path, source: PromptSource, interrupt: Interrupt
) -> tuple[TrainResult, list[Path]]:
    """From the base model to the files written beside the output. Stopped after Ctrl-C, with everything saved."""
    # Not earlier: these import torch, for which require_torch() makes ready.
    from .phases import collect, finish, fitting, joint, planning, prepare, streams, streams_run
    from .phases.room import check_room
    from .phases.setup import Setup

    corpus = Corpus(folder / "text", base.n_embd)
    if corpus.state.get("complete") != options.asked_amount():
        check_room(options)
    announce(options, base, corpus)
    setup = Setup(options, base, folder, pick_device(), interrupt)
    is_streams = options.kind == STREAMS
    found = joint.check_model(setup) if options.joint and not is_streams else None
    if is_streams:
        streams.check_model(setup)
    plan_time = streams.plan_time if is_streams else planning.plan_time
    text = collect.collect_text(setup, corpus, source, plan_time(setup))

    begin = time.monotonic()
    data = prepare.read_data(setup, corpus)
    vocabulary = prepare.pick_vocabulary(setup, data)
    schedule = plan_time(setup, len(vocabulary.d2t))
    rows = prepare.open_rows(setup, corpus, data, vocabulary)
    seconds = text.seconds + time.monotonic() - begin
    if is_streams:
        return streams_run.train_streams(setup, corpus, data, vocabulary, rows, schedule, text, seconds)

    examples = examples_of(data.tokens, data.split.train, vocabulary.t2d, options.heads)
    plan = planning.plan_fit(setup, examples, schedule, seconds, len(vocabulary.d2t))
    fitted = fitting.fit_heads(setup, data, vocabulary, rows.source, examples, plan)

    trained, changed, alone = fitted.heads, None, None
    if found is not None:
        seconds += fitted.seconds
        if options.heads_first:
            alone = finish.measure(setup, data, finish.ranking(data, vocabulary, rows, trained)).by_size
        changed = joint.train_jointly(setup, corpus, data, vocabulary, rows, fitted, found, seconds)
        setup, data, rows, trained = replace(setup, base=changed.base), changed.data, changed.rows, changed.heads
    result = finish.measure(setup, data, finish.ranking(data, vocabulary, rows, trained))
    finish.write_heads(setup, finish.content(setup, vocabulary, rows, trained, result))
    written = finish.write_record(setup, text, data, vocabulary, fitted, result, changed, alone)
    if changed is not None:
        joint.finish(setup, changed)
        finish.say_gain(setup, alone, result)
    return result, written


def work_folder(options: TrainOptions, base: BaseModel) -> Path:
    """Where this run keeps its text: the same for runs whose text is the same."""
    prompts = _file_hash(options.data) if options.data else "own"
    key = hashlib.sha256(f"{base.content} {prompts} {options.seed}{options.text.key}".encode()).hexdigest()[:12]
    parent = options.work_dir or paths.cache_dir() / "train"
    return parent / f"{base.fingerprint}-{key}"


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise MedusaError(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.hexdigest()
