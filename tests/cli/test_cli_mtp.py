"""Layers for further tokens (MTP) as a person meets them: found, named, used, left out, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import invoke
from drafter_commands import CHAIN, answered, copied, inspected_for, refused
from fixtures import write_heads
from gguf_edits import edited
from mtp_models import write_assistant, write_mtp_model

from medusa_cli import native
from medusa_cli.decoding import trial


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """glm4moe.gguf has layers of its own; trunk.gguf has none, layers.gguf holds them; gemma4 and its assistant."""
    folder = tmp_path_factory.mktemp("mtp")
    write_mtp_model(folder / "glm4moe.gguf", "glm4moe", agree=0.9)
    write_mtp_model(folder / "trunk.gguf", "glm4moe", agree=0.9, part="trunk")
    write_mtp_model(folder / "layers.gguf", "glm4moe", agree=0.9, part="layers")
    write_mtp_model(folder / "gemma4.gguf", "gemma4", agree=0.9)
    write_assistant(folder / "assistant.gguf", agree=0.9)
    write_mtp_model(folder / "step35.gguf", "step35", agree=0.9)
    return folder


def a_head(folder: Path) -> Path:
    write_heads(folder / "heads.gguf", heads=2, blocks=1, lm_head="base", hidden=256, tree=[[0], [0, 0]])
    return folder / "heads.gguf"


# --- layers of its own ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["glm4moe", "step35"])
def test_a_models_own_layers_draft(files: Path, name: str) -> None:
    model = files / f"{name}.gguf"
    drafted, said = answered(model, "--temp", "0", *CHAIN)
    plain, _ = answered(model, "--temp", "0", "--no-spec")
    without, _ = answered(model, "--temp", "0", "--no-drafter")
    assert said == ""
    assert drafted["text"] == plain["text"] == without["text"]
    assert drafted["tokens_per_step"] > 1.3
    assert drafted["drafts_ended"] is None
    assert plain["tokens_per_step"] == without["tokens_per_step"] == 1


def test_nothing_has_to_be_asked_for(files: Path) -> None:
    found, _ = answered(files / "glm4moe.gguf", "--temp", "0")
    assert sum(found["acceptance_per_depth"]) > 0
    assert found["text"] == answered(files / "glm4moe.gguf", "--temp", "0", "--no-spec")[0]["text"]


@pytest.mark.skipif(native.kernel_info()["selected"] is None, reason="llama.cpp's kernels round by width")
def test_a_seed_gives_the_text_of_plain_decoding(files: Path) -> None:
    sampled = ("--temp", "0.8", "-s", "7")
    plain = answered(files / "glm4moe.gguf", *sampled, "--no-spec")[0]["text"]
    for arguments in ((), CHAIN, ("--tree", "dynamic"), ("--recycling", "--tree", "dynamic")):
        assert answered(files / "glm4moe.gguf", *sampled, *arguments)[0]["text"] == plain
    assert answered(files / "glm4moe.gguf", "--temp", "0.8", "-s", "8")[0]["text"] != plain


def test_draft_max_bounds_the_drafts(files: Path) -> None:
    for name, asked, most in (("glm4moe", "2", 2), ("step35", "9", 3), ("step35", "1", 1)):
        found, _ = answered(files / f"{name}.gguf", "--temp", "0", "--tree", "static", "--draft-max", asked)
        assert len(found["acceptance_per_depth"]) == most


def test_trees_that_the_layers_cannot_fill(files: Path) -> None:
    line = refused("generate", str(files / "step35.gguf"), "--raw", "-p", "x", "--tree", "chain_4")
    assert line.endswith("step35.gguf drafts a chain of at most 3 tokens: leave out --tree, or lower --draft-max")


# --- layers beside the model ------------------------------------------------------------------------


def test_layers_beside_the_model_are_found_and_named(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m-Q4_0.gguf", layers="mtp-m-Q4_0.gguf")
    found, said = answered(tmp_path / "m-Q4_0.gguf", "--temp", "0", *CHAIN)
    assert said == "Drafting with mtp-m-Q4_0.gguf (6.3 MB more in memory)\n"
    assert found["tokens_per_step"] > 1.3
    for switch in ("--no-spec", "--no-drafter"):
        plain, said = answered(tmp_path / "m-Q4_0.gguf", "--temp", "0", switch)
        assert (plain["text"], plain["tokens_per_step"], said) == (found["text"], 1, "")


def test_an_assistant_beside_a_gemma4(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, gemma4="gemma-4-it-Q8_0.gguf", assistant="gemma-4-it-assistant-Q8_0.gguf")
    found, said = answered(tmp_path / "gemma-4-it-Q8_0.gguf", "--temp", "0", *CHAIN)
    assert said.startswith("Drafting with gemma-4-it-assistant-Q8_0.gguf (")
    assert found["tokens_per_step"] > 1.3
    assert found["text"] == answered(tmp_path / "gemma-4-it-Q8_0.gguf", "--temp", "0", "--no-spec")[0]["text"]


def grown(source: Path, target: Path) -> Path:
    """The same with a longer header."""
    return edited(source, target, {"general.description": "x" * 100_000})


def test_of_several_the_name_most_alike_then_the_smallest(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="Model-Q4_0.gguf", layers="mtp-other.gguf")
    model = tmp_path / "Model-Q4_0.gguf"
    grown(files / "layers.gguf", tmp_path / "mtp-model-F16.gguf")
    assert answered(model)[1].startswith("Drafting with mtp-model-F16.gguf (")
    copied(files, tmp_path, layers="mtp-model-BF16.gguf")
    assert answered(model)[1].startswith("Drafting with mtp-model-BF16.gguf (")
    grown(files / "layers.gguf", tmp_path / "MTP-model-q4_0.gguf")
    assert answered(model)[1].startswith("Drafting with mtp-model-BF16.gguf (") is False


def test_what_does_not_fit_is_left_out(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m.gguf", assistant="m-assistant.gguf", step35="mtp-m.gguf")
    edited(files / "layers.gguf", tmp_path / "mtp-m-wide.gguf", {"glm4moe.embedding_length": 512})
    edited(files / "layers.gguf", tmp_path / "mtp-m-deep.gguf", {"glm4moe.block_count": 4})
    edited(files / "layers.gguf", tmp_path / "mtp-m-part.gguf", without=["blk.2.nextn.eh_proj.weight"])
    (tmp_path / "mtp-m-text.gguf").write_text("no GGUF")
    (tmp_path / "mtp-m-short.gguf").write_bytes((files / "layers.gguf").read_bytes()[:3000])
    (tmp_path / "mtp-m-folder.gguf").mkdir()
    found, said = answered(tmp_path / "m.gguf", "--temp", "0")
    assert (said, found["tokens_per_step"] >= 1) == ("", True)
    copied(files, tmp_path, layers="mtp-z.gguf")
    assert answered(tmp_path / "m.gguf")[1].startswith("Drafting with mtp-z.gguf (")


def test_a_link_to_nothing_is_left_out(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m.gguf")
    (tmp_path / "mtp-m.gguf").symlink_to(tmp_path / "gone.gguf")
    assert answered(tmp_path / "m.gguf")[1] == ""


def test_a_name_that_says_nothing_is_not_looked_at(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m.gguf", layers="m-layers.gguf")
    assert answered(tmp_path / "m.gguf")[1] == ""


def test_names_of_files_cannot_write_to_the_terminal(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-\x1b[31m[bold]x.gguf")
    said = answered(tmp_path / "m.gguf")[1]
    assert "\x1b" not in said
    assert "[bold]x.gguf" in said


def test_layers_that_only_the_engine_can_refuse_end_with_a_line(files: Path, tmp_path: Path) -> None:
    """Keys that say it fits, a vocabulary that does not."""
    copied(files, tmp_path, trunk="m.gguf")
    tokens = [f"other_{i}" for i in range(256)]
    edited(files / "layers.gguf", tmp_path / "mtp-m.gguf", {"tokenizer.ggml.tokens": tokens})
    code, out, error = invoke("generate", str(tmp_path / "m.gguf"), "--raw", "-p", "x")
    assert (code, out) == (1, "")
    assert error.splitlines()[-1].startswith(f"error: {tmp_path}/mtp-m.gguf has another token 0")


# --- -md --------------------------------------------------------------------------------------------


def test_layers_can_be_named(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m.gguf", layers="any.gguf")
    found, said = answered(tmp_path / "m.gguf", "-md", str(tmp_path / "any.gguf"), "--temp", "0", *CHAIN)
    assert (said, found["tokens_per_step"] > 1.3) == ("", True)
    again, _ = answered(tmp_path / "m.gguf", "-md", str(tmp_path / "any.gguf"), "--temp", "0", *CHAIN, "--no-drafter")
    assert again["tokens_per_step"] == found["tokens_per_step"], "it was asked for by name"
    plain, _ = answered(tmp_path / "m.gguf", "-md", str(tmp_path / "any.gguf"), "--temp", "0", "--no-spec")
    assert plain["tokens_per_step"] == 1


def test_named_layers_come_before_the_models_own(files: Path, tmp_path: Path) -> None:
    path = edited(files / "layers.gguf", tmp_path / "any.gguf", without=["blk.2.nextn.eh_proj.weight"])
    line = refused("generate", str(files / "glm4moe.gguf"), "--raw", "-p", "x", "-md", str(path))
    assert line.startswith(f"{path}: its layers for further tokens (MTP) cannot be used: tensor blk.2.nextn.eh_proj")


def test_named_layers_of_another_model_are_refused(files: Path, tmp_path: Path) -> None:
    pairs = {"assistant": "trunk", "layers": "gemma4"}
    for layers, model in pairs.items():
        drafter, path = files / f"{layers}.gguf", files / f"{model}.gguf"
        line = refused("generate", str(path), "--raw", "-p", "x", "-md", str(drafter))
        assert line.startswith(f"{drafter}: it cannot draft for {path}: it is made for other models than ")
        assert line.endswith("choose the right pair, or use --no-drafter")


def test_two_drafters_are_one_too_many(files: Path, tmp_path: Path) -> None:
    heads = a_head(tmp_path)
    model, layers = str(files / "trunk.gguf"), str(files / "layers.gguf")
    line = refused("generate", model, "--raw", "-p", "x", "-md", layers, "--heads", str(heads))
    assert line == "--draft-model cannot be combined with --heads: leave one out"


def test_a_file_of_layers_is_no_model(files: Path) -> None:
    for path in (files / "layers.gguf", files / "assistant.gguf"):
        for command in (("generate", str(path), "-p", "x"), ("chat", str(path)), ("doctor", str(path))):
            _, out, error = invoke(*command)
            line = f"{path} drafts for a model, it is none: give the model, and --draft-model {path}"
            assert line in " ".join((error or out).split())


# --- heads ------------------------------------------------------------------------------------------


def test_heads_come_before_layers(files: Path, tmp_path: Path) -> None:
    heads = a_head(tmp_path)
    _, said = answered(files / "glm4moe.gguf", "--heads", str(heads), "--temp", "0")
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-m.gguf")
    assert "mtp-m.gguf" not in answered(tmp_path / "m.gguf", "--heads", str(heads))[1] + said
    assert "mtp-m.gguf" in answered(tmp_path / "m.gguf", "--heads", str(heads), "--no-heads")[1]


# --- inspect, doctor --------------------------------------------------------------------------------


def inspected(path: Path) -> tuple[dict[str, Any], str]:
    return inspected_for("MTP", path)


def test_inspect_names_layers(files: Path, tmp_path: Path) -> None:
    found, line = inspected(files / "glm4moe.gguf")
    assert found["drafter"] == {"path": str(files / "glm4moe.gguf"), "kind": "MTP", "layers": 1, "problem": None}
    assert (found["content"], line.split(maxsplit=2)[2]) == ("model", "1, used where no heads draft")
    found, line = inspected(files / "layers.gguf")
    assert (found["content"], line.split(maxsplit=2)[2]) == ("drafter", "1, for a model in another file")
    found, line = inspected(files / "assistant.gguf")
    assert (found["content"], found["drafter"]["layers"]) == ("drafter", 4)
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-m.gguf")
    found, line = inspected(tmp_path / "m.gguf")
    assert found["drafter"]["path"] == str(tmp_path / "mtp-m.gguf")
    assert f"1, in {tmp_path}/mtp-m.gguf, used where no heads draft" in line
    assert inspected(files / "trunk.gguf") == (inspected(files / "trunk.gguf")[0] | {"drafter": None}, "")


def test_inspect_says_why_layers_are_not_used(files: Path, tmp_path: Path) -> None:
    path = edited(files / "step35.gguf", tmp_path / "m.gguf", without=["blk.2.nextn.eh_proj.weight"])
    found, line = inspected(path)
    problem = "its layers for further tokens (MTP) cannot be used: tensor blk.2.nextn.eh_proj.weight is missing"
    assert problem in found["drafter"]["problem"]
    assert f"3, not used: {path}: {problem}" in line
    answer, said = answered(path, "--temp", "0")
    assert (answer["tokens_per_step"], said) == (1, ""), "it is a model without them"


def test_doctor_says_what_drafts(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-m.gguf")
    for path, by in (
        (files / "glm4moe.gguf", "1 MTP layer in its file"),
        (files / "step35.gguf", "3 MTP layers in its file"),
        (tmp_path / "m.gguf", "1 MTP layer in mtp-m.gguf"),
    ):
        code, out, error = invoke("doctor", str(path), "--json")
        assert code == 0, error
        assert by in json.loads(out)["model"]["drafts"]["by"]


# --- trials -----------------------------------------------------------------------------------------


@pytest.fixture
def _with_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(trial.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("_with_trials")
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_layers_that_crash_are_one_line(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a trial with layers ends; without them, the model serves."""
    run, crash = subprocess.run, "import os, signal; print('begun', flush=True); os.kill(os.getpid(), signal.SIGSEGV)"

    def ended(command: Any, **options: Any) -> Any:
        with_layers = sum(str(one).endswith(".gguf") for one in command) == 2
        return run([sys.executable, "-c", crash] if with_layers else command, **options)

    monkeypatch.setattr(subprocess, "run", ended)
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-m.gguf")
    for model, layers in ((files / "glm4moe.gguf",) * 2, (tmp_path / "m.gguf", tmp_path / "mtp-m.gguf")):
        code, out, error = invoke("generate", str(model), "--raw", "-p", "x", "-n", "3")
        line = f"error: {layers}: llama.cpp crashes on the layers in it that draft (Segmentation fault): "
        assert (code, out, error.splitlines()[-1]) == (1, "", f"{line}damaged or not supported, use --no-drafter")
        assert answered(model, "--no-drafter", "--temp", "0")[0]["tokens_per_step"] == 1


@pytest.mark.usefixtures("_with_trials")
def test_good_layers_pass_their_trial_once(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    run = subprocess.run

    def counted(command: Any, **options: Any) -> Any:
        started.append([str(one) for one in command if str(one).endswith(".gguf")])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-m.gguf")
    model, layers = str(tmp_path / "m.gguf"), str(tmp_path / "mtp-m.gguf")
    for _ in range(2):
        answered(tmp_path / "m.gguf")
    assert started == [[model], [model, layers]]
    answered(files / "glm4moe.gguf")
    assert started[2:] == [[str(files / "glm4moe.gguf")] * 2]


def test_tune_decodes_with_and_without_the_layers(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    copied(files, tmp_path, trunk="m.gguf", layers="mtp-m.gguf")
    model = str(tmp_path / "m.gguf")
    code, out, err = invoke("tune", model, "--minutes", "0.1", "--json")
    assert code == 0, err
    found = json.loads(out)
    names = [row["name"] for row in found["measured"]]
    assert names == ["lookup", "dynamic", "dynamic+lookup", "dynamic+lookup+recycling"]
    assert "the drafter" in found["reason"]
    speeds = {row["name"]: row["speedup"] for row in found["measured"]}
    fastest = max(speeds, key=lambda name: speeds[name])
    assert found["dynamic"] == (fastest != "lookup" and speeds[fastest] > 1)
    code, out, err = invoke("tune", model, "--show")
    assert code == 0, err
    assert "drafts from mtp-m.gguf" in out
    code, _, err = invoke("tune", model, "--write")
    assert code == 1
    assert "--write is for draft heads" in err
