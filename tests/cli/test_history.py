"""What recycling learns between runs: kept only where asked for, private, never in the way, removed by one command."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from command_line import invoke
from fixtures import tiny_base


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("model") / "tiny.gguf", chat_template="{{ messages[0]['content'] }}")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "medusa" / "recycled"


def generate(model: Path, *options: str) -> str:
    """What it says beside the text."""
    code, _, err = invoke("generate", str(model), "-p", "abcabcabc", "-n", "12", *options)
    assert code == 0, err
    return err


def test_nothing_is_kept_or_read_unless_asked_for(model: Path, kept: Path) -> None:
    assert generate(model) == generate(model, "--no-history") == ""
    assert not kept.exists()
    generate(model, "--history")
    (file,) = kept.iterdir()
    file.write_bytes(b"nonsense")
    assert generate(model) == generate(model, "--no-history") == ""
    assert file.read_bytes() == b"nonsense"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_it_is_the_persons_alone(model: Path, kept: Path) -> None:
    generate(model, "--history")
    (file,) = kept.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.stat().st_mode) == 0o700


def test_it_grows_with_every_run(model: Path, kept: Path) -> None:
    generate(model, "--history")
    (file,) = kept.iterdir()
    first = file.read_bytes()
    code, _, _ = invoke("generate", str(model), "-p", "a different text", "-n", "12", "--history")
    assert code == 0
    assert len(file.read_bytes()) > len(first)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "is damaged, or of another model"), (b"nonsense" * 9, "is damaged"), (None, "is too large")],
)
def test_a_damaged_file_is_one_remark(model: Path, kept: Path, content: bytes | None, message: str) -> None:
    generate(model, "--history")
    (file,) = kept.iterdir()
    if content is None:
        with file.open("wb") as opened:
            opened.truncate((64 << 20) + 1)
    else:
        file.write_bytes(content)
    (remark,) = generate(model, "--history").splitlines()
    assert message in remark
    assert str(file) in remark
    # The next run finds what this one learned.
    assert generate(model, "--history") == ""


def test_a_folder_that_cannot_be_written_is_one_remark(model: Path, kept: Path) -> None:
    kept.parent.write_text("no folder")
    assert "note: history was not saved: " in generate(model, "--history").splitlines()[-1]


def test_where_nothing_is_recycled_nothing_is_kept(model: Path, kept: Path) -> None:
    assert "has no effect without recycling" in generate(model, "--history", "--no-recycling")
    assert not kept.exists()


def test_forget_removes_all_of_it(model: Path, kept: Path) -> None:
    assert invoke("forget")[:2] == (0, f"nothing is stored in {kept}\n")
    generate(model, "--history")
    (kept / ".torn.recycled.part").write_bytes(b"1")
    code, out, _ = invoke("forget")
    assert code == 0
    assert out.startswith("removed 2 files, ")
    assert not list(kept.iterdir())
