"""Heads in the user's data folder: put there by train and convert, found for every quantization of their base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cli_fakes
import pytest
import torch
from cli_fakes import BASE_METADATA, BASE_TENSORS, HEADS_METADATA, HEADS_TENSORS, base_gguf, heads_gguf, write_gguf
from command_line import invoke
from fixtures import BASE_HIDDEN, BASE_VOCAB, tiny_base

from medusa_cli import native
from medusa_cli.models import heads
from medusa_cli.support import paths

FINGERPRINT = str(HEADS_METADATA["medusa.base.fingerprint"])


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> type[cli_fakes.FakeSession]:
    return cli_fakes.install(monkeypatch)


def install(name: str = "Tiny", **changes: Any) -> Path:
    path = heads.place_for(name, FINGERPRINT, replace=True)
    write_gguf(path, {**HEADS_METADATA, "medusa.base.name": name, **changes}, HEADS_TENSORS)
    return path


def used(session: type[cli_fakes.FakeSession], *arguments: object) -> tuple[str | None, str]:
    """The heads' file of a generation, and what stderr says."""
    session.answers = ["ok"]
    code, out, error = invoke("generate", *map(str, arguments), "-p", "x")
    assert (code, out) == (0, "ok\n"), error
    found = session.created[-1].heads
    return (found.path if found else None), error


def test_every_quantization_of_the_base_drafts_with_them(tmp_path: Path, session: type[cli_fakes.FakeSession]) -> None:
    base = base_gguf(tmp_path / "tiny-f16.gguf")
    other = write_gguf(
        tmp_path / "tiny-f32.gguf", BASE_METADATA, {**BASE_TENSORS, "token_embd.weight": ("f32", (32, 3))}
    )
    assert used(session, base) == (None, "")
    mine = install()
    for path in (base, other):
        assert used(session, path) == (str(mine), f"Drafting with installed heads: {mine.stem} (2 of kind medusa)\n")
    assert used(session, base, "--no-spec") == (None, "")
    given = heads_gguf(tmp_path / "given.gguf")
    assert used(session, base, "--heads", given) == (str(given), "")
    stranger = write_gguf(tmp_path / "s.gguf", {**BASE_METADATA, "llama.block_count": 2}, BASE_TENSORS)
    assert used(session, stranger) == (None, "")


def test_models_of_one_shape_are_told_apart_by_name(tmp_path: Path, session: type[cli_fakes.FakeSession]) -> None:
    base = base_gguf(tmp_path / "tiny.gguf")
    coder = install("Tiny Coder")
    found, error = used(session, base)
    assert found == str(coder)
    assert "the heads were made for Tiny Coder, this model is Tiny" not in error or error.count("\n") == 2
    plain = install("tiny-GGUF")
    assert used(session, base)[0] == str(plain)


def test_files_that_are_no_heads_are_left_out(tmp_path: Path, session: type[cli_fakes.FakeSession]) -> None:
    base = base_gguf(tmp_path / "tiny.gguf")
    folder = paths.made(heads.folder())
    (folder / "torn.gguf").write_bytes(install().read_bytes()[:70])
    (folder / "text.gguf").write_text("hello")
    base_gguf(folder / "model.gguf")
    assert [one.path.name for one in heads.installed()] == [install().name]
    assert used(session, base)[0] == str(install())


@pytest.mark.parametrize("name", ["", "../../evil", "a/b\\c", "x" * 300, "\x1b[31m", "ä ö"])
def test_names_of_models_make_safe_names_of_files(name: str) -> None:
    path = heads.place_for(name, FINGERPRINT, replace=False)
    assert path.parent == heads.folder()
    assert path.name.isascii()
    assert path.name.isprintable()
    assert len(path.name) < 120


def test_train_without_an_output_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("medusa_cli.training.train")
    seen: list[Any] = []
    monkeypatch.setattr("medusa_cli.training.train.run", seen.append)
    model = tiny_base(tmp_path / "m.gguf")
    code, _, error = invoke("train", str(model))
    assert code == 0, error
    assert seen[0].sidecar
    assert seen[0].output.parent == heads.folder()
    assert seen[0].output.name.startswith("tiny-")
    seen[0].output.touch()
    code, _, error = invoke("train", str(model))
    assert (code, error.count("\n")) == (1, 1)
    assert "heads for tiny are installed" in error
    assert "--force replaces them" in error
    assert invoke("train", str(model), "--force")[0] == 0


def checkpoint(folder: Path) -> Path:
    """A FasterDecoding checkpoint of one head."""
    folder.mkdir()
    random = torch.Generator().manual_seed(7)
    tensors = {
        "0.0.linear.weight": torch.randn(BASE_HIDDEN, BASE_HIDDEN, generator=random) / BASE_HIDDEN**0.5,
        "0.0.linear.bias": torch.zeros(BASE_HIDDEN),
        "0.1.weight": torch.randn(BASE_VOCAB, BASE_HIDDEN, generator=random) / BASE_HIDDEN**0.5,
    }
    torch.save(tensors, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 1, "medusa_num_layers": 1}))
    return folder


def test_convert_installs_and_chat_list_and_rm_find_them(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base.gguf")
    source = checkpoint(tmp_path / "heads")
    code, out, error = invoke("convert", str(source), "--base", str(base), "--install", "--json")
    assert code == 0, error
    report = json.loads(out)
    path = Path(report["output"])
    assert (report["installed"], report["sidecar"], path.parent) == (True, True, heads.folder())
    assert list(heads.folder().iterdir()) == [path]
    code, _, error = invoke("generate", str(base), "-p", "x", "--raw", "-n", "4")
    assert code == 0, error
    assert error == f"Drafting with installed heads: {path.stem} (1 of kind medusa)\n"
    code, _, error = invoke("convert", str(source), "--base", str(base), "--install")
    assert code == 1
    assert "--force replaces them" in error.splitlines()[-1]
    assert list(heads.folder().iterdir()) == [path]

    _, out, _ = invoke("list", "--json")
    assert json.loads(out)["heads"] == [
        {
            "name": path.stem,
            "path": str(path),
            "size": path.stat().st_size,
            "kind": "medusa",
            "head_count": 1,
            "base_name": "tiny",
            "base_fingerprint": native.read_gguf(str(path)).metadata["medusa.base.fingerprint"],
            "tree": False,
        }
    ]
    assert invoke("list")[1].count(path.stem) == 1
    path.with_suffix(".train.json").touch()
    code, _, error = invoke("rm", path.stem, "--yes")
    assert code == 0, error
    assert list(heads.folder().iterdir()) == []


@pytest.mark.parametrize("arguments", [(), ("--install", "-o", "x.gguf")])
def test_convert_writes_or_installs(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, _, error = invoke("convert", str(checkpoint(tmp_path / "heads")), *arguments)
    assert code == 2
    assert "give either -o FILE or --install" in error


def test_the_tree_that_came_with_heads_stays_and_tune_may_write(tmp_path: Path) -> None:
    from rich.console import Console

    from medusa_cli.models import references

    mine = install()
    ref = heads.with_heads(references.ModelRef("m", base_gguf(tmp_path / "tiny.gguf")), None, Console(quiet=True))
    assert ref.heads is not None
    assert ref.heads.is_own
    assert native.read_gguf(str(mine)).metadata["medusa.tree"] == HEADS_METADATA["medusa.tree"]
    assert heads.installed()[0].has_tree
