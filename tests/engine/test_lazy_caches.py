"""A cache takes memory where it is written: a large context costs nothing while the text is short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import tiny_base

from medusa_cli import native

CONTEXT = 1 << 18

MEASURE = """
import sys
from pathlib import Path
from medusa_cli import native

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

model = native.Model(sys.argv[1])
before = resident()
session = native.Session(model, n_ctx=int(sys.argv[2]))
opened = peak() - before
first = session.generate([1, 2, 3], max_tokens=64, ignore_eos=True).tokens
answered = resident() - before
session.reset()
print(opened, answered, first == session.generate([1, 2, 3], max_tokens=64, ignore_eos=True).tokens)
"""


@pytest.mark.skipif(not native.buffers_are_lazy(), reason="no fresh pages to be had from this system")
def test_a_large_context_takes_no_memory_while_the_text_is_short(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base.gguf")
    values = native.read_gguf(str(base)).metadata
    heads = values["llama.attention.head_count_kv"]
    size = values["llama.embedding_length"] // values["llama.attention.head_count"]
    cache = CONTEXT * values["llama.block_count"] * heads * size * 2 * 2  # keys and values, F16
    assert cache > 60e6
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(base), str(CONTEXT)], capture_output=True, text=True, check=True
    )
    opened, answered, same = done.stdout.split()
    assert int(opened) < cache / 4
    assert int(answered) < cache / 2
    assert same == "True"
