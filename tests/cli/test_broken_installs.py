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
from medusa_cli import native
from medusa_cli.models import demo
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


@pytest.mark.skipif(sys.platform != "linux", reason="names of libraries")
def test_libraries_of_two_folders(tmp_path: Path) -> None:
    other = shutil.copy(LIBRARIES / "libggml-base.so.0", tmp_path)
    grafted = LIBRARIES.parents[1].glob("llama_cpp_python.libs/*.so*")  # what the copy needs, beside repaired wheels
    files = [str(file) for file in (*grafted, other)]
    line = line_of(f"import ctypes; [ctypes.CDLL(file) for file in {files}]")
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


# A module that asks for functions of other names, loaded in place of the real one.
WITHOUT_EXPORTS = """
import importlib.util, sys, llama_cpp
spec = importlib.util.spec_from_file_location("medusa_cli._native", {path!r})
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from medusa_cli import Model, native
print(native.kernel_info()["selected"], native.kernel_info()["reason"], sep=": ")
print(len(native.Model({model!r}).placement))
for options in ({{}}, {{"no_spec": True}}):
    with Model("demo", quiet=True, **options) as model:
        print(repr(model.generate("Name three colours.", max_tokens=12, temperature=0).text))
"""


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="edits an ELF file")
def test_a_llama_cpp_without_a_way_in_for_kernels(demo_model_path: Path, tmp_path: Path) -> None:
    content = native.module_file().read_bytes()
    for name in (b"_Z39ggml_backend_cpu_get_extra_buffer_types", b"_Z29llama_internal_get_tensor_map"):
        assert name in content
        content = content.replace(name, name[:-1] + b"_")
    path = tmp_path / native.module_file().name
    path.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXPORTS.format(path=str(path), model=str(demo_model_path))],
        env={**os.environ, "MEDUSA_ISA": "", demo.DEMO_VARIABLE: str(demo_model_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    kernels, placed, drafted, plain = done.stdout.splitlines()
    assert kernels == "None: this build of llama.cpp does not export what our kernels need"
    assert placed == "0"
    assert drafted == plain != "''"
