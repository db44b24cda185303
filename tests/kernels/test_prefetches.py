"""The loops that read weights and caches from memory prefetch, although compilers drop calls of functions that do
nothing else (native/kernels/inline.h). Without a prefetch they only take longer."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

import llama_cpp
import pytest

ROOT = Path(__file__).parents[2]
FILES = ["avx2", "avxvnni", "avx512vnni", "q2_k_avx2", "float_products_avx2", "float_products_avx512", "attention_avx2"]
# What has been unpacked lies in a cache.
READS_MEMORY = re.compile(r"(multiply_tile|unpack|Avx2::multiply|Avx2::add)<(?!.*Unpacked<)")

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux"
    or platform.machine() != "x86_64"
    or not all(map(shutil.which, ["cmake", "make", "objdump"])),
    reason="compiles and disassembles for x86-64",
)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    headers = Path(llama_cpp.__file__).parents[1] / "include"
    options = [f"-DGGML_INCLUDE_DIR={headers}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DCMAKE_CXX_FLAGS_RELEASE=-O3"]
    command = ["cmake", "-S", f"{ROOT / 'native/lab'}", "-B", f"{folder}", "-G", "Unix Makefiles", *options]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def prefetches(disassembly: str) -> dict[str, int]:
    """How many prefetch instructions each function has, by its name."""
    found: dict[str, int] = {}
    name = ""
    for line in disassembly.splitlines():
        if start := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            name = start[1]
            found[name] = 0
        elif "\tprefetch" in line:
            found[name] += 1
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_loops_over_memory_prefetch(build: Path, name: str) -> None:
    commands = json.loads((build / "compile_commands.json").read_text())
    one = next(entry for entry in commands if entry["file"].endswith(f"/{name}.cpp"))
    target = build / f"{name}.o"
    command = re.sub(r" -o \S+", f" -o {target}", one["command"])
    subprocess.run(command, shell=True, check=True, cwd=one["directory"], capture_output=True)
    listing = subprocess.run(["objdump", "-d", "-C", target], check=True, capture_output=True, text=True).stdout
    loops = {
        function: count
        for function, count in prefetches(listing).items()
        if READS_MEMORY.search(function.replace("(anonymous namespace)::", ""))
    }
    assert len(loops) >= 4
    assert [function for function, count in loops.items() if count == 0] == []


def test_prefetches_are_counted_by_function() -> None:
    listing = "0 <f<1>()>:\n  0:\tprefetcht2 (%rdi)\n  4:\tret\n\n8 <g()>:\n  8:\tret\n"
    assert prefetches(listing) == {"f<1>()": 1, "g()": 0}
