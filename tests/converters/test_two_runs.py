"""Two runs that write the same outputs: the second one says so, and touches nothing of the first one's."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from fixtures import tiny_base
from medusa_cli.converters.heads import single_file
from test_convert import save_v1

from medusa_cli.models import heads as installed
from medusa_cli.support import paths
from medusa_cli.support.errors import MedusaError

Run = tuple[int, str, str]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The person's state, in which nothing stays behind."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "state"
    assert [path.name for path in (tmp_path / "state").rglob("*") if path.is_file()] in ([], ["lock"])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tiny_base(tmp_path / "base.gguf")


def while_at(monkeypatch: pytest.MonkeyPatch, name: str, run: Callable[[], Run]) -> list[Run]:
    """What `run` says when it begins while another one is in single_file.NAME."""
    said: list[Run] = []
    original: Callable[..., Any] = getattr(single_file, name)

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(single_file, name, original)
        said.append(run())
        original(*arguments)

    monkeypatch.setattr(single_file, name, meanwhile)
    return said


def refused(run: Run, name: str) -> None:
    code, _, error = run
    assert code == 1
    line = error.splitlines()[-1]
    assert name in line
    assert "in use by process" in line


def test_convert(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, out = save_v1(tmp_path / "one"), save_v1(tmp_path / "other", heads=1), tmp_path / "out.gguf"

    def convert(heads: Path, *arguments: str) -> Run:
        return invoke("convert", str(heads), "--base", str(base), "-o", str(out), *arguments)

    said = while_at(monkeypatch, "join", lambda: convert(other, "--force"))
    code, _, error = convert(one)
    assert code == 0, error
    refused(said[0], "out.gguf")
    assert sorted(path.name for path in tmp_path.glob("*.gguf")) == ["base.gguf", "out.gguf"]
    assert "2 of kind medusa" in invoke("inspect", str(out))[1]
    assert convert(other, "--force")[0] == 0


def test_convert_does_not_overwrite_what_came_meanwhile(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from medusa_cli.conversion.pipeline import Conversion

    heads, out = save_v1(tmp_path / "heads"), tmp_path / "out.gguf"
    begin = Conversion.run

    def late(self: Conversion) -> Any:
        out.write_text("of a run that has just ended")
        return begin(self)

    monkeypatch.setattr(Conversion, "run", late)
    code, _, error = invoke("convert", str(heads), "--base", str(base), "-o", str(out))
    assert code == 1
    assert "--force" in error
    assert out.read_text() == "of a run that has just ended"


def test_install(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from medusa_cli.conversion import pipeline

    one, other = save_v1(tmp_path / "one"), save_v1(tmp_path / "other", heads=1)
    said: list[Run] = []
    write = pipeline.write_heads_file

    def install(heads: Path) -> Run:
        return invoke("convert", str(heads), "--base", str(base), "--install")

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(pipeline, "write_heads_file", write)
        said.append(install(other))
        write(*arguments)

    monkeypatch.setattr(pipeline, "write_heads_file", meanwhile)
    code, _, error = install(one)
    assert code == 0, error
    refused(said[0], "tiny-")
    (only,) = installed.installed()
    assert only.head_count == 2


def test_split_makes_no_pair_of_two_files(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("one", 2), ("other", 1)):
        heads = save_v1(tmp_path / name, heads=count)
        arguments = ("--base", str(base), "-o", str(tmp_path / f"{name}.gguf"))
        assert invoke("convert", str(heads), *arguments)[0] == 0

    def split(name: str, base_out: str) -> Run:
        outputs = ("--base-out", str(tmp_path / base_out), "--heads-out", str(tmp_path / "h.gguf"))
        return invoke("split", str(tmp_path / f"{name}.gguf"), *outputs)

    said = while_at(monkeypatch, "split", lambda: split("other", "b2.gguf"))
    assert split("one", "b.gguf")[0] == 0
    refused(said[0], "h.gguf")
    assert not (tmp_path / "b2.gguf").exists()
    assert "2 of kind medusa" in invoke("inspect", str(tmp_path / "h.gguf"))[1]


HOLDER = """
import sys
from pathlib import Path
from medusa_cli.support.locks import only_writer
with only_writer(*map(Path, sys.argv[1:])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("ending", ["kill", "end"])
def test_who_is_gone_holds_nothing(tmp_path: Path, state: Path, ending: str) -> None:
    from medusa_cli.support.locks import only_writer

    outputs = [tmp_path / "b", tmp_path / "a"]
    command = [sys.executable, "-c", HOLDER, *map(str, outputs)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for path in outputs:
            with pytest.raises(MedusaError, match=rf"{path} is in use by process {process.pid} on"), only_writer(path):
                pass
        with only_writer(tmp_path / "c"):
            process.send_signal(signal.SIGKILL) if ending == "kill" else process.communicate()
            process.wait()
    with only_writer(*outputs), pytest.raises(MedusaError, match="in use"), only_writer(outputs[0]):
        pass


def test_a_state_that_cannot_be_written_locks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from medusa_cli.support.locks import only_writer

    (tmp_path / "file").touch()
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path / "file" / "medusa")
    with only_writer(tmp_path / "out"):
        pass
