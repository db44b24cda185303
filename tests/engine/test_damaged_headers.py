"""Damaged GGUF headers: each is opened or refused with one line, never more memory, time or a crash."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from damaged_headers import Damage, Kind, run
from embedding_models import write_embedder
from fixtures import tiny_base, write_heads
from medusa_cli.converters.gguf import header as gh
from medusa_cli.converters.heads.draft_heads import write_heads as write_heads_of_streams
from random_heads import random_heads, random_streams, write
from stream_numpy import Base

from medusa_cli import native
from medusa_cli.commands.inspect import inspect
from medusa_cli.support.errors import MedusaError

FACTOR = int(os.environ.get("MEDUSA_FUZZ", "1"))
"""How many times as many damaged files as usual."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, heads of four kinds, with all keys that heads may have, and two embedding models."""
    folder = tmp_path_factory.mktemp("intact")
    tiny_base(folder / "base.gguf", chat_template="{{ messages }}")
    tree, accuracy = [[0], [0, 0], [1]], [0.5, 0.2, 0.1] * 3
    write_heads(folder / "heads-1.gguf", heads=3, blocks=2, lm_head="draft_vocab", accuracy=accuracy, tree=tree)
    write(folder / "heads-2.gguf", random_heads("hydra++", heads=2, blocks=1))
    write_heads_of_streams(folder / "heads-3.gguf", random_streams(Base(folder / "base.gguf"), layers=1))
    write(folder / "heads-4.gguf", random_heads("recurrent"))
    write_embedder(folder / "embedder-1.gguf", "bert")
    write_embedder(folder / "embedder-2.gguf", "qwen3")
    return folder


@pytest.mark.parametrize(("kind", "number"), [("heads", 2000), ("base", 500), ("embedder", 200)])
def test_damaged_headers_are_read_or_refused_in_one_line(folder: Path, kind: Kind, number: int) -> None:
    assert run(kind, folder, number * FACTOR) == []


def test_the_same_number_gives_the_same_damage(folder: Path) -> None:
    data = (folder / "heads-1.gguf").read_bytes()
    copies = [Damage(data).copy(number) for number in range(200)]
    assert copies == [Damage(data).copy(number) for number in range(200)]
    assert len(set(copies)) > 150
    assert copies.count(data) < 10


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (b"medusa.kind", b"medusa.k\xffnd", "key"),
        (b"medusa.0.block.0.weight", b"medusa.0.bl\xff\xffk.0.weight", "tensor name"),
        (b"medusa.0.block.0.weight", b"medusa.0.block.0.weigh\xc3", "tensor name"),
    ],
)
def test_names_that_are_not_utf_8_are_refused(folder: Path, tmp_path: Path, old: bytes, new: bytes, what: str) -> None:
    path = tmp_path / "heads.gguf"
    path.write_bytes((folder / "heads-1.gguf").read_bytes().replace(old, new, 1))
    model = native.Model(str(folder / "base.gguf"))
    message = rf"heads\.gguf: .*{what} .*is not UTF-8.*again$"
    with pytest.raises(native.NativeError, match=message):
        native.read_gguf(str(path))
    with pytest.raises(native.NativeError, match=message):
        native.Heads(model, str(path))
    with pytest.raises(MedusaError, match=message):
        gh.read_header(path)


def test_values_that_are_not_utf_8_are_refused_where_they_decide(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.gguf"
    intact = (folder / "heads-1.gguf").read_bytes()
    path.write_bytes(intact.replace(gh.encode_string("post_norm"), gh.encode_string("post_norm")[:-1] + b"\xff"))
    with pytest.raises(native.NativeError, match=r"heads\.gguf: metadata medusa\.input .*is not UTF-8"):
        native.Heads(native.Model(str(folder / "base.gguf")), str(path))
    assert native.read_gguf(str(path)).metadata["medusa.input"] == "post_nor\ufffd"


def test_tokens_and_templates_that_are_not_utf_8_stay_readable(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "base.gguf"
    data = (
        (folder / "base.gguf")
        .read_bytes()
        .replace(gh.encode_string("</s>"), gh.encode_string("<abc")[:-3] + b"\xff\xfe>")
    )
    path.write_bytes(data.replace(b"{{ messages }}", b"{{ m\xffssages }}"))
    model = native.Model(str(path))
    assert model.eos_text == "<\ufffd\ufffd>"
    assert model.chat_template == "{{ m\ufffdssages }}"
    for tokens in (native.read_gguf(str(path)).metadata, gh.read_header(path)[0].metadata()):
        assert tokens["tokenizer.ggml.tokens"][2] == "<\ufffd\ufffd>"


@pytest.mark.parametrize("key", ["medusa.tree", "medusa.accuracy"])
def test_a_value_of_another_type_is_one_line(
    folder: Path, tmp_path: Path, key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header, _ = gh.read_header(folder / "heads-1.gguf")
    entries = [gh.encode_kv(key, gh.STRING, "x\ny") if entry.key == key else entry for entry in header.kv]
    data = (folder / "heads-1.gguf").read_bytes()[header.data_offset :]
    path = tmp_path / "heads.gguf"
    path.write_bytes(gh.build(entries, header.tensors, header.alignment) + data)
    with pytest.raises(MedusaError, match=rf"heads\.gguf: its {key} is damaged"):
        inspect(str(path), True)


def test_an_error_text_is_one_line_of_text(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "heads.gguf"
    intact = (folder / "heads-1.gguf").read_bytes()
    path.write_bytes(intact.replace(b"medusa.0.block.0.weight", b"medusa.0.\nlock.\x1b.weight", 1))
    with pytest.raises(native.NativeError) as caught:
        native.Heads(native.Model(str(folder / "base.gguf")), str(path))
    assert str(caught.value).isprintable()
    assert json.loads(json.dumps(str(caught.value))) == str(caught.value)
