"""EAGLE-3 files as a person meets them: found, named, used, left out, refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from command_line import invoke
from damaged_eagle import DAMAGES, Damage
from drafter_commands import CHAIN, answered, copied, inspected_for, refused
from eagle_models import write_eagle, write_target
from gguf_edits import edited
from server_process import served

from medusa_cli.models import drafters

OTHER_TOKENS = {"tokenizer.ggml.tokens": [f"other_{i}" for i in range(256)]}
Unfit = Callable[[Path, Path], object]
UNFIT: dict[str, tuple[Unfit, str]] = {
    "width": (lambda _, path: write_eagle(path, "wide", keys={"target_hidden_size": 512}), "it reads states of 512"),
    "layers": (
        lambda _, path: write_eagle(path, "wide", keys={"target_layers": [1, 2, 9]}),
        "the state before layer 9",
    ),
    "vocabulary": (lambda source, path: edited(source, path, OTHER_TOKENS), "has another token 0"),
    "count": (lambda source, path: edited(source, path, {"eagle3.block_count": 2}), "it has 2 layers, not 1"),
    "cut": (lambda source, path: path.write_bytes(source.read_bytes()[:3000]), "download it again"),
}
"""What is wrong -> how to write it, given a good drafter, and what its refusal says."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target.gguf, plain.gguf and wide.gguf, which draft for it."""
    folder = tmp_path_factory.mktemp("eagle")
    write_target(folder / "target.gguf", "plain", agree=True)
    for name in ("plain", "wide"):
        write_eagle(folder / f"{name}.gguf", name, agree=True)
    return folder


# --- beside the model, and -md ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "wide"])
def test_a_drafter_beside_the_model_is_found(files: Path, tmp_path: Path, name: str) -> None:
    copied(files, tmp_path, target="m-Q4_0.gguf", **{name: "m-EAGLE3.gguf"})
    found, said = answered(tmp_path / "m-Q4_0.gguf", "--temp", "0", *CHAIN)
    assert said.startswith("Drafting with m-EAGLE3.gguf (")
    assert (found["tokens_per_step"] > 1.3, found["drafts_ended"]) == (True, None)
    for switches in (("--no-spec",), ("--no-drafter", "--no-recycling")):
        plain, said = answered(tmp_path / "m-Q4_0.gguf", "--temp", "0", *switches)
        assert (plain["text"], plain["tokens_per_step"], said) == (found["text"], 1, "")


def test_of_several_the_name_most_alike(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, target="model-Q4_0.gguf", wide="model-eagle3.gguf", plain="eagle3.gguf")
    assert answered(tmp_path / "model-Q4_0.gguf")[1].startswith("Drafting with model-eagle3.gguf (")


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_left_out_unless_named(files: Path, tmp_path: Path, name: str) -> None:
    copied(files, tmp_path, target="m.gguf")
    write, said = UNFIT[name]
    eagle = tmp_path / "m-eagle3.gguf"
    write(files / "wide.gguf", eagle)
    assert answered(tmp_path / "m.gguf", tokens=1)[1] == ""
    line = refused("generate", str(tmp_path / "m.gguf"), "--raw", "-p", "x", "-md", str(eagle))
    assert line.startswith(f"{eagle}")
    assert said in line


@pytest.mark.parametrize("damage", [one for one in DAMAGES if "layers" in one.name], ids=lambda one: one.name)
def test_layers_that_no_model_has_are_left_out(files: Path, tmp_path: Path, damage: Damage) -> None:
    copied(files, tmp_path, target="m.gguf")
    damage.write(tmp_path / "eagle3.gguf")
    assert drafters.for_model(tmp_path / "m.gguf") is None


@pytest.mark.parametrize("tensor", ["fc.weight", "output_norm.weight", "blk.0.attn_q.weight"])
def test_files_without_a_tensor_are_left_out(files: Path, tmp_path: Path, tensor: str) -> None:
    copied(files, tmp_path, target="m.gguf")
    edited(files / "wide.gguf", tmp_path / "eagle3.gguf", without=[tensor])
    assert drafters.for_model(tmp_path / "m.gguf") is None


def test_what_only_the_engine_can_refuse_ends_with_a_line(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, target="m.gguf")
    eagle = tmp_path / "eagle3.gguf"
    write_eagle(eagle, "wide", change=lambda tensors: tensors.update({"fc.weight": tensors["fc.weight"][:, :64]}))
    code, out, error = invoke("generate", str(tmp_path / "m.gguf"), "--raw", "-p", "x")
    assert (code, out) == (1, "")
    assert error.splitlines()[-1].startswith(f"error: cannot load {eagle} (")


def test_a_named_drafter(files: Path) -> None:
    named = ("-md", str(files / "wide.gguf"), "--temp", "0")
    found, said = answered(files / "target.gguf", *named, *CHAIN)
    assert (said, found["tokens_per_step"] > 1.3) == ("", True)
    again, _ = answered(files / "target.gguf", *named, *CHAIN, "--no-drafter")
    assert again["tokens_per_step"] == found["tokens_per_step"], "it was asked for by name"
    for more in ((), ("--draft-max", "2"), ("--tree", "dynamic"), ("--recycling", "--tree", "dynamic")):
        assert answered(files / "target.gguf", *named, *more)[0]["text"] == found["text"]


@pytest.mark.parametrize("command", [("generate", "-p", "x"), ("chat",), ("doctor",), ("tune",)])
def test_a_drafter_is_no_model(files: Path, command: tuple[str, ...]) -> None:
    path = files / "wide.gguf"
    _, out, error = invoke(command[0], str(path), *command[1:])
    line = f"{path} drafts for a model, it is none: give the model, and --draft-model {path}"
    assert line in " ".join((error or out).split())


# --- inspect, doctor, tune --------------------------------------------------------------------------


def test_inspect_names_it(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, target="m.gguf", wide="eagle3-m.gguf")
    eagle = tmp_path / "eagle3-m.gguf"
    expected = {"path": str(eagle), "kind": "EAGLE-3", "layers": 1, "problem": None}
    found, line = inspected_for("EAGLE-3", eagle)
    assert (found["content"], found["drafter"]) == ("drafter", expected)
    assert line.endswith(" 1, for a model in another file")
    found, line = inspected_for("EAGLE-3", tmp_path / "m.gguf")
    assert (found["content"], found["drafter"]) == ("model", expected)
    assert line.endswith(f" 1, in {eagle}, used where no heads draft")
    found, line = inspected_for("EAGLE-3", files / "target.gguf")
    assert (found["drafter"], line) == (None, "")


def test_inspect_says_why_it_is_of_no_use(files: Path, tmp_path: Path) -> None:
    path = edited(files / "wide.gguf", tmp_path / "eagle3.gguf", {"eagle3.block_count": 2})
    found, line = inspected_for("EAGLE-3", path)
    assert "it has 2 layers, not 1" in found["drafter"]["problem"]
    assert f", not used: {found['drafter']['problem']}" in line


def test_doctor_says_what_drafts(files: Path, tmp_path: Path) -> None:
    copied(files, tmp_path, target="m.gguf", wide="eagle3-m.gguf")
    code, out, error = invoke("doctor", str(tmp_path / "m.gguf"), "--json")
    assert code == 0, error
    assert "1 EAGLE-3 layer in eagle3-m.gguf" in json.loads(out)["model"]["drafts"]["by"]


def test_tune_decodes_with_and_without_it(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    copied(files, tmp_path, target="m.gguf", wide="eagle3-m.gguf")
    code, out, error = invoke("tune", str(tmp_path / "m.gguf"), "--minutes", "0.1", "--json")
    assert code == 0, error
    assert [row["name"] for row in json.loads(out)["measured"]][:2] == ["lookup", "dynamic"]
    code, out, error = invoke("tune", str(tmp_path / "m.gguf"), "--show")
    assert (code, "drafts from eagle3-m.gguf" in out) == (0, True), error


# --- serve ------------------------------------------------------------------------------------------


def test_a_server_drafts_with_it(files: Path) -> None:
    expected, _ = answered(files / "target.gguf", "--temp", "0", "--no-spec", tokens=24)
    body = {"prompt": "hello", "max_tokens": 24, "temperature": 0}
    with served(str(files / "target.gguf"), "-md", str(files / "wide.gguf")) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == expected["text"]
