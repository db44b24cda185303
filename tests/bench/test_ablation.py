"""`medusa bench ablate` with made-up heads, sessions and clocks."""

from __future__ import annotations

import itertools
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli import native
from medusa_cli.bench.ablation import measure as budget
from medusa_cli.bench.ablation import report, samples
from medusa_cli.bench.ablation.measure import Bench, Found, Pace, measure
from medusa_cli.bench.ablation.rows import (
    HEADS,
    KINDS,
    METHODS,
    RULES,
    SIZES,
    TABLES,
    TREES,
    HeadsFile,
    Row,
    best_by_cost,
    interpolated,
    plan_rows,
)
from medusa_cli.bench.ablation.samples import Sample, figures, median_interval
from medusa_cli.bench.protocol import Outcome
from medusa_cli.decoding.drafting import DraftPlan, Tuned
from medusa_cli.decoding.options import AcceptKind
from medusa_cli.decoding.trees import DynamicStart
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support.errors import MedusaError

ACCURACY = [[0.5 / 2**rank for rank in range(10)] for _ in range(3)]
FILE = HeadsFile("heads", Path("heads.gguf"), "hydra", 3, 8000, ACCURACY)
BARE = HeadsFile("bare", Path("bare.gguf"), "medusa", 5, 8000)
RULES_KNOWN = [kind.value for kind in AcceptKind]
COSTS = {1: 1.0, 2: 1.1, 4: 1.3, 8: 2.0, 16: 4.0, 32: 8.0, 64: 16.0}
LOOKUP = {"lookup": DraftPlan(lookup=True)}


def rows_of(file: HeadsFile = FILE, *others: HeadsFile) -> list[Row]:
    return plan_rows([file, *others], COSTS, LOOKUP, RULES_KNOWN)


# --- what is measured ------------------------------------------------------------------------------


def test_every_table_has_its_rows() -> None:
    rows = rows_of()
    in_table = {table: [row.labels[table] for row in rows if table in row.labels] for table in TABLES}
    assert in_table[TREES] == ["chain", "cartesian:3,2,1", "random 16", "sparse 16", "tuned", "grown"]
    assert {f"sparse {nodes}" for nodes in (2, 4, 8, 16, 32, 64)} < set(in_table[SIZES])
    assert in_table[RULES] == [
        f"{rule}, temp. {0 if rule == 'greedy' else 0.7:g}" for rule in sorted(RULES_KNOWN, key=lambda r: r != "greedy")
    ]
    assert sorted(in_table[HEADS]) == ["1 head", "2 heads", "3 heads"]
    assert in_table[KINDS] == []
    assert in_table[METHODS] == ["lookup"]
    assert len({row.name for row in rows}) == len(rows)


def test_what_decodes_alike_is_measured_once() -> None:
    rows = rows_of()
    for at, row in enumerate(rows):
        assert not any(row.decodes_like(other) for other in rows[:at])
    (sparse,) = (row for row in rows if row.name == "sparse 16")
    assert set(sparse.labels) == {TREES, SIZES, RULES, HEADS}
    sampled = [row for row in rows if row.labels.get(RULES) and row.temperature]
    assert sampled
    assert all(row.drafts_like(sparse) and not row.decodes_like(sparse) for row in sampled)


@pytest.mark.parametrize("file", [FILE, BARE, HeadsFile("one", Path("one"), "medusa", 1, 4, ACCURACY[:1])])
def test_all_trees_can_be_filled(file: HeadsFile) -> None:
    for row in rows_of(file):
        if row.tree is not None:
            tree = native.Tree(row.tree)
            assert 1 < tree.size <= 64
            assert tree.depth == row.heads <= file.head_count
            assert tree.max_rank < file.output_rows


def test_kinds_stand_side_by_side() -> None:
    rows = [row for row in rows_of(FILE, BARE) if KINDS in row.labels]
    assert sorted(row.labels[KINDS] for row in rows) == sorted(
        f"{label}: {what}" for label in ("heads", "bare") for what in ("chain", "sparse 16", "grown")
    )
    assert {row.heads_file for row in rows} == {"heads", "bare"}


def test_what_was_tuned_comes_before_what_costs_tell() -> None:
    start = DynamicStart(costs=[(1, 1.0), (2, 1.5)])
    tuned = HeadsFile("t", Path("t"), "hydra", 3, 8000, ACCURACY, Tuned([[0], [0, 0]], True, start))
    rows = {row.name: row for row in rows_of(tuned)}
    assert rows["tuned"].tree == [[0], [0, 0]]
    assert rows["grown"].plan.tree == start
    guessed = best_by_cost(FILE, COSTS)
    # A step of 4 nodes costs 1.3: no size brings more for its cost.
    assert len(guessed) + 1 == 4
    assert best_by_cost(BARE, COSTS) == []


def test_heads_without_accuracies_have_the_published_tree() -> None:
    assert BARE.sparse(4, 5) == [[0], [1], [0, 0]]
    assert BARE.sparse(9, 1) == [[rank] for rank in range(8)]


@given(st.integers(1, 80))
def test_costs_between_sizes_are_on_the_line(nodes: int) -> None:
    value = interpolated(COSTS, nodes)
    assert min(COSTS.values()) <= value <= max(COSTS.values())
    if nodes in COSTS:
        assert value == COSTS[nodes]
    assert interpolated(COSTS, nodes + 1) >= value


# --- the budget ------------------------------------------------------------------------------------


@given(prompt=st.floats(1e-5, 0.1), token=st.floats(1e-4, 1.0), seconds=st.floats(1, 3600), done=st.integers(0, 40))
def test_the_longest_answers_that_fit_are_taken(prompt: float, token: float, seconds: float, done: int) -> None:
    paces = [Pace(prompt, token)] * 5
    chosen = budget.answer_tokens(paces, 50, seconds, done)
    rounds = max(1, budget.MIN_ROUNDS - done)
    if chosen > budget.TOKENS[-1]:
        assert rounds * budget.round_seconds(paces, 50, chosen) <= seconds
    longer = [tokens for tokens in budget.TOKENS if tokens > chosen]
    wanted = max(1, budget.WANTED_ROUNDS - done)
    assert all(wanted * budget.round_seconds(paces, 50, tokens) > seconds for tokens in longer)


# --- measuring -------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeSession:
    """A token of an answer takes `ms`; a step brings `per_step` tokens. log: names in the order of their answers."""

    def __init__(
        self, name: str, clock: Clock, log: list[Any], ms: float, per_step: int = 1, length: int = 999
    ) -> None:
        self.name, self.clock, self.log, self.ms = name, clock, log, ms
        self.per_step, self.length = per_step, length

    def reset(self) -> None: ...

    def generate(self, prompt: Any, *, max_tokens: int, sampling: Any, accept: Any, cancellation: Any) -> Any:
        count = min(max_tokens, self.length)
        decoded = count - 1
        self.log.append((self.name, len(prompt), count))
        self.clock.now += (decoded * self.ms + len(prompt)) / 1e3
        timings = dict.fromkeys(("draft", "verify", "accept", "commit", "other"), 0.0) | {"verify": decoded * self.ms}
        stats = {
            "steps": math.ceil(decoded / self.per_step),
            "plain_steps": 0,
            "tokens_per_step": float(self.per_step),
            "timings_ms": timings,
            "ttft_ms": float(len(prompt)),
            "tree_nodes": 4,
            "tokens_per_second": 1e3 / self.ms,
            "prompt_tokens_per_second": 1e3,
            "acceptance_per_depth": [],
            "accept": "greedy",
            "peak_rss_bytes": 0,
        }
        return SimpleNamespace(tokens=list(range(count)), prompt_tokens=len(prompt), stop_reason="length", stats=stats)


def made_bench(seconds: float, ms: float = 10.0, length: int = 999) -> tuple[Bench, Clock, list[Any], list[Row]]:
    clock, rows = Clock(), rows_of()
    log: list[Any] = []
    plain: Any = FakeSession("plain", clock, log, ms, length=length)
    sessions: dict[str, Any] = {row.name: FakeSession(row.name, clock, log, ms / 2, 2) for row in rows}
    return Bench(rows, plain, lambda row: sessions[row.name], seconds, clock=clock), clock, log, rows


PROMPTS = [(Prompt(str(n), "all", "x"), [0] * (10 + n)) for n in range(3)]


def test_every_row_is_measured_between_answers_of_plain_decoding() -> None:
    bench, clock, log, rows = made_bench(300)
    found = Found()
    measure(bench, PROMPTS, found)
    assert 250 < clock.now <= 300
    assert found.max_tokens == 96
    assert found.prompts >= budget.WANTED_ROUNDS
    assert {len(found.samples[at]) for at in range(len(rows))} == {found.prompts}
    names = [name for name, _, _ in log]
    assert names[0] == names[-1] == "plain"
    gaps = "".join("p" if name == "plain" else "." for name in names)
    assert "....." not in gaps
    for at, row in enumerate(rows):
        one = figures(row, found.samples[at])
        assert one["speedup_vs_plain"] == pytest.approx(2.0)
        assert one["overhead"] == pytest.approx(1.0, rel=0.02)
        assert one["tokens_per_step"] == 2.0
        assert one["tokens_per_second"] == pytest.approx(200.0)
        assert one["prompts"] == found.prompts


def test_who_goes_first_changes() -> None:
    bench, _, log, rows = made_bench(1e9)
    for number in range(3):
        bench.round(number, *PROMPTS[0], 16)
    firsts = [b[0] for a, b in itertools.pairwise(log) if a[0] == "plain" and b[0] != "plain"]
    assert firsts[0] == rows[0].name
    assert rows[1].name in firsts
    assert rows[2].name in firsts


@pytest.mark.parametrize(("seconds", "ms"), [(20.0, 5.0), (60.0, 10.0), (60.0, 40.0), (600.0, 400.0)])
def test_it_ends_in_time_with_all_rows(seconds: float, ms: float) -> None:
    bench, clock, _, rows = made_bench(seconds, ms)
    found = Found()
    measure(bench, PROMPTS, found)
    assert clock.now <= seconds + 16 * ms / 1e3
    assert set(found.samples) == set(range(len(rows)))
    assert found.prompts >= 1


def test_a_machine_that_stalls_does_not_make_it_late() -> None:
    bench, clock, _, rows = made_bench(60.0)
    for row in rows:
        session = bench.session_of(row)
        assert isinstance(session, FakeSession)
        session.ms = 10.0
    slow = bench.session_of(rows[3])
    assert isinstance(slow, FakeSession)
    original = slow.generate

    def stall(prompt: Any, **options: Any) -> Any:
        slow.ms *= 1.5
        return original(prompt, **options)

    slow.generate = stall  # type: ignore[method-assign]
    found = Found()
    measure(bench, PROMPTS, found)
    # One answer may be begun in time and end late here: on a real machine it is cancelled.
    assert clock.now <= 60.0 + 96 * slow.ms / 1e3
    assert set(found.samples) == set(range(len(rows)))


def test_an_answer_that_is_under_way_is_cancelled_when_the_time_is_up() -> None:
    cancelled = []

    class Endless(FakeSession):
        def generate(self, prompt: Any, **options: Any) -> Any:
            if self.name != "plain":
                until = time.monotonic() + 20
                while not options["cancellation"].requested and time.monotonic() < until:
                    time.sleep(0.01)
                cancelled.append(time.monotonic() < until)
            return super().generate(prompt, **options)

    clock, rows = Clock(), rows_of()
    log: list[Any] = []
    made: Any = Endless
    bench = Bench(
        rows, made("plain", clock, log, 1.0), lambda row: made(row.name, clock, log, 1.0), time.monotonic() + 0.3
    )
    with pytest.raises(MedusaError, match="give more --minutes"):
        measure(bench, PROMPTS, Found())
    assert cancelled == [True]
    assert len([name for name, _, _ in log if name != "plain"]) == 1


def test_answers_that_end_at_once_are_told() -> None:
    bench, _, _, _ = made_bench(60, length=3)
    with pytest.raises(MedusaError, match="ends its answers at once"):
        measure(bench, PROMPTS, Found())


# --- figures ---------------------------------------------------------------------------------------


def answer(
    steps: int = 10, ms: float = 100.0, verify: float = 80.0, prompt_ms: float = 50.0, category: str = "a"
) -> Outcome:
    """20 tokens in `steps` steps, after the first one."""
    return Outcome(
        "x", "1", category, 0.0, 0, tuple(range(21)), 10, "length", 2e4 / ms, 1.0, prompt_ms, steps, 20 / steps, (),
        {"verify": verify, "draft": ms - verify}, 4, "greedy", 0,
    )  # fmt: skip


def test_figures_are_medians_over_the_prompts() -> None:
    plain = answer(steps=20, ms=200.0)
    # The third prompt fell into a slow spell.
    found = [Sample(answer(ms=ms), (plain, plain)) for ms in (100.0, 125.0, 5000.0)]
    row = figures(rows_of()[0], found)
    assert row["speedup_vs_plain"] == pytest.approx(200 / 125)
    assert row["overhead"] == pytest.approx(12.5 / 10)
    assert row["tokens_per_second"] == pytest.approx(160.0)
    assert row["tokens_per_step"] == pytest.approx(2.0)
    assert row["speedup_vs_plain_ci95"] is None
    empty = figures(rows_of()[0], [])
    assert empty["nodes"] == 4
    assert {empty[key] for key in ("tokens_per_step", "tokens_per_second", "speedup_vs_plain", "overhead")} == {None}


def test_plain_decoding_before_and_after_counts_alike() -> None:
    sample = Sample(answer(), (answer(steps=20, ms=100.0), answer(steps=20, ms=300.0)))
    assert sample.plain_speed == pytest.approx((200 + 20 / 0.3) / 2)
    assert sample.overhead == pytest.approx(10.0 / 10.0)


def test_the_interval_of_a_median() -> None:
    # The classical table of order statistics: 6 values: the extremes, 10: the second, 20: the sixth, 40: the 14th.
    for count, place in ((6, 1), (10, 2), (20, 6), (40, 14)):
        values = [float(value) for value in range(1, count + 1)]
        assert median_interval(values) == (place, count + 1 - place)
    assert median_interval([1.0] * 5) is None


@given(st.lists(st.floats(0.1, 10), min_size=6, max_size=60))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    interval = median_interval(values)
    assert interval is not None
    ordered = sorted(values)
    assert interval[0] <= ordered[len(values) // 2] <= interval[1] or interval[0] <= ordered[(len(values) - 1) // 2]
    assert interval[0] in values
    assert interval[1] in values


# --- the cost model --------------------------------------------------------------------------------


@given(a=st.floats(0.05, 2), b=st.floats(-1, 3))
def test_a_logarithm_is_fitted(a: float, b: float) -> None:
    found = samples.fit_log([(nodes, a * math.log(nodes) + b) for nodes in (1, 2, 8, 64)])
    assert found == (pytest.approx(a), pytest.approx(b, abs=1e-9))
    assert samples.fit_log([(4, 1.0), (4, 2.0)]) is None


def test_predictions_stand_beside_what_was_measured() -> None:
    tree = [[0], [0, 0], [1]]
    measured = {"name": "sparse 4", "nodes": 4, "tree": tree, "tokens_per_step": 1.9, "overhead": 1.5}
    rows = [{**measured, "speedup_vs_plain": 1.25}]
    found = samples.cost_model(rows, ACCURACY, {1: 4.0, 4: 5.0}, [(1.0, 0.5)])
    (row,) = found["rows"]
    assert row["tokens_per_step"]["accuracies"] == pytest.approx(1 + 0.5 + 0.25 + 0.25)
    assert row["tokens_per_step"]["log"] == pytest.approx(1.9)
    assert row["overhead"] == {"predicted": pytest.approx(6.0 / 4.5), "measured": 1.5}
    assert row["speedup"]["accuracies"] == pytest.approx(2.0 / (6.0 / 4.5))
    assert row["speedup"]["measured"] == 1.25
    assert found["a"] == pytest.approx(0.9 / math.log(4))
    # What nobody measured, or no accuracy tells, is not made up.
    unknown = samples.cost_model([{**rows[0], "tokens_per_step": None}], [], {1: 4.0, 2: 5.0}, [None])
    assert unknown["a"] is None
    assert unknown["rows"][0]["speedup"] == {"accuracies": None, "log": None, "measured": 1.25}


def test_what_steps_take_beside_their_pass() -> None:
    one = Sample(answer(steps=10, ms=100.0, verify=80.0), (answer(steps=20, ms=100.0, verify=95.0),) * 2)
    assert samples.outside_ms([one]) == (pytest.approx(2.0), pytest.approx(0.25))
    assert samples.outside_ms([]) is None


# --- the report ------------------------------------------------------------------------------------


def made_document(count: int = 8) -> dict[str, Any]:
    plain = answer(steps=20, ms=200.0)
    found = [Sample(answer(ms=100.0 + n), (plain, plain)) for n in range(count)]
    rows = rows_of(FILE, BARE)
    return {
        "model": {"name": "m.gguf", "description": "fake 1M F32"},
        "machine": {"cpu": "a CPU", "cores_physical": 2, "memory_total": 1},
        "heads": [{"label": "heads", "kind": "hydra", "head_count": 3, "accuracy_known": False, "tuned": False}],
        "settings": {
            "data": "built in", "minutes": 1, "seconds": 61.0, "prompts": count, "prompts_left_out": 2,
            "max_tokens": 64, "context": 1024, "threads": 0,
        },
        "complete": True,
        "rows": [figures(row, found) for row in rows],
        "cost_model": samples.cost_model([], [], {}, []),
        "spec_bench": {},
    }  # fmt: skip


def test_tables_fit_into_60_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from medusa_cli.support import console

    document = made_document()
    report.show(document, console.data())
    out = capsys.readouterr().out
    for title in report.TITLES.values():
        assert title in out
    assert "sparse trees are the Medusa authors' choices" in out
    assert "2 prompts were skipped, too long for a context of 1024 tokens" in out
    tables = [report.table_of(document, name) for name in TABLES]
    for table in filter(None, tables):
        widths = [max(len(line[at]) for line in (table.headers, *table.rows)) for at in range(len(table.headers))]
        assert sum(widths) + 2 * (len(widths) - 1) <= 60, table.title
    sizes = report.rows_of(document, SIZES)
    assert [row["nodes"] for row in sizes] == sorted(row["nodes"] for row in sizes)


def test_spec_bench_s_kinds_are_told_by_its_questions(capsys: pytest.CaptureFixture[str]) -> None:
    from medusa_cli.bench.ablation import run
    from medusa_cli.support import console

    asked = [Prompt("1", "writing", "x"), Prompt("2", "rag", "x")]
    plain = answer(steps=20, ms=150.0)
    # One of its questions has been answered, of a category that MT-Bench has, too.
    found = run.by_kind(asked, {"tuned": [Sample(answer(category="writing"), (plain, plain))]})
    speedup = pytest.approx((21 / 0.15) / (21 / 0.2))
    kind = {"questions": 1, "speedup": speedup, "mean_accepted_tokens": 2.0}
    assert found == {"tuned": {"multi-turn conversation": kind, "overall": kind}}
    assert run.by_kind(asked[:1], {"tuned": []}) == {}
    report.show({**made_document(), "spec_bench": found}, console.data())
    assert "Spec-Bench: tuned" in capsys.readouterr().out


def test_pictures_are_drawn_for_each_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from medusa_cli.bench.ablation import plot

    plot.prepare(tmp_path / "new" / "figures")
    document = made_document()
    document["cost_model"] = samples.cost_model(
        [row for row in document["rows"] if row["tables"].get(SIZES, "").startswith("sparse")],
        ACCURACY,
        {width: float(width) for width in COSTS},
        [(0.1, 0.1)] * 6,
    )
    written = plot.write(document, tmp_path / "new" / "figures")
    assert [path.name for path in written] == [f"{name}.svg" for name in (*TABLES, "cost-model")]
    assert all(b"<svg" in path.read_bytes() for path in written)
