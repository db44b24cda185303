"""Contexts of the size that a machine has room for."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures import tiny_base

from medusa_cli import native
from medusa_cli.decoding import context_size
from medusa_cli.decoding.context_size import LEAST, SHARE, fitting
from medusa_cli.decoding.options import CacheType, EngineOptions
from medusa_cli.support.errors import OptionError

GIB = 1 << 30
EACH = 28 * 1024.0
"""Bytes per token of a 1.5B model."""


@pytest.mark.parametrize(
    ("trained", "each", "available", "tokens"),
    [
        (32768, EACH, 16 * GIB, 32768),
        (32768, EACH, 2 * GIB, 18688),
        (32768, EACH, 100, LEAST),
        (2048, EACH, 100, 2048),
        (131072, 131072.0, 8 * GIB, 16384),
        (131072, 0.0, 100, 131072),
        (131072, EACH, None, LEAST),
    ],
)
def test_what_fits(trained: int, each: float, available: int | None, tokens: int) -> None:
    assert fitting(trained, each, available) == tokens


def test_a_full_cache_leaves_most_of_the_memory_alone() -> None:
    for available in range(GIB, 64 * GIB, GIB):
        assert fitting(1 << 18, EACH, available) * EACH <= available / SHARE or available < SHARE * LEAST * EACH


@pytest.fixture
def model(tmp_path: Path) -> native.Model:
    return native.Model(str(tiny_base(tmp_path / "base.gguf")))


def test_what_was_asked_for_is_taken(model: native.Model) -> None:
    assert context_size.chosen(model, EngineOptions(ctx_size=300)) == 300
    assert context_size.chosen(model, EngineOptions()) == model.n_ctx_train


def test_what_this_machine_cannot_hold_is_refused(model: native.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    each = context_size.bytes_per_token(native.read_gguf(model.path), EngineOptions())
    monkeypatch.setattr(context_size.machine, "memory", lambda: (int(each * 1000), None))
    context_size.check(model, EngineOptions(ctx_size=1000))
    with pytest.raises(OptionError, match=r"this machine has .*: give a smaller -c, or -ctk q8_0 -ctv q8_0$"):
        context_size.check(model, EngineOptions(ctx_size=1500))
    with pytest.raises(OptionError, match=r"give a smaller -c$"):
        context_size.check(model, EngineOptions(ctx_size=3000))
    q8 = CacheType("q8_0")
    context_size.check(model, EngineOptions(ctx_size=1500, cache_type_k=q8, cache_type_v=q8))
