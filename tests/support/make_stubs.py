"""Writes the stubs of the compiled modules: medusa_cli/_native.pyi and tests/support/_native_testing.pyi.

    python tests/support/make_stubs.py

Types come from the bindings (native/bindings, native/testing). Docstrings stay there: help(medusa_cli.native.Session).
tests/structure/test_stubs.py compares.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

from nanobind.stubgen import ReplacePattern, StubGen

import medusa_cli.native  # noqa: F401  # which loads llama_cpp before the modules

ROOT = Path(__file__).parents[2]
STUBS = {
    "medusa_cli._native": ROOT / "medusa_cli" / "_native.pyi",
    "_native_testing": ROOT / "tests" / "support" / "_native_testing.pyi",
}
INSTEAD = {
    r"\.LLAMA_CPP_PYTHON$": ["LLAMA_CPP_PYTHON: str"],
    r"\.GGML_VERSION$": ["GGML_VERSION: str"],
    r"\.NativeError\.values$": ["values: dict[str, object]"],
    r"\.NativeError\.__str__$": [],  # set by medusa_cli.native, not by the module
    r"\.DYNAMIC_SIZES$": ["DYNAMIC_SIZES: tuple[int, ...]"],
}
"""Lines of the stub for what is no object of nanobind's, which alone have signatures."""


def stub(module: str) -> str:
    """The text of a module's stub, formatted."""
    compiled = importlib.import_module(module)
    patterns = [ReplacePattern(re.compile(name), lines, 0) for name, lines in INSTEAD.items()]
    generator = StubGen(compiled, include_docstrings=False, patterns=patterns)
    generator.put(compiled)
    text = re.sub(r"Annotated\[(NDArray\[[^\]]*\]), dict\([^\]]*\)\]", r"\1", generator.get())
    text = re.sub(r"\b\d+\.\d{9,}(e-\d+)?", short, text)
    note = f"# {Path(__file__).relative_to(ROOT).as_posix()} writes this file.\n\n"
    for task in (["check", "--fix-only"], ["format"]):
        command = [sys.executable, "-m", "ruff", *task, "--stdin-filename", str(STUBS[module]), "-"]
        text = subprocess.run(command, input=text, capture_output=True, check=True, text=True, cwd=ROOT).stdout
    return note + text


def short(number: re.Match[str]) -> str:
    """As it stands in the source: the engine keeps some numbers in 32 bits."""
    return f"{float(number[0]):.7g}"


if __name__ == "__main__":
    for name, file in STUBS.items():
        file.write_text(stub(name), encoding="utf-8")
