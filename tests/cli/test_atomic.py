"""Outputs appear whole or not at all, whatever ends the process, and private ones are nobody else's."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from medusa_cli.chat.conversation import Conversation
from medusa_cli.support import atomic

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and permissions of POSIX")
WRITER = """
import sys, time
from pathlib import Path
from medusa_cli.support.atomic import atomic_file, scratch_folder
with scratch_folder(Path(sys.argv[1]), ".convert.", ".part"), atomic_file(Path(sys.argv[1]) / "out.gguf") as file:
    file.write(b"half")
    print("begun", flush=True)
    time.sleep(60)
"""


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_being_told_to_end_leaves_no_unfinished_files(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_what_another_one_writes_is_not(tmp_path: Path) -> None:
    other = tmp_path / ".out.gguf.notours.part"
    other.touch()
    killed = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    with killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        (half,), (scratch,) = tmp_path.glob(".out.gguf.????????.part"), tmp_path.glob(".convert.*.part")
        with atomic.scratch_folder(tmp_path, ".convert.", ".part"), atomic.atomic_file(tmp_path / "out.gguf") as file:
            file.write(b"whole")
        assert half.exists()
        assert scratch.exists()
        killed.kill()
    with atomic.scratch_folder(tmp_path, ".convert.", ".part"), atomic.atomic_file(tmp_path / "out.gguf") as file:
        file.write(b"new")
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "out.gguf"]
    assert (tmp_path / "out.gguf").read_bytes() == b"new"


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with atomic.atomic_file(tmp_path / "out") as file:
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.01)
            file.write(b"whole")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (tmp_path / "out").read_bytes() == b"whole"


def test_a_second_signal_does_not_end_the_cleaning(tmp_path: Path) -> None:
    def told_twice() -> None:
        with atomic.scratch_folder(tmp_path, "scratch-"):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)

    with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
        told_twice()
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_permissions_follow_the_umask_which_nobody_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
            with atomic.atomic_file(tmp_path / "usual") as file:
                file.write(b"x")
            with atomic.atomic_file(tmp_path / "private", 0o600):
                (part,) = tmp_path.glob(".private.*.part")
                assert mode_of(part) == 0o600
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "usual"), mode_of(tmp_path / "private")) == (0o640, 0o600)


def test_the_folder_is_synced_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[bool, list[str]]] = []

    def fsync(handle: int) -> None:
        synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), sorted(path.name for path in tmp_path.iterdir())))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic.atomic_file(tmp_path / "out") as file:
        file.write(b"x")
    assert [is_folder for is_folder, _ in synced] == [False, True]
    assert synced[1][1] == ["out"]


def test_a_transcript_is_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    Conversation(turns=[{"role": "user", "content": "secret"}]).save(path, "m")
    assert mode_of(path) == 0o600
    path.chmod(0o644)
    Conversation.load(path).save(path, "m")
    assert mode_of(path) == 0o600
