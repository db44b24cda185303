"""`medusa train`: text and hidden states from the model itself, heads from torch, and finally a GGUF."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from medusa_cli.decoding import trial
from medusa_cli.models.assets import sha256
from medusa_cli.models.base_file import BaseModel, read_base
from medusa_cli.models.tensors import Tensors
from medusa_cli.support import paths
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import check_name
from medusa_cli.support.locks import only_user, only_writer

from .heads.torch_setup import deterministic, pick_device, require_torch
from .mtp.shape import read_shape
from .options import TrainOptions
from .recipes import DEFAULT_ANSWERS, MTP, STREAMS
from .reporting import TrainResult, TunedResult, announce, report, report_tuned, say
from .resuming import Interrupt, Stopped, remove_leftovers
from .text.corpus import Corpus
from .text.dialogs import FileSource, PromptSource, SeedSource
from .text.given import Dialog, load_dialogs

IN_USE = "wait until it has ended, or set another work_dir or seed in a recipe"


def run(options: TrainOptions) -> TrainResult:
    """Trains heads, streams or an MTP layer and writes options.output, whole or not at all.

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
    if base.parts > 1 and options.kind == MTP:
        raise MedusaError(f"{options.model}: the MTP layer of a model of {base.parts} files cannot be tuned: join them")
    if options.kind == MTP:
        read_shape(Tensors(base.path).header, options.heads)  # before anything is said or written
    trial.run(options.model)
    source = _source(options)
    folder = work_folder(options, base)
    outputs = [path for path in (options.output, options.export_hf, options.adapter) if path is not None]
    with only_user(folder, IN_USE), only_writer(*outputs):
        remove_leftovers(folder, outputs)
        with Interrupt() as interrupt, deterministic(options.threads):
            try:
                result, written = _run_phases(options, base, folder, source, interrupt)
            except Stopped:
                say(options.console, f"Saved in {folder}. The same command continues from here.")
                raise KeyboardInterrupt from None
    if isinstance(result, TunedResult):
        report_tuned(options.console, result, written)
    else:
        report(options.console, result, written)
    return result


def _run_phases(
    options: TrainOptions, base: BaseModel, folder: Path, source: PromptSource | list[Dialog], interrupt: Interrupt
) -> tuple[TrainResult, list[Path]]:
    """From the base model to the files written beside the output. Stopped after Ctrl-C, with everything saved."""
    # Not earlier: these import torch, which require_torch() prepares for.
    from .phases import Setup, collect, finish, fitting, layers, planning, prepare, tuning

    corpus = Corpus(folder / "text", base.n_embd)
    if corpus.state.get("complete") != options.asked_amount():
        collect.check_memory(options)
    announce(options, base, corpus)
    setup = Setup(options, base, folder, pick_device(), interrupt)
    fitting.check_start(setup)
    fitting.check_memory(setup)
    found = layers.check_model(setup) if options.joint or options.kind == STREAMS else None
    if options.kind == MTP:
        tuning.check_layer(setup)
    writing = collect.collect_text(setup, corpus, source, planning.plan_time(setup))

    begin = time.monotonic()
    material = prepare.prepare(setup, corpus)
    schedule = planning.plan_time(setup, len(material.vocabulary.d2t))
    seconds = writing + time.monotonic() - begin
    if options.kind == MTP:
        return tuning.tune(setup, material, schedule, seconds, writing)
    if options.kind == STREAMS:
        drafts = finish.trained_streams(setup, material, schedule, seconds)
    else:
        drafts = finish.trained_heads(setup, material, schedule, seconds, found)
    return finish.finish(drafts, writing)


def _source(options: TrainOptions) -> PromptSource | list[Dialog]:
    """Where prompts come from, or, with their answers, whole conversations."""
    if options.data is None:
        return SeedSource(options.seed)
    return load_dialogs(options.data) if options.answers == "given" else FileSource(options.data)


def work_folder(options: TrainOptions, base: BaseModel) -> Path:
    """Where this run keeps its text: the same for runs whose text is the same."""
    try:
        prompts = sha256(options.data) if options.data else "own"
    except OSError as error:
        raise MedusaError(f"{options.data}: cannot be read ({error.strerror or error})") from error
    answers = "" if options.answers == DEFAULT_ANSWERS else f" {options.answers}"
    said = f"{base.content} {prompts} {options.seed}{options.text.key}{answers}"
    key = hashlib.sha256(said.encode()).hexdigest()[:12]
    return (options.work_dir or paths.cache_dir() / "train") / f"{base.fingerprint}-{key}"
