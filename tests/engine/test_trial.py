"""Trial runs: a file that crashes llama.cpp is one line, and a good one is tried once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny_base
from medusa_cli.converters.gguf import header as gh
from rich.console import Console

from medusa_cli.decoding import runtime, trial
from medusa_cli.support.errors import MedusaError


@pytest.fixture(autouse=True)
def _with_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(trial.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def changed(path: Path, key: str, value: int) -> Path:
    """The model at `path` with another number of 32 bits in its header."""
    header, _ = gh.read_header(path)
    data = path.read_bytes()[header.data_offset :]
    entries = [gh.encode_kv(key, gh.UINT32, value) if entry.key == key else entry for entry in header.kv]
    path.write_bytes(gh.build(entries, header.tensors, header.alignment) + data)
    return path


def count_processes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    started: list[Any] = []
    run = subprocess.run

    def counted(command: Any, **options: Any) -> Any:
        started.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    return started


def test_a_file_that_crashes_is_one_line(tmp_path: Path) -> None:
    path = changed(tiny_base(tmp_path / "bad.gguf"), "llama.block_count", 1000)
    cause = r"\(GGML_ASSERT\(.*\) failed\): damaged or not supported, use another"
    message = rf"bad\.gguf: llama\.cpp crashes on this file {cause}"
    for _ in range(2):
        with pytest.raises(MedusaError, match=message) as caught:
            runtime.load_model(path, 0, Console())
        assert str(caught.value).isprintable()


def ends_with(monkeypatch: pytest.MonkeyPatch, signal_name: str, said: str) -> None:
    """Trials whose process says this and is then ended by this signal."""
    run = subprocess.run
    code = f"import os, signal; print({said!r}, flush=True); os.kill(os.getpid(), signal.{signal_name})"
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([sys.executable, "-c", code], **options))


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_signal_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_base(tmp_path / "bad.gguf")
    ends_with(monkeypatch, "SIGSEGV", trial.BEGUN)
    with pytest.raises(MedusaError, match=r"bad\.gguf: llama\.cpp crashes on this file \(Segmentation fault\)"):
        trial.run(path)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(("signal_name", "said"), [("SIGSEGV", ""), ("SIGKILL", trial.BEGUN)])
def test_what_the_file_did_not_cause_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_name: str, said: str
) -> None:
    ends_with(monkeypatch, signal_name, said)
    trial.run(tiny_base(tmp_path / "good.gguf"))


def test_a_good_file_is_tried_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, started = tiny_base(tmp_path / "good.gguf"), count_processes(monkeypatch)
    for _ in range(3):
        runtime.load_model(path, 0, Console())
    assert len(started) == 1
    os.utime(path, ns=(1, 1))
    trial.run(path)
    assert len(started) == 2
    other = Path(shutil.copy(path, tmp_path / "other.gguf"))
    trial.run(other)
    trial.run(path)
    assert len(started) == 3


def test_every_part_of_a_split_model_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_base(tmp_path / "model.gguf", tensors_per_part=10)
    first, *_, last = sorted(tmp_path.glob("model-*.gguf"))
    started = count_processes(monkeypatch)
    trial.run(first)
    os.utime(last, ns=(1, 1))
    trial.run(first)
    assert len(started) == 2


def test_a_file_that_is_refused_gets_its_own_message(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_bytes(b"GGUF, but not quite")
    trial.run(path)
    with pytest.raises(Exception, match=r"text\.gguf has a damaged or truncated GGUF header"):
        runtime.load_model(path, 0, Console())


def test_it_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trial.VARIABLE, "off")
    monkeypatch.setattr(subprocess, "run", None)
    trial.run(tiny_base(tmp_path / "good.gguf"))


@pytest.mark.parametrize("content", ["", "[]", '{"x": 1', "\x00"])
def test_a_damaged_record_is_none(tmp_path: Path, content: str) -> None:
    record = tmp_path / "cache" / "medusa" / "trials.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    path = tiny_base(tmp_path / "good.gguf")
    trial.run(path)
    assert str(path) in record.read_text()


def test_what_lies_in_the_current_folder_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "medusa_cli").mkdir()
    (tmp_path / "medusa_cli" / "__init__.py").write_text("raise SystemExit('of a checkout')")
    monkeypatch.chdir(tmp_path)
    trial.run(tiny_base(tmp_path / "good.gguf"))
