"""The parts of `medusa bench`: methods, figures, documents, reports, comparisons, pictures."""

from __future__ import annotations

import dataclasses
import json
import pickle
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import FIGURES, FakeWorker, answer
from rich.console import Console

from medusa_cli.bench import compare, document, methods, plot, report, summary
from medusa_cli.bench.measure import Measurements, Plan, measure
from medusa_cli.bench.protocol import Outcome
from medusa_cli.decoding import lossless
from medusa_cli.decoding.loops import loop_start
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support import plots
from medusa_cli.support.errors import MedusaError


def outcome(method: str, prompt: str = "1", repeat: int = 0, category: str = "math", **options: Any) -> Outcome:
    temperature = options.pop("temperature", 0.0)
    sent = answer(**{"speed": 100.0, "tokens": [1, 2, 3], **options})
    return Outcome.from_worker(
        sent, method=method, prompt_id=prompt, category=category, temperature=temperature, repeat=repeat
    )


# --- methods -------------------------------------------------------------------------------------


def test_methods_by_name() -> None:
    assert [method.name for method in methods.parse("Plain, stock,plain")] == ["plain", "stock"]
    for wrong in ("stok", "stock,fast"):
        with pytest.raises(MedusaError, match=r"no method '.*': there are stock, plain, medusa"):
            methods.parse(wrong)
    with pytest.raises(MedusaError, match="names none"):
        methods.parse(" , ")


def test_defaults_are_what_the_model_allows() -> None:
    assert methods.default_names(False, False) == ["stock", "plain"]
    assert methods.default_names(True, True) == ["stock", "plain", "medusa", "draft-model"]


def test_methods_that_lack_something() -> None:
    with pytest.raises(MedusaError, match=r"medusa needs draft heads, and m\.gguf has none: give --heads"):
        methods.check(methods.parse("medusa"), "m.gguf", False, False)
    with pytest.raises(MedusaError, match="give --draft-model"):
        methods.check(methods.parse("draft-model"), "m.gguf", True, False)
    with pytest.raises(MedusaError, match="add one to --methods"):
        methods.check(methods.parse("plain"), "m.gguf", True, True)
    methods.check(methods.parse("plain,medusa,draft-model"), "m.gguf", True, True)
    methods.check(methods.parse("plain,medusa"), "m.gguf", True, False, synthetic=True)
    with pytest.raises(MedusaError, match="--synth-accept cannot simulate acceptance for llama-lookup"):
        methods.check(methods.parse("medusa,llama-lookup"), "m.gguf", True, False, synthetic=True)


# --- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (9, 2.262), (11, 2.2010), (30, 2.0423), (120, 1.9799)])
def test_students_t(degrees: int, quantile: float) -> None:
    assert summary.t_975(degrees) == pytest.approx(quantile, abs=0.0005)


def test_the_confidence_interval_of_a_mean() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    low, high = summary.confidence(values) or (0, 0)
    assert (low + high) / 2 == pytest.approx(2.5)
    assert (high - low) / 2 == pytest.approx(3.182 * statistics.stdev(values) / 2)
    assert summary.confidence([1.0, 2.0]) is None


def test_speedups_are_ratios_within_a_round() -> None:
    # The machine was three times slower in the second repeat, for both; a third one hit plain alone.
    runs = [outcome("stock", repeat=n, speed=speed) for n, speed in enumerate((90.0, 30.0, 90.0))]
    runs += [outcome("plain", repeat=n, speed=speed) for n, speed in enumerate((180.0, 60.0, 45.0))]
    for prompt, speed in (("2", 300.0), ("3", 700.0)):
        runs += [outcome("stock", prompt, speed=100.0), outcome("plain", prompt, speed=speed)]
    found = summary.summarise(runs, "plain")
    assert found["speedup_vs_stock"] == pytest.approx((2 + 3 + 7) / 3)
    half = 4.303 * statistics.stdev([2, 3, 7]) / 3**0.5
    assert found["speedup_vs_stock_ci95"] == pytest.approx([4 - half, 4 + half])
    assert found["speedup_vs_plain"] == 1.0
    stock_ms, plain_ms = 2e3 * (2 / 90 + 1 / 30 + 2 / 100), 2e3 * (1 / 180 + 1 / 60 + 1 / 45 + 1 / 300 + 1 / 700)
    assert found["speedup_vs_stock_total"] == pytest.approx(stock_ms / plain_ms)
    assert found["tokens_per_second"] == pytest.approx(10e3 / plain_ms)
    assert (found["prompts"], found["generations"], found["tokens"]) == (3, 5, 15)


def test_rounds_that_one_side_lacks_are_left_out() -> None:
    runs = [outcome("stock", "1"), outcome("plain", "1", speed=200.0), outcome("plain", "2", speed=900.0)]
    found = summary.summarise(runs, "plain")
    assert (found["speedup_vs_stock"], found["speedup_vs_stock_total"]) == (pytest.approx(2), pytest.approx(2))
    assert found["speedup_vs_stock_ci95"] is None


def test_answers_of_one_token_have_no_speed() -> None:
    runs = [outcome("stock", tokens=[1]), outcome("plain", tokens=[1]), outcome("medusa", tokens=[])]
    for method in ("plain", "medusa"):
        found = summary.summarise(runs, method)
        assert (found["tokens_per_second"], found["speedup_vs_stock"], found["tokens_per_step"]) == (None, None, None)
        assert found["ttft_ms"] == 100.0


def test_step_counters_are_weighted_by_steps() -> None:
    runs = [
        outcome("medusa", "1", tokens=[0] * 11, per_step=2.0),
        outcome("medusa", "2", tokens=[0] * 31, per_step=1.0),
    ]
    found = summary.summarise(runs, "medusa")
    assert found["steps"] == 35
    assert found["tokens_per_step"] == pytest.approx(40 / 35)
    assert found["acceptance_per_depth"] == pytest.approx([5 / 35])
    assert found["tokens_per_step"] == pytest.approx(1 + sum(found["acceptance_per_depth"]))
    assert sum(found["timings_ms"].values()) == pytest.approx(400.0)


def test_steps_that_the_watchdog_kept_plain_do_not_dilute_the_others() -> None:
    drafted = outcome("medusa", "1", tokens=[0] * 21, per_step=2.0)
    watched = dataclasses.replace(outcome("medusa", "2", tokens=[0] * 21, per_step=2.0), steps=15, plain_steps=10)
    all_plain = dataclasses.replace(
        outcome("medusa", "3", tokens=[0] * 21), steps=20, plain_steps=20, tokens_per_step=0.0
    )
    found = summary.summarise([drafted, watched, all_plain], "medusa")
    assert (found["steps"], found["plain_steps"], found["tokens_per_step"]) == (45, 30, 2.0)
    assert found["acceptance_per_depth"] == [1.0]
    assert "30 of 45 steps without drafts" in "\n".join(report.step_lines("medusa", found))
    nothing = summary.summarise([all_plain], "medusa")
    assert (nothing["tokens_per_step"], nothing["acceptance_per_depth"]) == (None, [])


def test_overhead_is_in_plain_steps() -> None:
    runs = [
        outcome("plain", tokens=[0] * 21, speed=100.0),
        outcome("medusa", tokens=[0] * 21, speed=125.0, per_step=2.0),
    ]
    # A plain step takes 10 ms, one of medusa 16 ms.
    assert summary.summarise(runs, "medusa")["overhead"] == pytest.approx(1.6)


def test_output_match_is_against_plain() -> None:
    runs = [
        outcome("plain", "1", tokens=[5, 6, 7]),
        outcome("medusa", "1", tokens=[5, 6, 7]),
        outcome("plain", "2", tokens=[5, 6, 7]),
        outcome("medusa", "2", tokens=[5, 9, 7]),
        outcome("plain", "3", tokens=[5, 6], stop_reason="eos"),
        outcome("medusa", "3", tokens=[5, 6], stop_reason="length"),
    ]
    match = summary.summarise(runs, "medusa")["output_match"]
    assert match == {"identical": 1, "compared": 3, "first_divergence": [1, 2]}
    assert summary.summarise(runs, "plain")["output_match"] is None


def test_sampled_texts_are_compared_only_where_the_random_numbers_are_the_same() -> None:
    runs = [outcome(name, temperature=0.7) for name in ("plain", "medusa", "llama-lookup")]
    assert summary.summarise(runs, "medusa")["output_match"]["identical"] == 1
    assert summary.summarise(runs, "llama-lookup")["output_match"] is None


def test_a_prediction_takes_the_time_outside_of_passes_from_the_run() -> None:
    plain = summary.summarise([outcome("plain", tokens=[0] * 21, speed=100.0)], "plain")
    runs = [
        outcome("plain", tokens=[0] * 21, speed=100.0),
        outcome("medusa", tokens=[0] * 21, speed=125.0, per_step=2.0),
    ]
    total = summary.summarise(runs, "medusa")
    found = summary.prediction({"tokens_per_step": 1.5, "plain_ms": 9.0, "verify_ms": 12.4}, total, plain)
    assert found is not None
    assert found["speedup_vs_plain"] == pytest.approx(1.5 * 10 / 14)
    assert found["overhead"] == pytest.approx(1.4)
    assert found["error"] == pytest.approx(1.5 * 10 / 14 / 1.25 - 1)
    assert summary.prediction({}, total, None) is None


def test_a_prediction_knows_of_the_plain_steps() -> None:
    runs = [
        outcome("plain", tokens=[0] * 21, speed=100.0),
        dataclasses.replace(outcome("medusa", tokens=[0] * 21, speed=100.0, per_step=2.0), steps=15, plain_steps=10),
    ]
    plain, total = summary.summarise(runs[:1], "plain"), summary.summarise(runs, "medusa")
    found = summary.prediction({"tokens_per_step": 1.5, "plain_ms": 9.0, "verify_ms": 12.0}, total, plain)
    assert found is not None
    # 20 ms outside of passes: 10 plain steps take 1 ms of them each, so 5 drafting ones take 2.
    assert found["overhead"] == pytest.approx(1.4)
    assert found["speedup_vs_plain"] == pytest.approx((5 * 1.5 + 10) * 10 / (5 * 14 + 10 * 10))
    undrafted = {**total, "plain_steps": total["steps"]}
    assert summary.prediction({"tokens_per_step": 1.5, "plain_ms": 9.0, "verify_ms": 12.0}, undrafted, plain) is None


# --- a whole run with fakes ----------------------------------------------------------------------


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> type[FakeWorker]:
    fresh = type("Worker", (FakeWorker,), {"calls": [], "specs": [], "open": 0})
    monkeypatch.setattr("medusa_cli.bench.measure.Worker", fresh)
    return fresh


def plan(names: str = "stock,plain,medusa", **options: Any) -> Plan:
    given = [Prompt("1", "math", "one"), Prompt("2", "coding", "two")]
    return Plan("m.gguf", methods.parse(names), given, **{"max_tokens": 32, "repeat": 2, **options})


def run(wanted: Plan) -> tuple[dict[str, Any], Measurements]:
    found = Measurements()
    measure(wanted, found, Console(stderr=True, file=sys.stderr))
    return json.loads(json.dumps(document.build(wanted, found, "test"))), found


def test_methods_take_turns_on_each_prompt(worker: type[FakeWorker]) -> None:
    _, found = run(plan(temperatures=(0.0, 0.7)))
    warm_up, calls = worker.calls[:3], worker.calls[3:]
    assert [name for name, _ in warm_up] == ["stock", "plain", "medusa"]
    assert len(calls) == len(found.outcomes) == 24
    for at in range(0, 24, 3):
        assert {name for name, _ in calls[at : at + 3]} == {"stock", "plain", "medusa"}
        assert len({order for _, order in calls[at : at + 3]}) == 1
    assert {calls[at][0] for at in range(0, 24, 3)} == {"stock", "plain", "medusa"}
    assert [order.seed for _, order in calls] == [0] * 12 + [1] * 12
    assert worker.open == 0
    assert found.complete


def test_answers_are_measured_up_to_their_loops(worker: type[FakeWorker], monkeypatch: pytest.MonkeyPatch) -> None:
    looping = [100, 101, 102, *([1, 2, 3, 4, 5, 6, 7, 8, 9, 10] * 10)]
    start = loop_start(looping)
    assert 3 < start < 40
    monkeypatch.setattr(FakeWorker, "tokens", {**FakeWorker.tokens, "plain": looping})
    built, found = run(plan(temperatures=(0.0, 0.7)))
    assert {order.max_tokens for _, order in worker.calls[3:]} == {start}
    prompts, repeats = {outcome.prompt_id for outcome in found.outcomes}, {outcome.repeat for outcome in found.outcomes}
    # A greedy answer is the same in each repeat, a sampled one is not.
    assert len(built["loops"]) == len(prompts) * (1 + len(repeats))
    assert {loop["tokens"] for loop in built["loops"]} == {start}
    line = next(line for line in report.settings_lines(built) if "begins to repeat itself" in line)
    assert line.startswith(f"{len(built['loops'])} answers are measured up to where")
    made_up, _ = run(plan(synth_accept=0.5))
    assert made_up["loops"] == []


def test_each_method_gets_its_own_options(worker: type[FakeWorker]) -> None:
    from medusa_cli.decoding.options import AcceptKind, DraftOptions

    run(plan(draft=DraftOptions(heads="h.gguf", tree="chain_4", accept=AcceptKind.typical)))
    assert [spec.draft.no_spec for spec in worker.specs] == [True, True, False]
    assert [spec.draft.tree for spec in worker.specs] == [None, None, "chain_4"]
    for spec in worker.specs:
        assert pickle.loads(pickle.dumps(spec)) == spec


def test_the_document_has_every_key(worker: type[FakeWorker]) -> None:
    found, _ = run(plan(temperatures=(0.0, 0.7)))
    assert (found["bench_format"], found["complete"], list(found["methods"])) == (1, True, ["stock", "plain", "medusa"])
    for method in found["methods"].values():
        assert set(method) == {"summary", "tree", "total", "categories", "temperatures", "predicted"}
        assert set(method["temperatures"]) == {"0", "0.7"}
        for part in (method, *method["temperatures"].values()):
            assert list(part["categories"]) == ["math", "coding"]
            for figures in (part["total"], *part["categories"].values()):
                assert set(figures) == FIGURES
    total = found["methods"]["medusa"]["total"]
    assert (total["speedup_vs_stock"], total["speedup_vs_plain"]) == (pytest.approx(2.5), pytest.approx(1.25))
    assert total["output_match"]["identical"] == total["generations"] == 8
    assert len(found["runs"]) == 24
    assert found["runs"][0]["tokens"] == 21


def test_what_there_is_survives_a_failure(worker: type[FakeWorker]) -> None:
    worker.fails_after = 3 + 5
    wanted, found = plan(), Measurements()
    with pytest.raises(MedusaError, match=r"prompt 2, medusa: its process ended with code -9"):
        measure(wanted, found, Console(stderr=True))
    assert worker.open == 0
    built = document.build(wanted, found, "test")
    assert (built["complete"], len(built["runs"])) == (False, 5)
    text = shown(built)
    assert "cut short: 5 answers so far" in text
    assert "medusa" in text


# --- reports -------------------------------------------------------------------------------------


def shown(built: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as capture:
        report.show(built, console)
    return capture.get()


def test_the_report_fits_80_columns_and_is_plain(worker: type[FakeWorker]) -> None:
    worker.tokens = {"medusa": [*range(10), 99, *range(11, 21)]}
    text = shown(run(plan("stock,plain,medusa,llama-lookup"))[0])
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith(("│", "┃")) for line in lines)
    (row,) = [line.split() for line in lines if line.startswith("medusa  ")]
    assert row == ["medusa", "125.0", "2.50", "1.25", "2.00", "100", "ms", "2.0", "MB", "0/4"]
    (row,) = [line.split() for line in lines if line.startswith("coding")]
    assert row == ["coding", "1", "50.0", "2.00", "2.50", "0.80"]
    assert "first at token 10" in " ".join(text.split())
    assert "medusa: predicted 1." in text


def test_a_prediction_far_off_is_flagged() -> None:
    def line(speedup: float, error: float) -> str:
        promise = {"speedup_vs_plain": speedup, "tokens_per_step": 1.5, "overhead": 1.4, "error": error}
        method = {"predicted": promise, "total": {"speedup_vs_plain": 1.0}}
        (said,) = report.prediction_lines({"methods": {"medusa": method}})
        return said

    near = "medusa: predicted 1.10 times plain (1.50 tokens per step, a step takes 1.40), measured 1.00"
    assert line(1.1, 0.1) == near
    assert line(0.8, -0.2).endswith("measured 1.00: the prediction is off by -20%")


def test_intervals_are_half_widths() -> None:
    figures = {"speedup_vs_stock": 2.0, "speedup_vs_stock_ci95": [1.75, 2.25]}
    assert report.speedup("plain", figures, "stock") == "2.00 ±0.25"
    assert report.speedup("stock", figures, "stock") == "1"


def test_a_busy_machine_is_noticed(worker: type[FakeWorker]) -> None:
    found, _ = run(plan())
    assert report.busy_line(found) is None
    slowed = next(row for row in found["runs"] if row["method"] == "plain")
    slowed["tokens_per_second"] /= 3
    assert "plain decoded at 33 to 100 tokens/s" in (report.busy_line(found) or "")


def test_missing_baselines_are_dashes(worker: type[FakeWorker]) -> None:
    text = shown(run(plan("medusa"))[0])
    (row,) = [line.split() for line in text.splitlines() if line.startswith("medusa  ")]
    assert row == ["medusa", "125.0", "-", "-", "2.00", "100", "ms", "2.0", "MB", "-"]


def test_markdown_tables_are_whole(worker: type[FakeWorker]) -> None:
    text = report.markdown(run(plan(temperatures=(0.0, 0.7)))[0])
    assert "## Greedy (temperature 0)" in text
    assert "## Temperature 0.7" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1
    assert "| coding | medusa | 125.0 | 2.50 | 2.50 | 1.25 | 1.25 | 2.00 | 100% | 1.60 |" in text


def test_made_up_acceptance_is_labelled_everywhere(worker: type[FakeWorker], tmp_path: Path) -> None:
    label = "NOT REAL OUTPUT: each draft was accepted with probability 0.6"
    document, _ = run(plan(synth_accept=0.6))
    assert worker.calls[-1][1].synth_accept == 0.6
    assert document["settings"]["synth_accept"] == 0.6
    assert document["methods"]["medusa"]["predicted"] is None
    text = " ".join(shown(document).split())
    assert text.count(label) == 3, "settings and both tables"
    assert f"## Greedy (temperature 0): {label}" in report.markdown(document)
    real, _ = run(plan())
    assert compare.differences(real, document) == [
        "note: settings, synth_accept: None in A, 0.6 in B",
        f"note: B is {label}",
    ]
    assert "NOT REAL" not in shown(real) + report.markdown(real)


# --- comparing -----------------------------------------------------------------------------------


def test_two_results_side_by_side(worker: type[FakeWorker]) -> None:
    a, _ = run(plan())
    worker.speeds = {"stock": 25.0, "plain": 50.0, "medusa": 75.0}
    b, _ = run(plan("medusa,stock,plain"))
    table = compare.table(a, b)
    rows = {row[0]: list(row[1:]) for row in table.rows}
    # Twice as slow a machine, but medusa less so: 3.0 instead of 2.5 times stock.
    assert rows["medusa"] == ["125.0", "75.0", "0.60", "2.50", "3.00", "1.20", "2.00", "2.00"]
    assert rows["stock"][2:6] == ["0.50", "1.00", "1.00", "-"]
    assert compare.differences(a, b) == []
    b["settings"]["max_tokens"], b["complete"] = 64, False
    assert compare.differences(a, b) == ["note: settings, max_tokens: 32 in A, 64 in B", "note: B was cut short"]


def test_results_without_a_common_method(worker: type[FakeWorker]) -> None:
    with pytest.raises(MedusaError, match="no method in common: A has stock, B has plain"):
        compare.table(run(plan("stock"))[0], run(plan("plain"))[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a benchmark"),
        ('{"methods": {}}', "is not a benchmark"),
        ('{"bench_format": 99, "methods": {}}', "benchmark format 99"),
    ],
)
def test_files_that_are_no_benchmark(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(MedusaError, match=message):
        document.read(path)
    with pytest.raises(MedusaError, match="no such file"):
        document.read(tmp_path / "gone.json")


# --- pictures ------------------------------------------------------------------------------------


def test_a_plot_is_written_in_each_format(worker: type[FakeWorker], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    built, _ = run(plan())
    for name, begins in (("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")):
        plots.check(tmp_path / name)
        plot.write(built, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(begins)
    alone, _ = run(plan("medusa"))
    plot.write(alone, tmp_path / "alone.svg")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MedusaError, match=r"medusa-cli\[plot\]"):
        plots.check(Path("a.svg"))
    with pytest.raises(MedusaError, match=r"a plot is \.svg, \.png, \.pdf"):
        plots.check(Path("a.gif"))


def test_the_end_of_a_text_counts_as_a_token() -> None:
    ended, cut = outcome("plain", tokens=[1], stop_reason="eos"), outcome("plain", tokens=[1])
    assert lossless.first_difference(ended.ended, cut.ended) == 1
