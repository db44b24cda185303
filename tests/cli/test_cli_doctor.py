"""`medusa doctor` and `medusa train`'s command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import _native_testing as testing
import pytest
from cli_fakes import base_gguf
from fixtures import tiny_base, tiny_recurrent
from mtp_models import write_mtp_model
from rich.console import Console
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.conversion.quantize import quantize
from medusa_cli.decoding import runtime
from medusa_cli.decoding.drafting import DraftPlan
from medusa_cli.decoding.settings import ModelSampling
from medusa_cli.diagnosis import report
from medusa_cli.models import demo
from medusa_cli.support.errors import MedusaError


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(cli.app, list(arguments), env={"NO_COLOR": "1", "TERM": "dumb"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(autouse=True)
def healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that are there, and an empty cache that can be written."""
    monkeypatch.setattr(demo, "DEMO_HEADS", base_gguf(tmp_path / "heads.gguf"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(demo.DEMO_VARIABLE, raising=False)


def test_a_healthy_installation() -> None:
    code, out, err = invoke("doctor")
    assert (code, err) == (0, "")
    for text in ("medusa", "llama-cpp-python", "libllama", "CPU features", "memory", "device", "in order"):
        assert text in out
    code, out, _ = invoke("doctor", "--json")
    found = json.loads(out)
    assert (code, found["problems"]) == (0, [])
    assert found["llama_cpp_python"] == native.LLAMA_CPP_PYTHON
    assert found["cores_logical"] >= 1
    assert found["memory_total"] > found["memory_available"] > 0
    assert found["demo"]["cached"] is False


def test_it_works_when_the_engine_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise MedusaError("llama-cpp-python 0.3.36 is needed, found 0.3.35: run `pip install ...`")

    monkeypatch.setattr("medusa_cli.native", Broken("medusa_cli.native"))
    monkeypatch.setitem(sys.modules, "medusa_cli.native", Broken("medusa_cli.native"))
    code, out, _ = invoke("doctor")
    assert code == 1
    assert "problem: llama-cpp-python 0.3.36 is needed, found 0.3.35" in out
    code, out, _ = invoke("doctor", "--json")
    assert code == 1
    assert json.loads(out)["libllama"] is None


def test_a_wrong_engine_library_is_named_in_a_real_process() -> None:
    program = (
        "from importlib import metadata; real = metadata.version\n"
        "metadata.version = lambda name: '0.0.1' if name == 'llama-cpp-python' else real(name)\n"
        "import sys; sys.argv = ['medusa', *sys.argv[1:]]; from medusa_cli.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", program, "doctor", "--json"], capture_output=True, text=True)
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert (found["llama_cpp_python"], found["libllama"]) == ("0.0.1", None)
    assert any("found 0.0.1" in problem for problem in found["problems"])
    result = subprocess.run([sys.executable, "-c", program, "inspect", __file__], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1


def run_doctor(folder: Path, isa: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON report of a process of its own, in `folder`: the kernels are chosen when the engine loads."""
    result = subprocess.run(
        [sys.executable, "-c", "from medusa_cli.cli import main; main()", "doctor", "--json", *arguments],
        capture_output=True, text=True, env={**os.environ, "MEDUSA_ISA": isa}, cwd=folder,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(result.stdout)
    return result.returncode, found


def test_how_drafts_are_followed(tmp_path: Path) -> None:
    _, found = run_doctor(tmp_path, "off", str(tiny_base(tmp_path / "base.gguf")))
    assert found["model"]["drafts"] == {"shape": "tree", "remark": None, "by": ["prompt lookup", "recycling"]}
    _, found = run_doctor(tmp_path, "off", str(tiny_recurrent(tmp_path / "mamba.gguf")))
    assert found["model"]["drafts"]["shape"] == "chain"
    assert "decoded again" in found["model"]["drafts"]["remark"]
    _, found = run_doctor(tmp_path, "off", str(write_mtp_model(tmp_path / "mtp.gguf", "glm4moe")))
    assert found["model"]["drafts"]["by"] == ["1 MTP layer in its file", "prompt lookup"]


@pytest.mark.skipif(sys.platform == "win32", reason="llama.cpp exports no way in for kernels on Windows")
def test_the_kernels_and_what_a_model_runs_on(tmp_path: Path) -> None:
    quantize(tiny_base(tmp_path / "base.gguf"), tmp_path / "model.gguf", "Q4_0")
    model = str(tmp_path / "model.gguf")

    def rows(found: dict[str, Any]) -> set[tuple[str, str, str, str | None]]:
        return {(row["role"], row["type"], row["kernels"], row["remark"]) for row in found["model"]["weights"]}

    code, found = run_doctor(tmp_path, "scalar", model)
    assert (code, found["kernels"]["selected"], found["kernels"]["reason"]) == (0, "scalar", "")
    assert found["kernels"]["supported"] == testing.kernel_names()
    assert found["kernels"]["types"] == testing.kernel_types()
    assert found["model"]["name"] == "model.gguf"
    rest = {("embedding", "q4_0", "llama.cpp", "only looked up"),
            ("other", "f32", "llama.cpp", "norms, biases and the like")}  # fmt: skip
    assert rows(found) == {("matrix", "q4_0", "scalar", None), ("matrix", "q8_0", "scalar", None), *rest}
    assert found["kernels"]["attention"] is True
    assert found["model"]["attention"] == {"kernels": "scalar", "remark": None}

    code, found = run_doctor(tmp_path, "off", model)
    assert (code, found["problems"], found["kernels"]["selected"]) == (0, [], None)
    off = ("llama.cpp", "kernels are off: MEDUSA_ISA=off")
    assert rows(found) == {("matrix", "q4_0", *off), ("matrix", "q8_0", *off), *rest}
    assert found["model"]["attention"] == {"kernels": "llama.cpp", "remark": "kernels are off: MEDUSA_ISA=off"}

    code, found = run_doctor(tmp_path, "avx1024")
    assert code == 1
    assert "model" not in found
    assert any("MEDUSA_ISA=avx1024" in problem and "scalar" in problem for problem in found["problems"])


def opened(model: Any) -> Any:
    """An engine that a report is about."""
    return SimpleNamespace(
        name="m", model=model, heads=None, width_matters="", sampling=ModelSampling(), n_ctx=8, plan=DraftPlan(),
        cache_bytes=lambda written: 100 * written,
    )  # fmt: skip


def test_the_report_on_a_model_is_a_table(tmp_path: Path) -> None:
    model = tiny_base(tmp_path / "base.gguf")
    code, out, err = invoke("doctor", str(model))
    assert (code, err) == (0, "")
    table = out[out.index("base.gguf: ") :]
    assert table.splitlines()[1].startswith("Attention: ")
    assert table.splitlines()[2] == "Drafts:    a tree, from prompt lookup, recycling"
    assert table.splitlines()[3].startswith("Seeds:     ")
    assert table.splitlines()[4] == "Sampling:  the model sets no defaults"
    assert re.fullmatch(r"Context:   256 of the model's 256 tokens, 512\.0 kB for each 1,000", table.splitlines()[5])
    assert "weights" in table.splitlines()[6]
    assert len([line for line in table.splitlines() if line.startswith("matrix") and " f32 " in line]) == 1
    code, out, err = invoke("doctor", str(tmp_path / "nowhere.gguf"))
    assert (code, out) == (1, "")
    assert "no such file" in err


@pytest.mark.parametrize(
    ("role", "type_", "buffer", "selected", "remark"),
    [
        ("matrix", "q4_0", "OURS", "avx2", None),
        (
            "matrix",
            "q4_0",
            "CPU_REPACK",
            "avx2",
            "llama.cpp's loops depend on the tokens of a pass: drafts may change the text",
        ),
        ("matrix", "q4_0", "CPU", "avx2", "shapes that the kernels do not support: one column at a time"),
        ("matrix", "iq2_xs", "CPU_Mapped", "avx2", "no kernel for this type: one column at a time"),
        ("matrix", "q4_0", "CUDA0", "avx2", "in CUDA0"),
        ("matrix", "q4_0", "CPU", None, "kernels are off: because"),
        ("experts", "q4_0", "OURS", "avx2", None),
        ("experts", "iq2_xs", "CPU", "avx2", "no kernel for this type: one column at a time"),
        ("embedding", "q4_0", "CPU", "avx2", "only looked up"),
    ],
)
def test_why_a_weight_is_not_on_the_kernels(
    monkeypatch: pytest.MonkeyPatch, role: str, type_: str, buffer: str, selected: str | None, remark: str | None
) -> None:
    model = SimpleNamespace(
        description="fake", n_layer=2, n_ctx_train=8, gpu=False, devices=[],
        placement=[SimpleNamespace(role=role, type=type_, buffer=buffer, tensors=3, nbytes=99)],
    )  # fmt: skip
    info: dict[str, Any] = {"selected": selected, "reason": "because", "types": ["q4_0"], "buffer": "OURS"}
    monkeypatch.setattr(native, "kernel_info", lambda: info)
    monkeypatch.setattr(native, "attention_use", lambda _: SimpleNamespace(served=1, left=0, reason=""))
    monkeypatch.setattr(native, "draft_memory", lambda _: "cells")
    monkeypatch.setattr(runtime, "open_engine", lambda *_: opened(model))
    [row] = report.diagnose_model("m", Console())["weights"]
    assert (row["remark"], row["tensors"], row["bytes"]) == (remark, 3, 99)
    assert row["kernels"] == (selected if buffer == "OURS" else "llama.cpp")


@pytest.mark.parametrize(
    ("use", "selected", "kernels", "remark"),
    [
        ((30, 0, ""), "avx2", "avx2", None),
        (
            (20, 10, "scores with a position bias"),
            "avx2",
            "avx2",
            "10 layers are left to llama.cpp: scores with a position bias",
        ),
        ((0, 30, "the cache is not F16, Q8_0 or Q4_0"), "avx2", "llama.cpp", "the cache is not F16, Q8_0 or Q4_0"),
        ((0, 0, ""), "avx2", "llama.cpp", "no fused attention ran on the processor"),
        ((0, 0, ""), None, "llama.cpp", "kernels are off: because"),
    ],
)
def test_whose_attention_runs_and_why_not_ours(
    monkeypatch: pytest.MonkeyPatch,
    use: tuple[int, int, str],
    selected: str | None,
    kernels: str,
    remark: str | None,
) -> None:
    served, left, reason = use
    info: dict[str, Any] = {"selected": selected, "reason": "because", "types": [], "buffer": "OURS"}
    monkeypatch.setattr(native, "kernel_info", lambda: info)
    monkeypatch.setattr(native, "attention_use", lambda _: SimpleNamespace(served=served, left=left, reason=reason))
    monkeypatch.setattr(native, "draft_memory", lambda _: "cells")
    model = SimpleNamespace(description="fake", n_layer=2, n_ctx_train=8, gpu=False, devices=[], placement=[])
    monkeypatch.setattr(runtime, "open_engine", lambda *_: opened(model))
    assert report.diagnose_model("m", Console())["attention"] == {"kernels": kernels, "remark": remark}


@pytest.mark.skipif(sys.platform == "win32", reason="llama.cpp exports no way in for kernels on Windows")
def test_heads_that_fill_no_register_are_left_to_llama_cpp(tmp_path: Path) -> None:
    _, found = run_doctor(tmp_path, "scalar", str(tiny_base(tmp_path / "base.gguf", heads=8)))
    attention = found["model"]["attention"]
    assert attention["kernels"] == "llama.cpp"
    # Where llama.cpp was built for half-precision vectors, its fused operator is off for such heads.
    assert attention["remark"] in (
        "a head size that the kernels do not support",
        "no fused attention ran on the processor",
    )


def test_problems_around_the_demo_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_HEADS", tmp_path / "gone.gguf")
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(tmp_path / "nowhere.gguf"))
    problems = report.diagnose()["problems"]
    assert any("heads are missing" in problem for problem in problems)
    assert any(demo.DEMO_VARIABLE in problem for problem in problems)


def test_train_hands_its_options_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("medusa_cli.training.train")
    seen: list[Any] = []
    monkeypatch.setattr("medusa_cli.training.train.run", seen.append)
    model, recipe = base_gguf(tmp_path / "tiny.gguf"), tmp_path / "r.json"
    recipe.write_text('{"seed": 4, "tokens": 5000, "parallel": 8, "work_dir": "w", "objective": "truth"}')
    code, out, err = invoke(
        "train", str(model), "-o", "out.gguf", "--sidecar", "--heads", "3", "--minutes", "2.5", "--data", "d.jsonl",
        "-t", "2", "-ngl", "0", "--kind", "hydra++", "--recipe", str(recipe),
    )  # fmt: skip
    assert (code, out, err) == (0, "", "")
    options = seen[0]
    assert (options.model, options.output, options.sidecar, options.heads) == (model, Path("out.gguf"), True, 3)
    assert (options.minutes, options.data, options.seed, options.tokens) == (2.5, Path("d.jsonl"), 4, 5000)
    assert (options.kind, options.objective) == ("hydra++", "truth")
    assert (options.threads, options.n_gpu_layers, options.parallel, options.work_dir) == (2, 0, 8, Path("w"))


def test_train_checks_the_model_first(tmp_path: Path) -> None:
    code, _, err = invoke("train", str(tmp_path / "nowhere.gguf"), "-o", "out.gguf")
    assert code == 1
    assert err.startswith(f"error: no such file: {tmp_path / 'nowhere.gguf'}")
