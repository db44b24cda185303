"""One line and exit code 1 where nothing can go on: an error of CUDA, at which ggml ends the process; no backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no library's symbols through another there")

ELSEWHERE = Path(__file__).parent
"""The source folder, which may have no compiled module, would come before the installed package."""

# What ggml's CUDA backend does: three lines in the log, then the end.
END = """
import ctypes
from medusa_cli import native
from llama_cpp.llama_cpp import _lib
callback, data = ctypes.c_void_p(), ctypes.c_void_p()
ctypes.CDLL(_lib._name).llama_log_get(ctypes.byref(callback), ctypes.byref(data))
log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(callback.value)
for line in {lines}:
    log(4, line, data)
ctypes.CDLL(_lib._name).ggml_abort(b"ggml-cuda.cu", 109, b"CUDA error")
"""


def end(lines: list[bytes]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", END.format(lines=lines)], cwd=ELSEWHERE, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def test_the_line_says_what_the_device_said() -> None:
    lines = [
        b"CUDA error: out of memory\n",
        b"  current device: 0, in function f at a.cu:9\n",
        b"  cudaMalloc(&p, n)\n",
    ]
    assert end(lines) == (1, "medusa: ggml stopped (ggml-cuda.cu:109: CUDA error): CUDA error: out of memory\n")


def test_without_one_it_says_what_it_can_be() -> None:
    code, said = end([])
    assert (code, said.count("\n")) == (1, 1)
    assert said.endswith("the model file is damaged or not supported, or a device failed\n")


def test_a_backend_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    module = tmp_path / "libggml-none.so"
    module.write_bytes(b"no library")
    for path in (module, tmp_path / "missing.so"):
        done = subprocess.run(
            [sys.executable, "-m", "medusa_cli", "generate", "x.gguf", "-p", "x"],
            env={**os.environ, "GGML_BACKEND_PATH": str(path)}, cwd=ELSEWHERE,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(rf"error: [^\n]*{re.escape(str(path))}[^\n]* does not load [^\n]+\n", done.stderr)
