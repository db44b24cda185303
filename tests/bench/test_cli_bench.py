"""`medusa bench` as a command: options, errors, output, Ctrl-C, worker processes; and the real demo model once."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FIGURES, FakeWorker
from cli_fakes import FakeSession, base_gguf, heads_gguf, install
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.bench import kernels, process
from medusa_cli.bench import worker as workers
from medusa_cli.bench.methods import METHODS, Method
from medusa_cli.bench.protocol import Order, Ready, Spec
from medusa_cli.bench.worker import Worker
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.models import demo
from medusa_cli.support.errors import MedusaError

OPTIONS = (
    "--data --methods -n --max-tokens --repeat --limit --temp -s --seed --heads --tree --accept -md --draft-model "
    "--draft-max --lookahead --json --md --plot -c --ctx-size -t --threads -ngl --n-gpu-layers -dev --device -ctk "
    "--cache-type-k -ctv --cache-type-v"
)
ORDER = Order("Hi", 8, 0.0, 0)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(base_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    fresh = type("Worker", (FakeWorker,), {"calls": [], "specs": [], "open": 0})
    monkeypatch.setattr("medusa_cli.bench.measure.Worker", fresh)
    return fresh


def bench(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `medusa bench`."""
    environment = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    result = CliRunner().invoke(cli.app, ["bench", *arguments], env=environment)
    return result.exit_code, result.stdout, result.stderr


# --- the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("-h",), ("--help",), ()])
def test_help_shows_the_options_and_the_subcommand(arguments: tuple[str, ...]) -> None:
    code, out, err = bench(*arguments)
    out += err
    assert code == (0 if arguments else 2)
    assert "medusa bench [OPTIONS] {model}" in out or "bench [OPTIONS] {model}" in out
    assert "medusa bench compare" in out
    _, whole, _ = bench("--help-all")
    for option in OPTIONS.split():
        assert f" {option} " in whole, option
    for method in METHODS:
        assert method in out


def test_the_docs_name_every_method_and_figure() -> None:
    text = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`([^`]+)`", " ".join(rows)))
    figures = {key for key in FIGURES if not key.endswith(("_ci95", "_total"))}
    assert {name for name in named if not name.startswith("-")} == set(METHODS) | figures


def test_help_of_compare() -> None:
    code, out, _ = bench("compare", "--help")
    assert code == 0
    assert "bench compare [OPTIONS] {A.json} {B.json}" in out


def test_the_first_word_is_a_model_unless_it_is_a_subcommand(
    model: str, worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(model).parent)
    Path(model).rename("run")
    code, out, _ = bench("run", "--limit", "1", "--repeat", "1")
    assert (code, worker.specs[0].model) == (0, "run")
    assert out.startswith("run (fake 1M F32)")
    assert bench("--limit", "1", "--repeat", "1", "run")[0] == 0


def test_options_reach_the_run(model: str, worker: type[FakeWorker], tmp_path: Path) -> None:
    heads = str(heads_gguf(tmp_path / "heads.gguf"))
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    code, _, err = bench(
        model, "--data", str(data), "--methods", "medusa,plain", "-n", "7", "--repeat", "2", "--limit", "1", "--temp",
        "0,0.7,0", "-s", "5", "--heads", heads, "--tree", "chain_4", "--accept", "exact", "-c", "64", "-t", "3",
    )  # fmt: skip
    assert (code, "a remark" in err) == (0, True)
    spec = worker.specs[0]
    assert (spec.engine.ctx_size, spec.engine.threads) == (64, 3)
    assert (str(spec.draft.heads), spec.draft.tree, spec.draft.accept) == (heads, "chain_4", "exact")
    orders = [order for name, order in worker.calls[2:] if name == "medusa"]
    assert orders == [Order("one", 7, temperature, seed) for seed in (5, 6) for temperature in (0.0, 0.7)]


def test_made_up_acceptance_reaches_the_workers(model: str, worker: type[FakeWorker]) -> None:
    code, out, _ = bench(model, "--limit", "1", "--repeat", "1", "--synth-accept", "0.25")
    assert (code, "NOT REAL OUTPUT" in out) == (0, True)
    assert worker.calls[-1][1].synth_accept == 0.25
    assert worker.calls[0][1].synth_accept is None, "the warm-up is as always"
    assert bench(model, "--synth-accept", "1.5")[0] == 2


def test_defaults_follow_the_model(model: str, worker: type[FakeWorker], tmp_path: Path) -> None:
    bench(model, "--limit", "1", "--repeat", "1")
    bench(model, "--limit", "1", "--repeat", "1", "--heads", str(heads_gguf(tmp_path / "heads.gguf")))
    assert [name for name, _ in worker.calls[:2]] == ["stock", "plain"]
    assert [name for name, _ in worker.calls[4:7]] == ["stock", "plain", "medusa"]


def test_outputs(model: str, worker: type[FakeWorker], tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, out, _ = bench(model, "--limit", "10", "--repeat", "1", "--md", "--json", str(target))
    assert code == 0
    assert out.startswith("# medusa bench: ")
    found = json.loads(target.read_text())
    assert found["settings"]["prompts"] == 10
    assert bench("compare", str(target), str(target))[1].splitlines()[0].strip() == "B against A"


def test_a_plain_pipe_gets_plain_lines(model: str, worker: type[FakeWorker]) -> None:
    _, out, _ = bench(model, "--limit", "2", "--repeat", "1")
    assert out.isprintable() is False
    assert not set(out) & set("│┃━─\x1b\t")


def bad(*arguments: str) -> str:
    """The one error line of a command that must fail with exit code 1."""
    code, out, err = bench(*arguments)
    assert (code, out, err.count("\n")) == (1, "", 1), err
    assert "internal error" not in err
    return err


def test_bad_input_is_one_line(model: str, worker: type[FakeWorker], tmp_path: Path) -> None:
    empty, broken = tmp_path / "empty.jsonl", tmp_path / "broken.jsonl"
    empty.write_text("")
    broken.write_text('{"prompt": "x"}\n{"prompt": \n')
    assert "holds no prompts" in bad(model, "--data", str(empty))
    assert "broken.jsonl, line 2: not JSON" in bad(model, "--data", str(broken))
    assert "no such file" in bad(model, "--data", str(tmp_path / "gone"))
    assert "no method 'stok'" in bad(model, "--methods", "stok")
    assert "give --heads" in bad(model, "--methods", "medusa")
    assert "give --draft-model" in bad(model, "--methods", "draft-model")
    assert "give three numbers such as" in bad(model, "--methods", "lookahead", "--lookahead", "4,4")
    assert "No such file or directory" in bad(model, "--json", str(tmp_path / "gone" / "a.json"))
    assert "is a directory" in bad(model, "--json", str(tmp_path))
    assert "a plot is" in bad(model, "--plot", str(tmp_path / "a.txt"))
    assert "no such file" in bad("nowhere.gguf")
    assert "no such file" in bad(model, "--draft-model", "nowhere.gguf")
    assert "is not JSON" in bad("compare", str(broken), str(broken))
    assert worker.specs == []
    assert list(tmp_path.glob(".*.part")) == []


@pytest.mark.parametrize(
    "arguments", [("--temp", "a"), ("--temp", "-1"), ("--temp", ""), ("-n", "1"), ("--repeat", "0")]
)
def test_usage_errors_exit_with_2(model: str, arguments: tuple[str, ...]) -> None:
    code, out, err = bench(model, *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_ctrl_c_shows_and_writes_what_there_is(model: str, worker: type[FakeWorker], tmp_path: Path) -> None:
    worker.fails_after, worker.failure = 2 + 4, KeyboardInterrupt()
    target = tmp_path / "out.json"
    code, out, _ = bench(model, "--limit", "4", "--repeat", "1", "--json", str(target))
    assert code == 130
    assert "cut short: 4 answers so far" in out
    assert json.loads(target.read_text())["complete"] is False
    assert worker.open == 0
    worker.calls.clear()
    worker.fails_after = 1
    assert bench(model)[:2] == (130, "")


def test_a_worker_that_dies_is_an_error_after_the_table(model: str, worker: type[FakeWorker]) -> None:
    worker.fails_after = 2 + 4
    code, out, err = bench(model, "--limit", "4", "--repeat", "1")
    assert code == 1
    assert "cut short" in out
    assert err.splitlines()[-1].startswith("error: prompt ")


def test_a_model_too_large_for_memory_is_a_remark(
    model: str, worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medusa_cli.support.machine.memory", lambda: (1000, 500))
    code, _, err = bench(model, "--limit", "1", "--repeat", "1")
    assert code == 0
    assert "note: 2 copies of the model need" in err


# --- worker processes ----------------------------------------------------------------------------


def test_a_worker_answers_calls(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = install(monkeypatch)
    resets: list[FakeSession] = []
    monkeypatch.setattr(session, "reset", lambda self: resets.append(self), raising=False)
    session.answers = ["Hello.", ValueError("it broke")]
    spec = Spec("engine", model, EngineOptions(threads=2), DraftOptions(no_spec=True))
    order = replace(ORDER, temperature=0.5, seed=9)
    asked = [("loaded", ()), ("generate", (order,)), ("generate", (ORDER,)), ("predict", (30,))]
    sink = io.BytesIO()
    calls = io.BytesIO(b"".join(map(pickle.dumps, asked)))
    process.answer(calls, sink, lambda: workers.open_driver(spec))
    sink.seek(0)
    ready, found, error, promise = (pickle.load(sink) for _ in asked)
    assert ready == Ready("fake 1M F32", 2048, "", 1, [])
    assert (found["tokens"], found["stop_reason"]) == ([ord(c) for c in "Hello."], "eos")
    assert isinstance(error, MedusaError)
    assert "it broke" in str(error)
    assert promise is None
    call = session.calls[0]
    assert (call.text, call.max_tokens, call.sampling.temperature, call.sampling.seed) == (
        "<user>Hi\n<assistant>", 8, 0.5, 9,
    )  # fmt: skip
    assert call.accept.kind == "exact"
    assert len(resets) == 2


def worker_of(code: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> Worker:
    """A worker whose process runs `code`."""
    monkeypatch.setattr(process, "child", lambda *_: (sys.executable, "-c", code))
    return Worker(method, SPEC)


READY = """
import os, pickle, sys
from medusa_cli.bench.protocol import Ready
arguments, call = pickle.load(sys.stdin.buffer), pickle.load(sys.stdin.buffer)
pickle.dump(Ready('', 1), sys.stdout.buffer)
sys.stdout.flush()
"""
SPEC = Spec("engine", "m.gguf", EngineOptions(), DraftOptions())


def test_a_process_that_ends_says_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    code = READY + "pickle.load(sys.stdin.buffer); print('first', file=sys.stderr)\nsys.exit('kernel panic')"
    worker = worker_of(code, METHODS["plain"], monkeypatch)
    with pytest.raises(MedusaError, match="plain: its process ended with code 1 after: kernel panic"):
        worker.generate(ORDER)
    worker.close()
    with pytest.raises(MedusaError, match="stock: its process ended with code 3"):
        worker_of("raise SystemExit(3)", METHODS["stock"], monkeypatch)


def test_only_stock_methods_run_without_our_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEDUSA_ISA", raising=False)
    code = READY.replace("Ready(''", "Ready(os.environ.get('MEDUSA_ISA', 'unset')")

    def isa(method: Method) -> str:
        worker = worker_of(code, method, monkeypatch)
        worker.close()
        return worker.ready.description

    assert {name: isa(method) for name, method in METHODS.items()} == {
        "stock": "off", "plain": "unset", "medusa": "unset", "lookup": "unset", "medusa+lookup": "unset",
        "lookup+recycling": "unset", "medusa+lookup+recycling": "unset",
        "draft-model": "unset", "draft-model-tree": "unset", "lookahead": "unset",
        "llama-lookup": "off", "llama-draft-model": "off",
    }  # fmt: skip


def test_a_busy_process_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    code = READY + "import time; time.sleep(600)"
    worker_of(code, METHODS["plain"], monkeypatch).close()


# --- the real thing ------------------------------------------------------------------------------


@pytest.fixture
def demo_model(demo_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))


@pytest.mark.model
def test_the_demo_model(demo_model: None, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, out, err = bench("demo", "--methods", "stock,plain,medusa", "--limit", "3", "-n", "16", "--repeat", "1",
                           "--tree", "cpu_4", "--json", str(target))  # fmt: skip
    assert code == 0, err
    found: dict[str, Any] = json.loads(target.read_text())["methods"]
    assert list(found) == ["stock", "plain", "medusa"]
    for name, method in found.items():
        total = method["total"]
        assert total["generations"] == 3
        assert total["tokens_per_second"] > 0
        assert total["peak_rss_bytes"] > 50e6
        assert total["speedup_vs_stock"] == pytest.approx(1) if name == "stock" else total["speedup_vs_stock"] > 0
    medusa = found["medusa"]
    assert medusa["total"]["tokens_per_step"] == pytest.approx(1 + sum(medusa["total"]["acceptance_per_depth"]))
    assert medusa["total"]["tree_nodes"] > 1
    assert medusa["predicted"]["tokens_per_step"] > 1
    assert found["plain"]["total"]["tokens_per_step"] == 1
    assert "medusa: tree of" in out


@pytest.mark.slow
@pytest.mark.model
def test_llama_cpp_python_drafts_with_the_demo_model(demo_model: None, demo_model_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, _, err = bench(
        "demo", "--methods", "plain,llama-lookup,llama-draft-model", "-md", str(demo_model_path), "--limit", "1",
        "-n", "12", "--repeat", "1", "--json", str(target),
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(target.read_text())
    # A model that drafts for itself is always right.
    assert found["methods"]["llama-draft-model"]["total"]["acceptance_per_depth"] == [1.0, 1.0]
    assert found["methods"]["llama-draft-model"]["total"]["tokens_per_step"] == 3.0
    assert {run["tokens"] for run in found["runs"]} == {12}


@pytest.mark.slow
@pytest.mark.model
def test_other_drafters_run_in_our_loop(demo_model: None, demo_model_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    code, _, err = bench(
        "demo", "--methods", "plain,draft-model,draft-model-tree,lookahead", "-md", str(demo_model_path),
        "--draft-max", "3", "--lookahead", "3,3,2", "--limit", "1", "-n", "17", "--repeat", "1", "--json", str(target),
    )  # fmt: skip
    assert code == 0, err
    found = json.loads(target.read_text())
    assert found["methods"]["draft-model"]["total"]["acceptance_per_depth"] == [1.0, 1.0, 1.0]
    assert found["methods"]["draft-model"]["total"]["tokens_per_step"] == 4.0
    assert found["methods"]["lookahead"]["total"]["tree_nodes"] > 4
    for name in ("draft-model", "draft-model-tree", "lookahead"):
        match = found["methods"][name]["total"]["output_match"]
        assert match["identical"] == match["compared"] == 1


@pytest.mark.model
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX process groups")
def test_a_real_interrupt_leaves_no_process(demo_model: None) -> None:
    code = (
        "import sys; from medusa_cli.bench import measure; from medusa_cli.cli import main; run = measure._run\n"
        "measure._run = lambda *arguments: (print('measuring', file=sys.stderr, flush=True), run(*arguments))\n"
        "sys.argv = ['medusa', *sys.argv[1:]]; main()"
    )
    arguments = ["bench", "demo", "--methods", "plain", "-n", "128"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[1] / "support",
    )
    assert process.stderr is not None
    assert "measuring\n" in iter(process.stderr.readline, "")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, "error" in err) == (130, False)
    assert "answers so far" in out or out == ""
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.slow
@pytest.mark.model
def test_kernels_are_timed_beside_those_of_llama_cpp(demo_model: None) -> None:
    code, out, error = bench("kernels", "demo", "--columns", "1,3", "--rounds", "1", "-t", "1", "--json")
    if native.kernel_info()["selected"] is None:
        assert (code, "doctor" in error) == (1, True)
        return
    assert code == 0, error
    rows = json.loads(out)
    attention = [row for row in rows if row["type"] == "attention"]
    rows = [row for row in rows if row not in attention]
    assert [(row["type"], row["columns"]) for row in rows] == [("q4_1", 1), ("q4_1", 3), ("q8_0", 1), ("q8_0", 3)]
    # A noisy machine hides it. 30 layers of 3 heads of 64 keys and values, in F16, over 1024 tokens, for 9 queries.
    for row in attention:
        assert row["nbytes"] == 2 * 1024 * 30 * 3 * 2 * 64
        assert row["intensity"] == pytest.approx(2 * row["columns"] * 3 / 2)
    for row in [*attention, *rows]:
        assert row["intensity"] == pytest.approx(2 * row["gmac_per_second"] / row["gb_per_second"])
        if row["of_peak"] is not None:
            assert row["of_roof"] == max(row["of_bandwidth"], row["of_peak"])
            assert row["bound"] == ("memory" if row["of_bandwidth"] >= row["of_peak"] else "compute")
        assert row["ms"] > 0
        assert row["speedup"] == pytest.approx(row["stock_ms"] / row["ms"])
        assert row["gb_per_second"] == pytest.approx(row["nbytes"] / row["ms"] / 1e6)
        assert row["of_bandwidth"] > 0
        assert row["of_peak"] is None or 0 < row["of_peak"] < 1
    # One column and three see the same limits.
    for one in ("of_bandwidth", "gb_per_second"), ("of_peak", "gmac_per_second"):
        shares, speeds = [rows[0][key] / rows[1][key] for key in one] if rows[0]["of_peak"] else (1, 1)
        assert shares == pytest.approx(speeds)
    assert rows[0]["nbytes"] == 66_355_200
    assert rows[0]["ratio"] == 1.0


class FakeProducts:
    """A machine of 1 GB and 1 billion multiplications per second, on which attention for 3 columns took no time."""

    def __init__(self, *_args: object, **_options: object) -> None:
        self.answers = {"types": ["q8_0"], "attend": True, "limits": (1e9, 1e9, 1e9)}

    def __enter__(self) -> FakeProducts:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, name: str, *args: Any) -> Any:
        if name != "time":
            return self.answers[name]
        return {"ms": [1e-3 if args == ("attention", 3) else 10.0], "nbytes": 10**6, "products": 10**6}


def test_attention_that_took_less_time_than_it_can_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "Remote", FakeProducts)
    rows = kernels.measure(Path("m.gguf"), 1, [3], 1, lambda done, count: None)
    assert [(row.type, row.columns) for row in rows] == [("q8_0", 1), ("q8_0", 3), ("attention", 1)]
    assert [row.of_peak for row in rows] == pytest.approx([0.1, 0.3, 0.1])


def test_kernels_are_shown_against_the_roofline() -> None:
    limits = [("q4_1", 1, 0.8, 0.1), ("q4_1", 16, 0.2, 0.4), ("attention", 1, 0.3, 0.2), ("q4_K", 1, 0.3, None)]
    rows = [
        kernels.Row(type_, 1_000_000, columns, 2.0, 5.0, 30.0, 60.0, 1.0, memory, peak)
        for type_, columns, memory, peak in limits
    ]
    assert [(row.intensity, row.of_roof, row.bound) for row in rows] == [
        (4.0, 0.8, "memory"), (4.0, 0.4, "compute"), (4.0, 0.3, "memory"), (4.0, None, None),
    ]  # fmt: skip
    shown = kernels.table(rows, "m.gguf")
    lines = [dict(zip(shown.headers, line, strict=True)) for line in shown.rows]
    assert [(line["of roof"], line["bound"], line["speedup"]) for line in lines] == [
        ("80%", "memory", "2.50"), ("40%", "compute", "2.50"), ("30%", "memory", "2.50"), ("-", "-", "2.50"),
    ]  # fmt: skip


@pytest.mark.parametrize("columns", ["0", "1,x", "", "1000"])
def test_columns_must_be_numbers(columns: str) -> None:
    code, _, error = bench("kernels", "demo", "--columns", columns)
    assert (code, "--columns" in error) == (2, True)
