"""How many tokens a context gets by default: the model's own number, as far as memory allows."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

from medusa_cli.decoding import offload
from medusa_cli.decoding.options import CacheType, EngineOptions
from medusa_cli.support import machine
from medusa_cli.support.errors import OptionError
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from medusa_cli import native

LEAST = 8192
"""Tokens that a person's chat gets on any machine, if the model was trained on as many."""
FEW = 4096
"""The same when programs ask; also how much a conversation is expected to write at least."""
MOST = 1 << 18
"""A larger context has to be asked for."""
SHARE = 4
"""A full cache takes at most 1/SHARE of the available memory: conversations, drafts and other programs need some,
too."""
FOR_PROGRAMS = 256 << 20
"""Bytes of a full cache when programs ask, so that several conversations fit into a server's budget."""


@functools.lru_cache(maxsize=8)
def bytes_per_token(path: str, type_k: str, type_v: str) -> float:
    """Estimated cache bytes per token for the model at `path`; 0 for models without a cache."""
    from medusa_cli import native

    shape = offload.shape_of(native.read_gguf(path))
    return offload.cache_bytes(shape, offload.Context(offload.CELL_STEP, type_k, type_v)) / offload.CELL_STEP


def each_token(model: native.Model, options: EngineOptions, beside: str | None = None) -> float:
    """Cache bytes per token, with the types in the options. beside: the file of a model that drafts, which caches the
    same text."""
    files = [model.path] if beside is None else [model.path, beside]
    return sum(bytes_per_token(path, options.cache_type_k.value, options.cache_type_v.value) for path in files)


def chosen(
    model: native.Model, options: EngineOptions, most_bytes: int | None = None, beside: str | None = None
) -> int:
    """What was asked for, else what the model was trained on, as far as it fits beside everything else. beside: as in
    each_token().

    If a cache takes all its memory at once (on GPUs, and on systems without fresh pages), it stays small. most_bytes:
    limit for a full cache, None for a person's chat.
    """
    from medusa_cli import native

    trained = min(model.n_ctx_train, MOST) if model.n_ctx_train > 0 else FEW
    if options.ctx_size:
        return options.ctx_size
    if model.gpu or not native.buffers_are_lazy():
        return min(trained, FEW if model.gpu or most_bytes is not None else LEAST)
    _, available = machine.memory()
    room = 0 if available is None else available // SHARE
    least = LEAST if most_bytes is None else FEW
    most = room if most_bytes is None else min(room, most_bytes)
    return fitting(trained, each_token(model, options, beside), most, least)


def resident(model: native.Model, options: EngineOptions, tokens: int, written: int, beside: str | None = None) -> int:
    """Bytes that a cache of `tokens` takes when `written` of them were written, with the checkpoints of its state.
    beside: as in each_token().

    A conversation is expected to write at least FEW tokens.
    """
    from medusa_cli import native

    touched = tokens if model.gpu or not native.buffers_are_lazy() else min(tokens, max(written, FEW))
    checkpoints = native.CHECKPOINT_BYTES if model.is_recurrent else 0
    return int(touched * each_token(model, options, beside)) + checkpoints


def fitting(trained: int, each: float, room: int, least: int = LEAST) -> int:
    """trained, least: tokens; each: bytes per token; room: bytes."""
    if trained * each <= room:
        return trained
    return min(trained, max(least, int(room / each) // offload.CELL_STEP * offload.CELL_STEP))


def check(model: native.Model, options: EngineOptions, beside: str | None = None) -> None:
    """OptionError for a context that this machine could not hold at all: filling its memory would end the process.
    beside: as in each_token()."""
    total, _ = machine.memory()
    if model.gpu or total is None:
        return
    needed = int(each_token(model, options, beside) * options.ctx_size)
    if needed <= total:
        return
    text = "a context of {tokens} tokens needs {needed}, this machine has {total}: give a smaller {ctx_size}"
    small = CacheType(offload.SMALL_CACHE)
    smaller = each_token(model, dataclasses.replace(options, cache_type_k=small, cache_type_v=small), beside)
    if smaller * options.ctx_size <= total:
        text += f", or {{cache_type_k}} {small.value} {{cache_type_v}} {small.value}"
    raise OptionError(text, tokens=options.ctx_size, needed=size(needed), total=size(total))
