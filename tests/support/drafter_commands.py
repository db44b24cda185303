"""Commands with made-up models and drafters."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from command_line import invoke

CHAIN = ("--tree", "cartesian:1,1,1")
"""Made-up drafters cost as much as their model, so drafts have to be asked for: a named tree is filled at each step."""


def copied(files: Path, tmp_path: Path, **names: str) -> None:
    """Copies: the file's name without its ending -> the name in `tmp_path`."""
    for source, target in names.items():
        shutil.copy(files / f"{source}.gguf", tmp_path / target)


def answered(model: Path | str, *arguments: str, tokens: int = 40) -> tuple[dict[str, Any], str]:
    """What `generate --json` printed, and what it said besides."""
    fixed = ("--raw", "-p", "hello", "-n", str(tokens), "--ignore-eos", "--json", "--no-lookup")
    code, out, error = invoke("generate", str(model), *fixed, *arguments)
    assert code == 0, error
    return json.loads(out), error


def refused(*arguments: str) -> str:
    code, out, error = invoke(*arguments)
    assert (code, out, error.count("\n")) == (1, "", 1), error
    return error.removeprefix("error: ").rstrip("\n")


def inspected_for(kind: str, path: Path) -> tuple[dict[str, Any], str]:
    """What `inspect --json` printed, and the line about drafters of this kind in the text."""
    code, out, error = invoke("inspect", str(path), "--json")
    assert (code, json.loads(out)["path"]) == (0, str(path)), error
    code, text, _ = invoke("inspect", str(path))
    assert code == 0
    return json.loads(out), next((line for line in text.splitlines() if line.startswith(kind)), "")
