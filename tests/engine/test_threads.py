"""Threads of a real model: the same bits with every number of them, and what runs beside a busy program."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import _native_testing as testing
import pytest
from fixtures import tiny_base

from medusa_cli import native
from medusa_cli.conversion.quantize import quantize

BUSY = "while True: pass"
PROMPT = [5, 9, 17, 200]
BARRIER_ROUNDS = int(os.environ.get("MEDUSA_FUZZ", "1"))

linux = pytest.mark.skipif(sys.platform != "linux", reason="other programs are seen on Linux alone")
several_cores = pytest.mark.skipif(native.physical_cores() < 2, reason="one core: nothing to choose")


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    running = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for program in running:
            program.kill()
            program.wait()


def costs(model: native.Model, tokens: Sequence[int], width: int, threads: int) -> list[float]:
    """-ln p of the tokens, of which no bit is rounded away."""
    return testing.score(model, tokens, width=width, n_threads=threads)[1]


@pytest.fixture(scope="module")
def texts() -> list[int]:
    return [(7 * n * n + n) % 250 + 3 for n in range(700)]


@pytest.mark.slow
@pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="with llama.cpp's own kernels bits depend on it")
@pytest.mark.parametrize("file_type", ["F32", "F16", "Q4_0", "Q8_0"])
@pytest.mark.parametrize("experts", [0, 6])
def test_bits_do_not_depend_on_the_number_of_threads(
    tmp_path: Path, texts: list[int], file_type: str, experts: int
) -> None:
    """Matrices of ours and of llama.cpp's, over more cells than llama.cpp's own attention would share out."""
    path = tiny_base(tmp_path / "base.gguf", experts=experts, context=1024)
    if file_type != "F32":
        quantize(path, path := tmp_path / "model.gguf", file_type)
    model = native.Model(str(path))
    for width in (1, 5, 16):
        one, *others = [costs(model, texts, width, threads) for threads in (1, 2, 3)]
        assert others == [one, one], f"{width} rows at once"


@pytest.mark.slow
@pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="with llama.cpp's own kernels bits depend on it")
@pytest.mark.parametrize("file_type", ["F16", "Q8_0"])
def test_barriers_hold_where_threads_lose_their_cores(tmp_path: Path, texts: list[int], file_type: str) -> None:
    """OpenMP's, with which pip builds llama.cpp: ThreadSanitizer does not see them."""
    quantize(tiny_base(tmp_path / "base.gguf", context=1024), path := tmp_path / "model.gguf", file_type)
    model = native.Model(str(path))
    one = costs(model, texts, 5, 1)
    with busy_programs(2):
        for threads in (3, 5) * BARRIER_ROUNDS:
            assert costs(model, texts, 5, threads) == one, f"{threads} threads"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="with llama.cpp's own kernels bits depend on it")
def test_bits_of_the_demo_do_not_depend_on_the_number_of_threads(demo_model_path: Path, texts: list[int]) -> None:
    model = native.Model(str(demo_model_path))
    one, two = [costs(model, texts[:600], 8, threads) for threads in (1, 2)]
    assert one == two


def test_a_number_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    model = native.Model(str(tiny_base(tmp_path / "base.gguf")))
    with busy_programs(native.physical_cores()):
        session = native.Session(model, n_threads=2)
        stats = session.generate(PROMPT, max_tokens=6, ignore_eos=True).stats["threads"]
    assert stats == {"most": 2, "steps": {"2": 5}, "reason": "asked", "repeated_steps": 0}


def test_one_number_within_an_answer_where_bits_depend_on_it(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base.gguf")
    program = f"""
from medusa_cli import native
session = native.Session(native.Model({str(base)!r}))
runs = [session.generate({PROMPT}, max_tokens=60, ignore_eos=True).stats["threads"] for _ in range(3)]
assert all(len(run["steps"]) == 1 and run["repeated_steps"] == 0 for run in runs), runs
"""
    with busy_programs(1):
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "MEDUSA_ISA": "off"}, cwd=tmp_path, check=True
        )


@linux
def test_what_other_programs_use_is_seen() -> None:
    def others() -> float:
        native.thread_advice()
        time.sleep(0.4)
        found = native.thread_advice()[1]
        assert found is not None
        return found

    spare = native.physical_cores() - others()
    if spare < 0.8:
        pytest.skip("this machine is busy")
    with busy_programs(1):
        assert others() > 0.5


@linux
@several_cores
@pytest.mark.model
def test_beside_busy_programs_as_fast_as_the_best_number(demo_model_path: Path) -> None:
    """As many of them as there are cores: with all its threads it would wait for seconds at a time."""
    model = native.Model(str(demo_model_path))
    sessions = {threads: native.Session(model, n_ctx=512, n_threads=threads) for threads in (0, 1)}
    speeds: dict[int, list[float]] = {0: [], 1: []}
    texts = set()
    with busy_programs(native.physical_cores()):
        for _ in range(2):
            for threads, session in sessions.items():
                session.reset()
                done = session.generate(PROMPT, max_tokens=60, ignore_eos=True)
                speeds[threads].append(done.stats["tokens_per_second"])
                texts.add(tuple(done.tokens))
                assert threads or done.stats["threads"]["reason"] in ("others", "slower")
    assert len(texts) == 1
    assert statistics.median(speeds[0]) > 0.5 * statistics.median(speeds[1])
