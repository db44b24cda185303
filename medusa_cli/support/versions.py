"""Releases: of medusa as it is installed, and of the llama-cpp-python that it is made for."""

from __future__ import annotations

import os
from importlib import metadata

DISTRIBUTION = "medusa-cli"
LLAMA_CPP_PYTHON_PIN = "0.3.36"


def installed_llama_cpp_python() -> str | None:
    """Version of the installed llama-cpp-python distribution, None if there is none."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None


def build_facts() -> str:
    """What is installed, as `--version` shows it below the version: the kind of build, and licences of what is inside.

    "" for a source folder that was never installed.
    """
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""
    tags = [line.removeprefix("Tag: ") for line in (found.read_text("WHEEL") or "").splitlines() if "Tag: " in line]
    files = [str(found.locate_file(path)) for path in found.files or () if "licenses" in path.parts[:-1]]
    texts = f"; texts: {os.path.commonpath(files)}" if files else ""
    return (
        f"built for {', '.join(tags) or 'unknown'} and llama-cpp-python {LLAMA_CPP_PYTHON_PIN}\n"
        f"licences: {found.metadata['License-Expression']}{texts}\n"
    )
