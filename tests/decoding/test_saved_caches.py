"""Prompt caches in files: what fits comes back, what does not is left out."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny_base
from rich.console import Console

from medusa_cli.decoding import saved_caches
from medusa_cli.decoding.options import CacheType, DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import Engine, open_engine
from medusa_cli.decoding.saved_caches import LEAST, CacheStore
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import MedusaError

ROUNDS = 50


def opened(path: Path, **options: Any) -> Engine:
    return open_engine(str(path), EngineOptions(ctx_size=512, **options), DraftOptions(), Console(quiet=True))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_base(tmp_path / "base.gguf", context=2048)


def text(length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed * 1000 + i).randrange(3, 100) for i in range(length)]


def has_read(engine: Engine, tokens: list[int]) -> Engine:
    engine.generate(tokens, Settings(max_tokens=5, ignore_eos=True), 1, None)
    return engine


def test_what_was_read_comes_back(model: Path, tmp_path: Path) -> None:
    store = CacheStore(tmp_path / "caches")
    first = has_read(opened(model), text(200))
    assert store.keep(first)
    (file,) = store.files()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    again = opened(model)
    following = [*first.session.cached_tokens, *text(10, 1)]
    assert store.bring(again, following) == (len(first.session.cached_tokens), "")
    settings = Settings(max_tokens=20, ignore_eos=True)
    answer = again.generate(following, settings, 1, None)
    assert answer.reused_tokens == len(first.session.cached_tokens)
    assert answer.tokens == opened(model).generate(following, settings, 1, None).tokens


def test_the_same_is_not_saved_twice_and_more_takes_its_place(model: Path, tmp_path: Path) -> None:
    store, engine = CacheStore(tmp_path / "caches"), has_read(opened(model), text(200))
    assert store.keep(engine)
    assert not store.keep(engine)
    longer = has_read(engine, [*engine.session.cached_tokens, *text(100, 1)])
    assert store.keep(longer)
    assert len(store.files()) == 1
    assert store.keep(has_read(engine, text(150, 2)))
    assert len(store.files()) == 2
    assert not store.keep(has_read(opened(model), text(LEAST // 2)))


def test_nobody_gets_what_others_have_read(model: Path, tmp_path: Path) -> None:
    store, engine = CacheStore(tmp_path / "caches"), has_read(opened(model), text(200))
    store.keep(engine, "one")
    assert store.bring(opened(model), text(200), "other") == (0, "")
    assert store.bring(opened(model), text(200), "") == (0, "")
    assert store.bring(opened(model), text(200), "one")[0] == 200


def test_other_models_types_and_contexts_are_left_alone(model: Path, tmp_path: Path) -> None:
    store = CacheStore(tmp_path / "caches")
    store.keep(has_read(opened(model), text(200)))
    other = tiny_base(tmp_path / "other.gguf", seed=5, context=2048)
    wide = opened(model, cache_type_k=CacheType.f32, cache_type_v=CacheType.f32)
    small = open_engine(str(model), EngineOptions(ctx_size=128), DraftOptions(), Console(quiet=True))
    small.n_ctx = 128
    for engine in (opened(other), wide, small):
        assert store.bring(engine, text(200)) == (0, "")
    (file,) = store.files()
    with pytest.raises(MedusaError, match="saved with another model"):
        saved_caches.restore(opened(other), saved_caches.read(file))
    os.utime(model)
    assert store.bring(opened(model), text(200)) == (0, ""), "the model's file was written since"


def test_damage_never_changes_a_text(model: Path, tmp_path: Path) -> None:
    """Flipped bytes at 1,000 places, and files cut short."""
    store, engine = CacheStore(tmp_path / "caches"), has_read(opened(model), text(100))
    store.keep(engine)
    (file,) = store.files()
    whole, draw, into = file.read_bytes(), random.Random(1), opened(model)
    told = 0
    for number in range(1050):
        damaged = bytearray(whole)
        if number < 1000:
            damaged[draw.randrange(len(whole)) if number % 2 else draw.randrange(600)] ^= 1 << draw.randrange(8)
        else:
            del damaged[draw.randrange(len(whole)) :]
        file.write_bytes(damaged)
        into.session.reset()
        cached, remark = store.bring(into, text(100))
        told += bool(remark)
        assert cached == 0
        assert "\n" not in remark
        assert into.session.cached_tokens == []
    assert told > 300
    file.write_bytes(whole)
    assert store.bring(into, text(100))[0] == 100


def test_a_budget_keeps_what_was_used_last(model: Path, tmp_path: Path) -> None:
    engine = opened(model)
    store = CacheStore(tmp_path / "caches")
    for seed in range(3):
        store.keep(has_read(engine, text(150, seed)))
        time.sleep(0.02)
    size = store.files()[0].stat().st_size
    store.bring(opened(model), text(150, 0))  # used again
    store.budget = 3 * size + size // 2
    store.keep(has_read(engine, text(150, 3)))
    found = [store.bring(opened(model), text(150, seed))[0] for seed in range(4)]
    assert found == [150, 0, 150, 150]
    assert not CacheStore(tmp_path / "small", budget=size // 2).keep(engine)


def test_a_full_disk_and_a_folder_that_is_none(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = has_read(opened(model), text(200))
    store = CacheStore(tmp_path / "caches")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(MedusaError, match="no space left"):
        store.keep(engine)
    assert list(store.folder.iterdir()) == []

    def unknown(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unknown, raising=False)
    assert store.keep(engine)
    assert store.bring(opened(model), text(200))[0] == 200
    (tmp_path / "file").write_text("")
    with pytest.raises(MedusaError, match="file"):
        CacheStore(tmp_path / "file" / "caches").keep(engine)


WRITER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from test_saved_caches import CacheStore, has_read, opened, text
store, engine = CacheStore(Path(sys.argv[2])), opened(Path(sys.argv[1]))
print("ready", flush=True)
for seed in range(10**6):
    store.keep(has_read(engine, text(400, seed % 3)))
"""


@pytest.mark.slow
def test_kill_leaves_the_old_file_or_the_new_one(model: Path, tmp_path: Path) -> None:
    folder, draw = tmp_path / "caches", random.Random(1)
    code = WRITER.format(path=[path for path in sys.path if path])
    for _ in range(ROUNDS):
        writer = subprocess.Popen([sys.executable, "-c", code, str(model), str(folder)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        time.sleep(draw.uniform(0, 0.2))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        store = CacheStore(folder)
        for file in store.files():
            saved_caches.restore(opened(model), saved_caches.read(file))
