"""The Homebrew formula that packaging/homebrew.py prints."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FACTS = "Metadata-Version: 2.4\nName: some-tool\nVersion: 1.2\nSummary: Does things: many\nLicense-Expression: {}\n\n"


def printed(tmp_path: Path, licence: str) -> tuple[str, Path]:
    sdist = tmp_path / "some_tool-1.2.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        for name, text in (("PKG-INFO", FACTS.format(licence)), ("inside/PKG-INFO", "Name: other\n")):
            member = tarfile.TarInfo(f"some_tool-1.2/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    address = ["--homepage", "https://example.org", "--url", "https://example.org/some_tool-1.2.tar.gz"]
    command = [sys.executable, str(ROOT / "packaging" / "homebrew.py"), str(sdist), *address]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout, sdist


def test_the_formula_states_what_the_release_is(tmp_path: Path) -> None:
    text, sdist = printed(tmp_path, "Apache-2.0 AND MIT")
    assert text.startswith("class SomeTool < Formula\n")
    assert 'license all_of: ["Apache-2.0", "MIT"]\n' in text
    stated = dict(re.findall(r'^  (desc|homepage|url|sha256) "(.*)"$', text, re.MULTILINE))
    assert stated == {
        "desc": "Does things",
        "homepage": "https://example.org",
        "url": "https://example.org/some_tool-1.2.tar.gz",
        "sha256": hashlib.sha256(sdist.read_bytes()).hexdigest(),
    }
    assert 'license "MIT"\n' in printed(tmp_path, "MIT")[0]


def test_the_formula_builds_as_the_readme_does(tmp_path: Path) -> None:
    flags = r"-DLLAVA_BUILD=OFF -DCMAKE_PROJECT_INCLUDE=\S*/native/libllama_only\.cmake"
    assert re.search(flags, (ROOT / "README.md").read_text("utf-8"))
    assert re.search(flags, printed(tmp_path, "MIT")[0])


@pytest.mark.skipif(shutil.which("ruby") is None, reason="needs ruby")
def test_the_formula_is_ruby(tmp_path: Path) -> None:
    done = subprocess.run(["ruby", "-c"], input=printed(tmp_path, "MIT")[0], capture_output=True, text=True)
    assert done.stdout == "Syntax OK\n", done.stderr
