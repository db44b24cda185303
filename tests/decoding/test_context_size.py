"""Contexts of the size that a machine has room for."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures import tiny_base
from rich.console import Console

from medusa_cli import native
from medusa_cli.decoding import context_size, runtime
from medusa_cli.decoding.context_size import FEW, LEAST, MOST, fitting
from medusa_cli.decoding.options import CacheType, DraftOptions, EngineOptions
from medusa_cli.support import machine
from medusa_cli.support.errors import OptionError

GIB = 1 << 30
EACH = 28 * 1024.0
"""Bytes per token of a 1.5B model."""


@pytest.mark.parametrize(
    ("trained", "each", "room", "tokens"),
    [
        (32768, EACH, 4 * GIB, 32768),
        (32768, EACH, GIB // 2, 18688),
        (32768, EACH, 25, LEAST),
        (2048, EACH, 25, 2048),
        (131072, 131072.0, 2 * GIB, 16384),
        (131072, 0.0, 25, 131072),
        (131072, EACH, 0, LEAST),
    ],
)
def test_what_fits(trained: int, each: float, room: int, tokens: int) -> None:
    assert fitting(trained, each, room) == tokens


def with_memory(monkeypatch: pytest.MonkeyPatch, available: int | None) -> None:
    monkeypatch.setattr(context_size.machine, "memory", lambda: (available, available))


def fake(trained: int, *, gpu: bool = False) -> Any:
    return SimpleNamespace(n_ctx_train=trained, gpu=gpu, path="m.gguf", is_recurrent=False)


@pytest.mark.skipif(not native.buffers_are_lazy(), reason="contexts stay small on this system")
@pytest.mark.parametrize(
    ("trained", "available", "most_bytes", "tokens"),
    [
        (32768, 64 * GIB, None, 32768),
        (32768, 2 * GIB, None, 18688),
        (32768, None, None, LEAST),
        (2**31 - 1, 1024 * GIB, None, MOST),
        (-1, 64 * GIB, None, FEW),  # more than 31 bits hold
        (0, 64 * GIB, None, FEW),
        (32768, 64 * GIB, 256 << 20, 9216),
        (32768, 64 * GIB, 0, FEW),
        (2048, 64 * GIB, 0, 2048),
    ],
)
def test_a_context_is_as_large_as_memory_allows(
    trained: int, available: int | None, most_bytes: int | None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, available)
    monkeypatch.setattr(context_size, "bytes_per_token", lambda *_: EACH)
    assert context_size.chosen(fake(trained), EngineOptions(), most_bytes) == tokens
    assert context_size.chosen(fake(trained), EngineOptions(ctx_size=77), most_bytes) == 77
    assert context_size.chosen(fake(trained, gpu=True), EngineOptions(), most_bytes) <= FEW


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"/sys/fs/cgroup/memory.max": ["4000"], "/sys/fs/cgroup/memory.current": ["1500"]}
    monkeypatch.setattr(machine, "_lines", lambda path: files.get(path, ["MemTotal: 8 kB", "MemAvailable: 4 kB"]))
    assert machine.memory() == (4000, 2500)
    files["/sys/fs/cgroup/memory.max"] = ["max"]
    assert machine.memory() == (8192, 4096)


@pytest.fixture
def model(tmp_path: Path) -> native.Model:
    return native.Model(str(tiny_base(tmp_path / "base.gguf")))


def test_what_was_asked_for_is_taken(model: native.Model) -> None:
    assert context_size.chosen(model, EngineOptions(ctx_size=300)) == 300
    assert context_size.chosen(model, EngineOptions()) == model.n_ctx_train


def test_what_this_machine_cannot_hold_is_refused(model: native.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    each = context_size.each_token(model, EngineOptions())
    with_memory(monkeypatch, int(each * 1000))
    context_size.check(model, EngineOptions(ctx_size=1000))
    with pytest.raises(OptionError, match=r"this machine has .*: give a smaller -c, or -ctk q8_0 -ctv q8_0$"):
        context_size.check(model, EngineOptions(ctx_size=1500))
    with pytest.raises(OptionError, match=r"give a smaller -c$"):
        context_size.check(model, EngineOptions(ctx_size=3000))
    q8 = CacheType("q8_0")
    context_size.check(model, EngineOptions(ctx_size=1500, cache_type_k=q8, cache_type_v=q8))


def test_the_cache_of_what_drafts_counts(model: native.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = str(tiny_base(tmp_path / "small.gguf"))
    each = context_size.each_token(model, EngineOptions())
    assert context_size.each_token(model, EngineOptions(), beside) == 2 * each
    assert context_size.resident(model, EngineOptions(), 9000, 8000, beside) == int(2 * each * 8000)
    with_memory(monkeypatch, int(each * 1000))
    with pytest.raises(OptionError, match="give a smaller"):
        context_size.check(model, EngineOptions(ctx_size=600), beside)


def test_an_engine_counts_its_draft_model(model: native.Model, tmp_path: Path) -> None:
    def opened(**draft: Any) -> runtime.Engine:
        console = Console(file=io.StringIO())
        return runtime.open_engine(model.path, EngineOptions(ctx_size=64), DraftOptions(**draft), console)

    plain, drafted = opened(no_spec=True), opened(draft_model=str(tiny_base(tmp_path / "small.gguf")))
    assert drafted.cache_bytes(64) == 2 * plain.cache_bytes(64)
