"""`medusa inspect` and `medusa split`: files are read by their headers alone, outputs appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import BASE_METADATA, BASE_TENSORS, HEADS_METADATA, HEADS_TENSORS, base_gguf, heads_gguf, write_gguf
from medusa_cli.converters.gguf.fingerprint import fingerprint
from medusa_cli.converters.heads import single_file
from typer.testing import CliRunner

from medusa_cli import cli, native
from medusa_cli.models import demo


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(cli.app, list(arguments), env={"NO_COLOR": "1", "TERM": "dumb"})
    return result.exit_code, result.stdout, result.stderr


def report(path: Path) -> Any:
    code, out, err = invoke("inspect", str(path), "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """A single file of the small base and its heads, and both parts beside it."""
    base = base_gguf(tmp_path / "base.gguf")
    found = native.read_gguf(str(base)).metadata
    heads = write_gguf(
        tmp_path / "heads.gguf", {**HEADS_METADATA, "medusa.base.fingerprint": fingerprint(found)}, HEADS_TENSORS
    )
    path = tmp_path / "single.gguf"
    single_file.join(base, heads, path)
    return path


def test_a_plain_model(tmp_path: Path) -> None:
    found = report(base_gguf(tmp_path / "tiny.gguf"))
    assert found["content"] == "model"
    assert (found["architecture"], found["name"], found["parameters"]) == ("llama", "Tiny", 128)
    assert (found["context_length"], found["embedding_length"], found["layers"]) == (512, 32, 1)
    assert (found["vocabulary"], found["chat_template"], found["heads"]) == (3, True, None)
    assert found["quantization"]["name"] == "F16"
    assert found["quantization"]["types"]["f16"] == {"tensors": 1, "parameters": 96, "bytes": 192}
    assert found["file_size"] == (tmp_path / "tiny.gguf").stat().st_size
    code, out, _ = invoke("inspect", str(tmp_path / "tiny.gguf"))
    assert code == 0
    for text in ("Tiny", "F16 (f16 192 B in 1, f32 128 B in 1 tensors)", "512 tokens", "heads          none"):
        assert text in out


def test_a_sidecar(tmp_path: Path) -> None:
    path = heads_gguf(tmp_path / "heads.gguf")
    found = report(path)
    assert (found["content"], found["quantization"], found["parameters"]) == ("heads", None, None)
    heads = found["heads"]
    assert (heads["kind"], heads["head_count"], heads["block_count"], heads["lm_head"]) == ("medusa", 2, 1, "base")
    assert heads["accuracy"] == [[0.5, 0.25], [0.25, 0.125]]
    assert heads["tree"] == [[0], [0, 0], [1]]
    assert heads["expected_tokens_per_step"] == pytest.approx(1 + 0.5 + 0.5 * 0.25 + 0.25)
    assert heads["bytes"] == 2 * (32 * 32 * 2 + 32 * 4)
    _, out, _ = invoke("inspect", str(path))
    for text in ("2 of kind medusa", "root ┬─ 0 50% ── 0 12%", "└─ 1 25%", "rank 1", "12.5%", "1.88", "made for"):
        assert text in out


def test_a_single_file_shows_both(single: Path) -> None:
    found = report(single)
    assert (found["content"], found["parameters"]) == ("single file", 128)
    assert found["heads"]["head_count"] == 2
    assert found["heads"]["tree"] == [[0], [0, 0], [1]]


def test_any_tree_is_drawn_with_the_accuracies_of_the_heads(tmp_path: Path) -> None:
    path = str(heads_gguf(tmp_path / "heads.gguf"))
    code, out, _ = invoke("inspect", path, "--tree", "cartesian:2,2")
    assert code == 0
    for text in ("cartesian:2,2: tree of 7 nodes", "root ┬─ 0 50% ── 0..1 19%", "└─ 1 25% ── 0..1 9%", "2.03"):
        assert text in out
    # A published tree loses what two heads cannot fill, a random one is drawn for them.
    code, out, _ = invoke("inspect", path, "--tree", "chain_4", "--json")
    heads = json.loads(out)["heads"]
    assert (heads["tree_name"], heads["tree"]) == ("chain_4", [[0], [0, 0]])
    code, out, _ = invoke("inspect", path, "--tree", "random:12", "--json")
    heads = json.loads(out)["heads"]
    assert heads["tree_name"].startswith("cartesian:")
    assert 6 < len(heads["tree"]) + 1 <= 12


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("cartesian:2,2,2", "the tree is 3 deep, the heads draft 2 tokens"),
        ("cartesian:nonsense", "give the number of tokens of each head"),
        ("dynamic", "is not a tree but a way to choose one"),
        ("nosuch", "no tree named 'nosuch'"),
    ],
)
def test_a_tree_that_cannot_be_drawn_is_one_line(tmp_path: Path, tree: str, message: str) -> None:
    code, out, err = invoke("inspect", str(heads_gguf(tmp_path / "heads.gguf")), "--tree", tree)
    assert (code, out) == (1, "")
    assert message in err
    assert err.startswith("error: ")


def test_a_tree_without_heads_is_one_line(tmp_path: Path) -> None:
    path = base_gguf(tmp_path / "tiny.gguf")
    code, _, err = invoke("inspect", str(path), "--tree", "cpu_4")
    assert (code, err) == (1, f"error: --tree needs draft heads, and {path} has none: give a file with heads\n")


def test_the_demo_is_its_base_with_the_shipped_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, heads = base_gguf(tmp_path / "base.gguf"), heads_gguf(tmp_path / "heads.gguf")
    monkeypatch.setattr(demo, "demo_base", lambda console: base)
    monkeypatch.setattr(demo, "DEMO_HEADS", heads)
    code, out, _ = invoke("inspect", "demo", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["path"], found["heads"]["path"]) == (str(base), str(heads))
    assert str(heads) in invoke("inspect", "demo")[1]


def test_files_with_little_in_them_are_shown(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "bare.gguf", {"general.architecture": "mystery"}, {"x": ("f32", (4,))})
    assert report(path)["quantization"]["dominant"] == "f32"
    code, out, _ = invoke("inspect", str(path))
    assert code == 0
    assert "unknown" in out


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"medusa.version": 2}, "version 2"),
        ({"medusa.tree": [3, 0]}, "medusa.tree"),
        ({"medusa.accuracy_ranks": 3}, "medusa.accuracy"),
    ],
)
def test_damaged_heads_are_one_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write_gguf(tmp_path / "heads.gguf", {**HEADS_METADATA, **change}, HEADS_TENSORS)
    code, out, err = invoke("inspect", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err


@pytest.mark.parametrize("command", ["inspect", "split"])
def test_bad_files_are_one_line(tmp_path: Path, command: str) -> None:
    whole = base_gguf(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes(whole[:-100])
    (tmp_path / "header.gguf").write_bytes(whole[:60])
    expected = {
        "missing": "no such file",
        ".": "is a directory",
        "text.gguf": "not a GGUF",
        "cut.gguf": "",
        "header.gguf": "",
    }
    for name, message in expected.items():
        code, out, err = invoke(command, str(tmp_path / name))
        assert (code, out, err.count("\n")) == (1, "", 1), name
        assert message in err
        assert "internal error" not in err
    assert not list(tmp_path.glob("*.base.gguf"))


def test_split_gives_both_parts_back(single: Path, tmp_path: Path) -> None:
    code, out, err = invoke("split", str(single))
    base, heads = tmp_path / "single.base.gguf", tmp_path / "single.heads.gguf"
    assert (code, out, err) == (0, f"{base}\n{heads}\n", "")
    assert base.read_bytes() == (tmp_path / "base.gguf").read_bytes()
    assert report(heads)["heads"]["tree"] == [[0], [0, 0], [1]]


def test_split_never_overwrites_silently(single: Path, tmp_path: Path) -> None:
    base, heads = tmp_path / "b.gguf", tmp_path / "h.gguf"
    arguments = ("split", str(single), "--base-out", str(base), "--heads-out", str(heads))
    heads.write_text("mine")
    code, _, err = invoke(*arguments)
    assert code == 1
    assert f"{heads} exists" in err
    assert "--force" in err
    assert (heads.read_text(), base.exists()) == ("mine", False)
    assert invoke(*arguments, "--force")[0] == 0
    assert heads.read_bytes()[:4] == b"GGUF"


def test_split_refuses_impossible_outputs(single: Path, tmp_path: Path) -> None:
    before = single.read_bytes()
    for arguments in (
        ("--base-out", str(single), "--force"),
        ("--base-out", str(tmp_path / "x"), "--heads-out", str(tmp_path / "x")),
        ("--base-out", str(tmp_path / "no" / "x.gguf")),
        ("--heads-out", str(tmp_path)),
    ):
        code, out, err = invoke("split", str(single), *arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
    assert single.read_bytes() == before


def test_split_refuses_files_without_heads(tmp_path: Path) -> None:
    for path in (write_gguf(tmp_path / "m.gguf", BASE_METADATA, BASE_TENSORS), heads_gguf(tmp_path / "h.gguf")):
        code, _, err = invoke("split", str(path))
        assert code == 1
        assert "nothing to split" in err
    assert {path.name for path in tmp_path.iterdir()} == {"m.gguf", "h.gguf"}
