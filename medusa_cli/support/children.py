"""Processes that run a part of this package."""

from __future__ import annotations

import sys


def child(module: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs main() of a module of the installed package, whatever is in the current folder."""
    # Not `-m`, which looks for the package in the current folder: a checkout of this project has no compiled module.
    code = f"import sys; sys.path = [entry for entry in sys.path if entry]; from {module} import main; main()"
    return (sys.executable, "-c", code, *arguments)
