"""llama_cpp.Llama on our kernels: chat, streaming and embeddings, undone and done again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medusa_cli import Acceleration, accelerate, native
from medusa_cli.support.errors import MedusaError

pytestmark = pytest.mark.model
MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
needs_kernels = pytest.mark.skipif(
    native.kernel_info()["selected"] is None, reason="no kernels are faster than llama.cpp's here"
)


@pytest.fixture(autouse=True)
def _on_again() -> Iterator[None]:
    yield
    accelerate()
    native.forward_log(False)


def load(path: Path, **options: Any) -> Any:
    from llama_cpp import Llama

    return Llama(str(path), n_ctx=256, n_threads=1, flash_attn=True, **{"verbose": False, **options})


def said(llama: Any) -> str:
    answer = llama.create_chat_completion(MESSAGES, max_tokens=16, temperature=0)
    return str(answer["choices"][0]["message"]["content"])


@needs_kernels
def test_llama_runs_on_the_kernels_until_that_is_undone(
    demo_model_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = accelerate()
    assert state.on
    first = load(demo_model_path, verbose=True)
    assert "MEDUSA model buffer" in capfd.readouterr().err
    text = said(first)
    undone = state.undo()
    assert not undone.on
    plain = load(demo_model_path, verbose=True)
    assert "MEDUSA model buffer" not in capfd.readouterr().err
    # Both models go on as they were loaded; attention of the first one is llama.cpp's by now.
    assert len(said(plain)) > 10
    assert len(said(first)) > 10
    accelerate()
    assert "MEDUSA model buffer" in (load(demo_model_path, verbose=True), capfd.readouterr().err)[1]
    first.reset()
    assert said(first) == text
    for llama in (first, plain):
        llama.close()


@needs_kernels
def test_streaming_equals_the_whole_answer(demo_model_path: Path) -> None:
    accelerate()
    llama = load(demo_model_path)
    pieces = llama.create_chat_completion(MESSAGES, max_tokens=16, temperature=0, stream=True)
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    llama.reset()
    assert text == said(llama)
    llama.close()


@needs_kernels
def test_embeddings_are_those_of_llama_cpp(demo_model_path: Path) -> None:
    found = []
    for on in (True, False):
        accelerate(on)
        llama = load(demo_model_path, embedding=True, pooling_type=1)
        vectors = np.asarray(llama.embed(["The sky is blue.", "Bread is made of flour."], normalize=True))
        found.append(vectors)
        llama.close()
    assert found[0].shape == (2, 576)
    assert (found[0] * found[1]).sum(axis=1) == pytest.approx([1, 1], abs=2e-3)


@needs_kernels
def test_what_is_on_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    info = native.kernel_info()
    table = repr(accelerate())
    assert table.splitlines()[0].split()[:2] == ["kernels", info["selected"]]
    assert " ".join(info["types"]) in table
    assert "attention" in table
    assert repr(accelerate(False)).splitlines()[0].split(maxsplit=1) == [
        "kernels",
        "llama.cpp's own: accelerate(False)",
    ]
    with pytest.raises(AttributeError):
        accelerate().on = False  # type: ignore[misc]
    without = Acceleration(False, None, "MEDUSA_ISA=off", False, ("scalar", "avx2"), ())
    assert "this CPU could run: scalar, avx2" in repr(without)


@needs_kernels
def test_a_model_that_was_loaded_before_is_an_error(demo_model_path: Path, tmp_path: Path) -> None:
    program = f"""
from llama_cpp import Llama
llama = Llama({str(demo_model_path)!r}, n_ctx=64, n_threads=1, verbose=False)
import medusa_cli
try:
    medusa_cli.accelerate()
except medusa_cli.MedusaError as error:
    print(error)
print(len(llama.create_completion("Hi", max_tokens=2)["choices"]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == [
        "accelerate() must be called before the first model of the process is loaded: call it at the start", "1",
    ], done.stderr  # fmt: skip


def test_error_is_the_one_of_the_package() -> None:
    import medusa_cli

    assert medusa_cli.MedusaError is MedusaError
