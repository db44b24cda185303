"""How many cores a process may use: one function counts them, for threads and for the profiles of `medusa tune`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures import tiny_base

from medusa_cli import native

KEY = """
import os, sys
from pathlib import Path
os.sched_setaffinity(0, {int(sys.argv[1])})
from medusa_cli import native
from medusa_cli.decoding import profile
from medusa_cli.decoding.options import EngineOptions
model = native.Model(sys.argv[2])
print(native.physical_cores(), profile.key(model, Path(sys.argv[2]), EngineOptions())["threads"])
"""


def test_there_is_a_core() -> None:
    assert 1 <= native.physical_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity masks are Linux's")
def test_a_mask_of_one_core_counts_as_one_core_in_the_profile_too(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base.gguf")
    core = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-c", KEY, core, str(base)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]


WORKED = """
import os, sys
core = int(sys.argv[1])
os.sched_setaffinity(0, {core})
import _native_testing as testing

def of_core():
    with open("/proc/stat") as file:
        fields = next(line.split() for line in file if line.startswith(f"cpu{core} "))
    user, nice, system = map(int, fields[1:4])
    return (user + system + (nice if os.nice(0) > 0 else 0)) * 1000 / os.sysconf("SC_CLK_TCK")

before, told, after = of_core(), testing.allowed_cores_cpu_ms(), of_core()
assert before <= told <= after, (before, told, after)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere nobody tells")
def test_programs_on_other_cores_do_not_count() -> None:
    for core in sorted(os.sched_getaffinity(0))[:2]:
        subprocess.run([sys.executable, "-c", WORKED, str(core)], check=True)
