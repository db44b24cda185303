"""What is installed beside medusa is broken: one line says what to do, and there is no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

import medusa_cli
from medusa_cli.support.versions import LLAMA_CPP_PYTHON_PIN

HEADS = Path(medusa_cli.__file__).parent / "data" / "demo-heads.gguf"
LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
ANSWER = "from medusa_cli import cli; cli.main()"


def line_of(before: str = "pass", **environment: str) -> str:
    """The only line on stderr when `medusa inspect` fails; `before`: Python code that breaks something first."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[1:] = ['inspect', {str(HEADS)!r}]; {before}; {ANSWER}"],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_another_release_of_llama_cpp_python() -> None:
    line = line_of("from importlib import metadata; metadata.version = lambda name: '0.3.9'")
    assert f"llama-cpp-python {LLAMA_CPP_PYTHON_PIN} is needed, found 0.3.9: run `pip install" in line


def test_a_module_for_another_release() -> None:
    line = line_of("import llama_cpp, medusa_cli._native as native; native.LLAMA_CPP_PYTHON = '0.3.9'")
    assert "the native module was built for llama-cpp-python 0.3.9" in line
    assert "reinstall medusa-cli" in line


def test_no_module() -> None:
    line = line_of("sys.modules['medusa_cli._native'] = None")
    assert "the native module does not load" in line
    assert "reinstall medusa-cli" in line


def test_no_libllama(tmp_path: Path) -> None:
    line = line_of(LLAMA_CPP_LIB_PATH=str(tmp_path))
    assert "llama-cpp-python does not load" in line
    assert "unset LLAMA_CPP_LIB_PATH" in line


def test_a_libllama_that_is_none() -> None:
    line = line_of("import ctypes; ctypes.CDLL = None")
    assert "llama-cpp-python does not load" in line
    assert f"run `pip install --force-reinstall llama-cpp-python=={LLAMA_CPP_PYTHON_PIN}`" in line


@pytest.mark.skipif(sys.platform != "linux", reason="LD_PRELOAD")
def test_libraries_of_two_folders(tmp_path: Path) -> None:
    other = shutil.copy(LIBRARIES / "libggml-base.so.0", tmp_path)
    line = line_of(LD_PRELOAD=str(other))
    assert f"the libraries of llama.cpp come from two folders, {LIBRARIES.resolve()} and {tmp_path.resolve()}" in line
    assert "unset LD_LIBRARY_PATH" in line


def test_libraries_of_another_release() -> None:
    line = line_of("import llama_cpp, medusa_cli._native as native; native.ggml_version = lambda: '0.1.2'")
    assert "(ggml 0.1.2, not " in line
    assert "llama-cpp-python" in line


@pytest.mark.parametrize("content", [b"", b"\x7fELF no backend", None])
def test_a_backend_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "libggml-other.so"
    if content is not None:
        path.write_bytes(content)
    line = line_of(GGML_BACKEND_PATH=str(path))
    assert f"the backend {path} does not load" in line
    assert "build it from the sources of the installed llama-cpp-python" in line
