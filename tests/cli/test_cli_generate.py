"""`medusa generate` with a fake model: prompts, output, JSON, Ctrl-C, pipes, and what the engine is asked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_fakes import (
    HEADS_METADATA,
    HEADS_TENSORS,
    FakeHeads,
    FakeModel,
    FakeSession,
    base_gguf,
    heads_gguf,
    install,
    write_gguf,
)
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.commands.command_line import parse_logit_bias
from medusa_cli.decoding.options import AcceptKind
from medusa_cli.decoding.settings import Settings

REPORTED_KEYS = {
    "drafts_ended",
    "tokens_per_step",
    "acceptance_per_depth",
    "tokens_per_second",
    "prompt_tokens_per_second",
    "steps",
    "plain_steps",
    "timings_ms",
    "ttft_ms",
    "peak_rss_bytes",
    "tree_nodes",
    "accept",
    "threads",
    "stop_reason",
    "output_match",
}
OWN_KEYS = {"text", "thinking", "parts", "tokens", "prompt_tokens", "generated_tokens", "loop_tokens", "seed"}


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(base_gguf(tmp_path / "tiny.gguf"))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[FakeSession]:
    return install(monkeypatch)


def generate(*arguments: str, stdin: str | bytes = "") -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `medusa generate`."""
    result = CliRunner().invoke(cli.app, ["generate", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_only_the_text_is_on_stdout(model: str, session: type[FakeSession]) -> None:
    session.answers = ["Hello you."]
    assert generate(model, "-p", "Hi") == (0, "Hello you.\n", "")
    assert session.calls[0].text == "<user>Hi\n<assistant>"


def test_the_prompt_comes_from_a_flag_a_file_or_standard_input(
    model: str, session: type[FakeSession], tmp_path: Path
) -> None:
    session.answers = ["a\n"] * 4
    file = tmp_path / "prompt.txt"
    file.write_text("from a file\n\n")
    assert generate(model, "-f", str(file))[:2] == (0, "a\n")
    generate(model, stdin="from a pipe\n")
    generate(model, "-f", "-", stdin="from a dash")
    generate(model, "--raw", "-p", "as it is")
    prompts = [call.text for call in session.calls]
    assert prompts == [
        "<user>from a file\n\n<assistant>",
        "<user>from a pipe\n<assistant>",
        "<user>from a dash\n<assistant>",
        "as it is",
    ]


def test_several_files_and_a_question_are_one_prompt(model: str, session: type[FakeSession], tmp_path: Path) -> None:
    session.answers = ["a"] * 4
    one, other = tmp_path / "one.txt", tmp_path / "other.txt"
    one.write_text("First.\n")
    other.write_text("Look: ``` and\n")
    first, second = f"{one}:\n```\nFirst.\n```", f"{other}:\n````\nLook: ``` and\n````"
    assert generate(model, "-f", str(one), "-f", str(other), "-p", "So?") == (0, "a\n", "")
    generate(model, "-p", "So?", "-f", str(one))
    generate(model, "-f", str(one), "-f", "-", stdin="piped\n")
    generate(model, "-f", str(one), "-f", str(one), "--raw")
    assert [call.text for call in session.calls] == [
        f"<user>{first}\n\n{second}\n\nSo?\n<assistant>",
        f"<user>{first}\n\nSo?\n<assistant>",
        f"<user>{first}\n\nstandard input:\n```\npiped\n```\n<assistant>",
        f"{first}\n\n{first}",
    ]


def test_standard_input_is_read_once(model: str, session: type[FakeSession]) -> None:
    code, _, err = generate(model, "-f", "-", "-f", "-", "-p", "x", stdin="text")
    assert (code, "standard input (-) can be read once" in err) == (2, True)


def test_nothing_is_said_of_a_prompt_where_there_is_no_terminal(
    model: str, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medusa_cli.support.reading.SECONDS", 0.0)
    session.answers, session.pieces, session.delay = ["a", "b"], 3, 0.01
    assert generate(model, "-p", "x") == (0, "a\n", "")
    assert generate(model, "-p", "x", "--json")[2] == ""


def test_the_system_prompt_goes_first(model: str, session: type[FakeSession]) -> None:
    session.answers = ["a"]
    generate(model, "-sys", "Rhyme.", "-p", "Hi")
    assert session.calls[0].text == "<system>Rhyme.\n<user>Hi\n<assistant>"


def test_json_is_one_object_with_every_key(model: str, session: type[FakeSession]) -> None:
    session.answers = ["Hé"]
    code, out, err = generate(model, "-p", "Hi", "--json", "-s", "5")
    assert (code, err, out.count("\n")) == (0, "", 1)
    found = json.loads(out)
    assert set(found) == REPORTED_KEYS | OWN_KEYS
    assert (found["text"], found["tokens"], found["generated_tokens"], found["seed"]) == ("Hé", [72, 233], 2, 5)
    assert (found["prompt_tokens"], found["stop_reason"]) == (20, "eos")


def test_ctrl_c_keeps_what_there_is(model: str, session: type[FakeSession]) -> None:
    session.answers = [KeyboardInterrupt("Half an")]
    assert generate(model, "-p", "Hi") == (130, "Half an\n", "")
    session.answers = [KeyboardInterrupt("Half an")]
    code, out, _ = generate(model, "-p", "Hi", "--json")
    assert code == 130
    assert (json.loads(out)["text"], json.loads(out)["stop_reason"]) == ("Half an", "cancelled")
    session.answers = [KeyboardInterrupt("")]
    assert generate(model, "-p", "Hi") == (130, "", "")


def test_sampling_options_reach_the_engine(model: str, session: type[FakeSession]) -> None:
    session.answers = ["a", "a"]
    generate(model, "-p", "x")
    assert (session.calls[0].sampling.temperature, session.calls[0].accept.kind) == (0.0, "greedy")
    generate(
        model, "-p", "x", "-n", "9", "--temp", "0.5", "--top-k", "3", "--top-p", "0.5", "--min-p", "0.1",
        "--repeat-penalty", "1.1", "--frequency-penalty", "0.25", "--presence-penalty", "-0.5",
        "--repeat-last-n", "32", "-s", "4294967295", "--stop", "A", "--stop", "B",
        "--ignore-eos", "--logit-bias", "5=-inf", "--accept", "typical", "--epsilon", "0.2", "--delta", "0.4",
        "--greedy-root",
    )  # fmt: skip
    call = session.calls[1]
    assert (call.max_tokens, call.stop, call.ignore_eos) == (9, ("A", "B"), True)
    assert vars(call.sampling) == {
        "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.1,
        "frequency_penalty": 0.25, "presence_penalty": -0.5, "repeat_last_n": 32,
        "logit_bias": {5: float("-inf")}, "seed": 4294967295,
    }  # fmt: skip
    assert vars(call.accept) == {
        "kind": "typical", "epsilon": 0.2, "delta": 0.4, "model_alone": False, "greedy_root": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "epsilon", "delta"),
    [((), 0.09, 0.3), (("--epsilon", "0.16"), 0.16, 0.4), (("--delta", "0.2"), 0.09, 0.2)],
)
def test_typical_as_published_is_one_flag(
    model: str, session: type[FakeSession], given: tuple[str, ...], epsilon: float, delta: float
) -> None:
    session.answers = ["a"]
    generate(model, "-p", "x", "--accept", "typical", "--as-published", "--temp", "0.7", *given)
    accept = session.calls[0].accept
    assert (accept.kind, accept.model_alone, accept.greedy_root) == ("typical", True, True)
    assert (accept.epsilon, accept.delta) == (pytest.approx(epsilon), pytest.approx(delta))


@pytest.mark.parametrize("rule", ["rejection", "nucleus"])
def test_rules_that_need_a_temperature(model: str, session: type[FakeSession], rule: str) -> None:
    session.answers = ["a"]
    assert generate(model, "-p", "x", "--accept", rule, "--temp", "0.7")[0] == 0
    assert session.calls[0].accept.kind == rule
    code, _, err = generate(model, "-p", "x", "--accept", rule)
    assert code == 2
    assert f"{rule} needs a temperature above 0" in " ".join(err.replace("│", " ").split())


def test_the_real_sampler_takes_every_setting() -> None:
    settings = Settings(temperature=0.5, logit_bias={5: float("-inf"), 7: 1.5})
    assert isinstance(settings.sampling(seed=4294967295), native.Sampling)
    for kind in AcceptKind:
        settings.accept = kind.value
        assert isinstance(settings.rule(), native.Accept)


def test_logit_bias_spellings() -> None:
    assert parse_logit_bias(["5=1.5", "6+2", "7-.5", "8=-inf", "5=2"]) == {5: 2.0, 6: 2.0, 7: -0.5, 8: float("-inf")}


def test_greedy_acceptance_means_temperature_0(model: str, session: type[FakeSession]) -> None:
    session.answers = ["a"]
    generate(model, "-p", "x", "--accept", "greedy", "--temp", "0")
    assert session.calls[0].accept.kind == "greedy"


@pytest.mark.parametrize(
    ("options", "watched"),
    [
        ((), False),  # dynamic trees look after themselves
        (("--tree", "static"), True),
        (("--tree", "static", "-s", "5"), False),
        (("--tree", "static", "-s", "-1"), True),
        (("--tree", "chain_4"), False),
    ],
)
def test_a_tree_or_a_seed_switches_the_watchdog_off(
    model: str, session: type[FakeSession], tmp_path: Path, options: tuple[str, ...], watched: bool
) -> None:
    session.answers = ["One"]
    heads = heads_gguf(tmp_path / "heads.gguf")
    code, _, err = generate(model, "-p", "Hi", "--heads", str(heads), *options)
    assert code == 0, err
    assert session.calls[0].watchdog is watched


def test_without_a_seed_runs_differ(model: str, session: type[FakeSession]) -> None:
    session.answers = ["a"] * 3
    seeds = {json.loads(generate(model, "-p", "x", "--json", "-s", "-1")[1])["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_engine_options_reach_the_session(model: str, session: type[FakeSession]) -> None:
    session.answers = ["a"]
    generate(model, "-p", "x", "-c", "512", "-t", "3", "-ctk", "q8_0", "-ctv", "q4_0")
    made = session.created[0]
    assert (made.n_ctx, made.n_threads, made.type_k, made.type_v) == (512, 3, "q8_0", "q4_0")
    assert (made.heads, made.tree.size) == (None, 1)


DYNAMIC = -1
"""In place of a size: each step has a tree of its own."""


@pytest.mark.parametrize(
    ("arguments", "backend", "stored", "size"),
    [
        ((), "CPU", [[0]], DYNAMIC),
        (("--tree", "static"), "CPU", [], 4),
        ((), "CUDA", [], DYNAMIC),
        ((), "MTL", [[0]], DYNAMIC),
        (("--tree", "static"), "CUDA", [], 64),
        (("--tree", "static"), "MTL", [], 4),
        (("--tree", "static"), "CPU", [[0], [0, 0]], 3),
        (("-s", "7"), "CPU", [[0], [0, 0]], 3),
        # On a CPU every node costs: a stored tree is cut.
        (("--tree", "static"), "CPU", [[0], [1], [2], [0, 0], [3], [4]], 4),
        (("--tree", "static"), "CUDA", [[0], [1], [2], [0, 0], [3], [4]], 7),
        (("-s", "7"), "CUDA", [[0], [1], [2], [0, 0], [3], [4]], 7),
        (("--tree", "cpu_16"), "CPU", [[0]], 16),
        (("--tree", "chain_4"), "CPU", [[0]], 5),
        (("--no-spec",), "CPU", [], 1),
        (("--no-spec", "--tree", "chain_4"), "CPU", [], 1),
    ],
)
def test_the_tree_is_the_asked_one_the_stored_one_or_the_default(
    model: str,
    session: type[FakeSession],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    backend: str,
    stored: list[list[int]],
    size: int,
) -> None:
    monkeypatch.setattr(FakeModel, "backend", backend)
    monkeypatch.setattr(native, "Heads", lambda model, path: FakeHeads(model, path, tree=stored))
    session.answers = ["a"]
    heads = str(heads_gguf(tmp_path / "heads.gguf"))
    code, _, err = generate(model, "-p", "x", "--heads", heads, *arguments)
    assert (code, err) == (0, "")
    made = session.created[0]
    assert (DYNAMIC if made.dynamic else made.tree.size) == size
    assert (made.heads is None) == ("--no-spec" in arguments)


def test_built_in_trees_are_clipped_to_the_heads(
    model: str, session: type[FakeSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "Heads", lambda model, path: FakeHeads(model, path, head_count=2, output_rows=3))
    session.answers = ["a"]
    generate(model, "-p", "x", "--heads", str(heads_gguf(tmp_path / "heads.gguf")), "--tree", "mc_sim_7b_63")
    tree = session.created[0].tree
    assert (tree.depth, tree.max_rank) == (2, 2)


@pytest.mark.parametrize(
    ("options", "recycling"),
    [((), True), (("--no-recycling",), False), (("-s", "1"), False), (("-s", "1", "--recycling"), True)],
)
def test_recycling_is_on_without_heads_unless_steps_are_to_repeat(
    model: str, session: type[FakeSession], options: tuple[str, ...], recycling: bool
) -> None:
    session.answers = ["a"]
    code, _, err = generate(model, "-p", "x", *options)
    assert (code, err) == (0, "")
    assert session.created[0].recycling is recycling


@pytest.mark.parametrize(
    ("options", "free", "dynamic"),
    [
        (("-s", "7"), True, True),
        (("-s", "7"), False, False),
        (("-s", "7", "--temp", "0.7"), True, True),
        (("-s", "7", "--temp", "0.7", "--accept", "typical"), True, False),
        (("-s", "7", "--temp", "0.7", "--accept", "rejection"), True, False),
        (("--repeat-steps",), True, False),
        (("--repeat-steps", "-s", "7"), True, False),
    ],
)
def test_a_seed_keeps_all_drafts_where_the_text_cannot_depend_on_them(
    model: str,
    session: type[FakeSession],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    free: bool,
    dynamic: bool,
) -> None:
    monkeypatch.setattr("medusa_cli.decoding.runtime.width_matters", lambda *_: "" if free else "a reason")
    session.answers = ["a"]
    heads = str(heads_gguf(tmp_path / "heads.gguf"))
    code, _, err = generate(model, "-p", "x", "--heads", heads, *options)
    assert (code, err) == (0, "")
    assert (session.created[0].dynamic is not None) is dynamic
    assert session.created[0].lookup is dynamic


def test_the_file_s_sampling_is_the_default(tmp_path: Path, session: type[FakeSession]) -> None:
    keys = {"general.architecture": "fake", "general.sampling.temp": 0.5, "general.sampling.top_k": 9,
            "general.sampling.penalty_last_n": -1, "general.sampling.mirostat": 2}  # fmt: skip
    path = str(base_gguf(tmp_path / "own.gguf", **keys))
    session.answers = ["a", "b"]
    code, out, err = generate(path, "-p", "x")
    assert (code, out) == (0, "a\n")
    assert err.startswith("note: the model's file also sets general.sampling.{mirostat}")
    asked = session.calls[0].sampling
    assert (asked.temperature, asked.top_k, asked.repeat_last_n) == (0.5, 9, -1)
    generate(path, "-p", "x", "--temp", "0", "--top-k", "3", "--repeat-last-n", "5")
    asked = session.calls[1].sampling
    assert (asked.temperature, asked.top_k, asked.repeat_last_n) == (0, 3, 5)


def test_loops_end_in_a_chat_and_where_asked_for(model: str, session: type[FakeSession]) -> None:
    session.answers = ["a", "b", "c", "d"]
    generate(model, "-p", "x")
    generate(model, "-p", "x", "--stop-loops")
    for options in ((), ("--no-stop-loops",)):
        assert CliRunner().invoke(cli.app, ["chat", model, *options], input="hi\n").exit_code == 0
    assert [call.stop_loops for call in session.calls] == [False, True, True, False]


def test_a_single_file_brings_its_own_heads(
    model: str, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "has_heads", True)
    session.answers = ["a"]
    generate(model, "-p", "x")
    assert session.created[0].heads.path == model


def bad(model: str, session: type[FakeSession], *arguments: str, stdin: str | bytes = "") -> str:
    """The one error line of a run that must fail with exit code 1 and print nothing else."""
    session.answers = ["never"]
    code, out, err = generate(model, *arguments, stdin=stdin)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "internal error" not in err
    return err


def test_bad_input_is_one_line(model: str, session: type[FakeSession], tmp_path: Path) -> None:
    assert "the prompt is empty" in bad(model, session)
    assert "the prompt is empty" in bad(model, session, "-p", "")
    assert "no such file: nowhere.txt" in bad(model, session, "-f", "nowhere.txt")
    assert "no such file: nowhere.txt" in bad(model, session, "-f", "-", "-f", "nowhere.txt", "-p", "x", stdin="x")
    assert "is a directory" in bad(model, session, "-f", str(tmp_path))
    assert "standard input is not UTF-8" in bad(model, session, stdin=b"\xff\xfe")
    assert "no such file" in bad("nowhere.gguf", session, "-p", "x")
    assert "no such file" in bad(model, session, "-p", "x", "--heads", "nowhere.gguf")
    assert "--tree needs draft heads" in bad(model, session, "-p", "x", "--tree", "chain_4")
    assert "no tree named" in bad(model, session, "-p", "x", "--tree", "nosuch")
    assert "names token 9999999" in bad(model, session, "-p", "x", "--logit-bias", "9999999=1")


def test_a_prompt_longer_than_the_context_is_an_error(model: str, session: type[FakeSession]) -> None:
    line = bad(model, session, "-p", "x" * 100, "-c", "64")
    assert "the prompt has 118 tokens, the context holds 64" in line
    assert "-c" in line


def test_a_tree_file_deeper_than_the_heads_is_an_error(model: str, session: type[FakeSession], tmp_path: Path) -> None:
    tree = tmp_path / "deep.json"
    tree.write_text(json.dumps([[0] * depth for depth in range(1, 6)]))
    heads = str(heads_gguf(tmp_path / "heads.gguf"))
    line = bad(model, session, "-p", "x", "--heads", heads, "--tree", str(tree))
    assert f"{tree}: the tree is 5 deep, the heads draft 4 tokens" in line
    tree.write_text("[[0], [5000]]")
    assert "rank 5000 is past" in bad(model, session, "-p", "x", "--heads", heads, "--tree", str(tree))


def test_a_model_without_a_template_names_raw(
    model: str, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "chat_template", None)
    assert "--raw" in bad(model, session, "-p", "x")


def test_missing_demo_heads_name_no_spec(
    session: type[FakeSession], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("medusa_cli.models.demo.demo_base", lambda console: tmp_path / "base.gguf")
    monkeypatch.setattr("medusa_cli.models.demo.DEMO_HEADS", tmp_path / "gone.gguf")
    assert "--no-spec" in bad("demo", session, "-p", "x")


def run_process(arguments: list[str], answers: list[str], delay: float = 0.0) -> subprocess.Popen[str]:
    code = f"import cli_fakes; cli_fakes.run_cli({arguments!r}, {answers!r}, {delay!r})"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1] / "support",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_real_interrupt_ends_with_130_and_keeps_the_text(model: str) -> None:
    process = run_process(["generate", model, "-p", "Hi"], ["one two " * 100], delay=0.05)
    assert process.stdout is not None
    begun = process.stdout.read(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")
    assert begun == "one tw"
    assert out.endswith("\n")
    assert len(out) < 400


def test_a_closed_pipe_ends_quietly(model: str) -> None:
    process = run_process(["generate", model, "-p", "Hi"], ["one two " * 1000], delay=0.001)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(6)
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=120) == 141


def test_heads_of_another_vocabulary_are_refused_and_another_name_is_a_remark(
    model: str, session: type[FakeSession], tmp_path: Path
) -> None:
    session.answers = ["Hello"]
    other = {**HEADS_METADATA, "medusa.base.fingerprint": "llama-1x32-3-000000000000"}
    heads = write_gguf(tmp_path / "other.gguf", other, HEADS_TENSORS)
    code, out, err = generate(model, "-p", "Hi", "--heads", str(heads))
    assert (code, out) == (1, "")
    assert "choose the right pair" in err
    assert err.count("\n") == 1
    renamed = write_gguf(tmp_path / "renamed.gguf", {**HEADS_METADATA, "medusa.base.name": "Big"}, HEADS_TENSORS)
    code, _, err = generate(model, "-p", "Hi", "--heads", str(renamed))
    assert (code, "made for Big" in err) == (0, True), err


def test_a_model_that_cannot_draft_decodes_plainly(
    model: str, session: type[FakeSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeModel, "can_draft", False)
    session.answers = ["Hello you."]
    code, _, error = generate(model, "-p", "x", "--lookup")
    assert code == 0, error
    assert error.startswith("note: no drafts: llama.cpp cannot check them with ")
