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


OTHERS = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
from medusa_cli import native
native.system_info()
native.testing.cores_of_other_programs()
time.sleep(0.6)
print(native.testing.cores_of_other_programs())
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity masks are Linux's")
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: ())(0)) < 2, reason="with a core to leave alone")
def test_programs_on_other_cores_leave_room() -> None:
    mine, other, *_ = sorted(os.sched_getaffinity(0))
    found = []
    for core in (other, mine):
        busy = subprocess.Popen(
            [sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile 1: pass"]
        )
        try:
            done = subprocess.run([sys.executable, "-c", OTHERS, str(mine)], capture_output=True, text=True, check=True)
        finally:
            busy.kill()
            busy.wait()
        found.append(float(done.stdout))
    assert found[0] < found[1] - 0.3
