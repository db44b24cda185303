"""A work folder is one run's at a time, and one person's."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from killed_training import options, tiny_model
from rich.console import Console

from medusa_cli.models.base_file import read_base
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.locks import only_user, only_writer
from medusa_cli.training import train
from medusa_cli.training.text.corpus import Corpus, NewText, Text

HOLDER = """
import sys
from pathlib import Path
from medusa_cli.support.locks import only_user
with only_user(Path(sys.argv[1]), ""):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_run_waits_for_nobody_and_touches_nothing(tmp_path: Path) -> None:
    given = options(tiny_model(tmp_path / "tiny.gguf"), tmp_path, console=Console(file=io.StringIO()))
    folder = train.work_folder(given, read_base(given.model))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        (folder / ".shard.1.part").write_text("of the first run")
        with pytest.raises(
            MedusaError, match=rf"in use by process {process.pid} on .* since .*another work_dir"
        ) as caught:
            train.run(given)
        assert str(folder) in str(caught.value)
        assert (folder / ".shard.1.part").exists()
        assert not (folder / "text").exists()
        process.kill()
    with only_user(folder, ""):  # what was killed holds nothing
        assert str(os.getpid()) in (folder / "holder").read_text()
    assert not (folder / "holder").exists()


def test_two_runs_do_not_write_one_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of two models have work folders of their own, and could still name one output."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    given = options(tiny_model(tmp_path / "tiny.gguf"), tmp_path, console=Console(file=io.StringIO()))
    part = given.output.with_name(f".{given.output.name}.1.part")
    with only_writer(given.output):
        part.write_text("of the first run")
        with pytest.raises(MedusaError, match="in use by process") as caught:
            train.run(given)
    assert str(given.output) in str(caught.value)
    assert part.read_text() == "of the first run"


def test_errors_of_the_work_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), only_user(tmp_path / "work", ""):
        (tmp_path / "elsewhere").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of POSIX")
def test_text_is_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir(mode=0o755)  # as older versions left it
    with only_user(tmp_path / "work", ""):
        corpus = Corpus(tmp_path / "work" / "text", 4)
        text = Text(0, "a", 2, True, prompt=1)
        corpus.add(NewText(text, np.zeros(2, np.int32), np.zeros((2, 4), np.float16), np.zeros(1, np.int32)))
        corpus.flush()
    assert (tmp_path / "work").stat().st_mode & 0o777 == 0o700
    files = list((tmp_path / "work" / "text").iterdir())
    assert len(files) == 5
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
