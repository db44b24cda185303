"""How many tokens a context gets where nobody says: the model's own number, as far as memory allows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from medusa_cli.decoding import offload
from medusa_cli.decoding.options import CacheType, EngineOptions
from medusa_cli.decoding.settings import engine_default
from medusa_cli.support import machine
from medusa_cli.support.errors import OptionError
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from medusa_cli import native

LEAST = 8192
"""Tokens that a model which was trained on as many gets on any machine."""
FEW = 4096
MOST = 1 << 18
"""More has to be asked for."""
SHARE = 4
"""Of the available memory a full cache takes at most one part in so many: conversations, drafts and other programs
need some, too."""


def bytes_per_token(file: native.GgufFile, options: EngineOptions) -> float:
    """Of the cache, by estimate; 0 for models without one."""
    context = offload.Context(offload.CELL_STEP, options.cache_type_k.value, options.cache_type_v.value)
    return offload.cache_bytes(offload.shape_of(file), context) / offload.CELL_STEP


def chosen(model: native.Model, options: EngineOptions) -> int:
    """What was asked for, else what the model was trained on, within LEAST and what fits beside everything else.

    Where a cache takes all its memory at once (on GPUs, and on systems without fresh pages) it stays small.
    """
    from medusa_cli import native

    most = int(engine_default("n_ctx"))
    trained = min(model.n_ctx_train or most, MOST)
    if options.ctx_size or model.gpu:
        return options.ctx_size or min(trained, most)
    if not native.buffers_are_lazy():
        return min(trained, LEAST)
    _, available = machine.memory()
    each = bytes_per_token(native.read_gguf(model.path), options)
    return fitting(trained, each, available)


def resident(model: native.Model, size: int, written: int) -> int:
    """Of a cache of `size` tokens, those that take memory; a conversation is expected to write FEW at least."""
    from medusa_cli import native

    return size if model.gpu or not native.buffers_are_lazy() else min(size, max(written, FEW))


def fitting(trained: int, each: float, available: int | None) -> int:
    """trained: tokens; each: bytes per token; available: bytes, None where the system does not tell."""
    if available is None:
        return min(trained, LEAST)
    room = available / SHARE
    if trained * each <= room:
        return trained
    return min(trained, max(LEAST, int(room / each) // offload.CELL_STEP * offload.CELL_STEP))


def check(model: native.Model, options: EngineOptions) -> None:
    """OptionError for a context that this machine could not hold at all: filling its memory would end the process."""
    from medusa_cli import native

    total, _ = machine.memory()
    if model.gpu or total is None:
        return
    file = native.read_gguf(model.path)
    needed = int(bytes_per_token(file, options) * options.ctx_size)
    if needed <= total:
        return
    text = "a context of {tokens} tokens needs {needed}, this machine has {total}: give a smaller {ctx_size}"
    small = CacheType(offload.SMALL_CACHE)
    smaller = bytes_per_token(file, dataclasses.replace(options, cache_type_k=small, cache_type_v=small))
    if smaller * options.ctx_size <= total:
        text += f", or {{cache_type_k}} {small.value} {{cache_type_v}} {small.value}"
    raise OptionError(text, tokens=options.ctx_size, needed=size(needed), total=size(total))
