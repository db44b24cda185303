"""A model file that is cut off while it is mapped: the process ends with a line that says so."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import tiny_base

PROGRAM = """
import os, sys
from medusa_cli import native
model = native.Model(sys.argv[1], n_gpu_layers=0, repack=False)
session = native.Session(model, None, n_ctx=64, n_threads=1)
os.truncate(sys.argv[1], 0)
session.generate([1], max_tokens=3)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what happens to mapped files differs by system")
def test_a_file_that_is_cut_off_is_one_line(tmp_path: Path) -> None:
    path = tiny_base(tmp_path / "model.gguf")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGBUS
    assert done.stderr.startswith("medusa: a mapped file, such as the model, was cut off while it was in use")
    assert done.stderr.count("\n") == 1
