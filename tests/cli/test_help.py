"""`medusa help`: which guide, how it is shown, and what the shell completes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import invoke
from terminal import Terminal

from medusa_cli.support import guides

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md"))
MEDUSA = shutil.which("medusa", path=str(Path(sys.executable).parent)) or "medusa"


def test_every_guide_has_a_line() -> None:
    code, out, _ = invoke("help")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == PAGES
    for line in out.splitlines():
        assert 40 < len(line) < 120, line
        assert not re.search(r"[*\]]|\.$", line), line


@pytest.mark.parametrize("topic", PAGES)
def test_a_pipe_gets_the_page_as_it_is(topic: str) -> None:
    assert invoke("help", topic) == (0, (DOCS / f"{topic}.md").read_text("utf-8"), "")


@pytest.mark.parametrize(("command", "page"), [("generate", "chat"), ("rm", "models"), ("split", "convert")])
def test_a_command_has_the_guide_that_names_its_options(command: str, page: str) -> None:
    assert invoke("help", command) == invoke("help", page)


@pytest.mark.parametrize(
    ("topic", "likely"), [("trian", "did you mean train? "), ("Chat", "did you mean chat? "), ("../README", "")]
)
def test_an_unknown_topic(topic: str, likely: str) -> None:
    line = f"error: no guide about {topic!r}: {likely}`medusa help` lists them\n"
    assert invoke("help", topic) == (2, "", line)


@pytest.mark.parametrize("columns", [24, 80])
def test_a_terminal_gets_it_laid_out(columns: int, tmp_path: Path) -> None:
    with Terminal([MEDUSA, "help", "install"], tmp_path, columns, PAGER="cat") as screen:
        screen.wait_for("When something does not")
        assert screen.exit_code() == 0
        assert "\x1b[1" in screen.raw
    assert "](" not in screen.shown
    assert "\N{HORIZONTAL ELLIPSIS}" not in screen.shown
    assert "## " not in screen.shown
    assert [line for line in screen.shown.splitlines() if len(line) > columns] == []


def test_links_name_the_command_that_shows_them(tmp_path: Path) -> None:
    with Terminal([MEDUSA, "help", "gpu"], tmp_path, 200, PAGER="cat", NO_COLOR="1") as screen:
        screen.wait_for("(medusa help design)")  # a link to design.md
        assert screen.exit_code() == 0
    assert "(below)" in screen.shown  # a link to the same page
    assert "\x1b[" not in screen.raw
    assert not re.search(r"\(#|\.md\)|measurements/", screen.shown)


def test_a_pager_gets_long_pages_alone(tmp_path: Path) -> None:
    with Terminal([MEDUSA, "help", "train"], tmp_path, 80, PAGER="sed 's/^/paged: /'") as screen:
        screen.wait_for("paged: ")
        assert screen.exit_code() == 0
    short = tmp_path / "short.md"
    short.write_text("# Short\n\nOne line.\n")
    code = "import sys; from pathlib import Path; from medusa_cli.support import console, guides;"
    code += "guides.show(Path(sys.argv[1]).read_text(), console.data())"
    with Terminal([sys.executable, "-c", code, str(short)], tmp_path, 80, PAGER="sed 's/^/paged: /'") as screen:
        screen.wait_for("One line.")
        assert screen.exit_code() == 0
    assert "paged" not in screen.shown


def test_guides_of_an_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "chat.md").write_text("# Chat\n\nA conversation. More.\n")
    monkeypatch.setattr(guides, "_PACKAGE", tmp_path)
    assert invoke("help") == (0, "chat  A conversation\n", "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("medusa he", {"help"}), ("medusa help t", {"thinking", "train", "tune"}), ("medusa help gen", {"generate"})],
)
def test_completion_in_bash(typed: str, offered: set[str], tmp_path: Path) -> None:
    """The script that --install-completion writes, with the command line as bash hands it over."""
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(MEDUSA).parent}:{os.environ['PATH']}"}
    environment.pop("BASH_ENV", None)
    words = typed.split()
    script = f"""medusa --install-completion > /dev/null; source ~/.bashrc
        COMP_WORDS=({typed}) COMP_CWORD={len(words) - 1}
        $(complete -p medusa | sed 's/.* -F \\([^ ]*\\).*/\\1/') medusa {words[-1]} {words[-2]}
        printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) == offered
