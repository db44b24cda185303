"""Checkpoint folders and files: everything valid is read exactly, nothing else gets further than one line."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from broken_files import one_line, read_or_refuse, write
from hypothesis import given, settings
from hypothesis import strategies as st
from medusa_cli.converters.checkpoints import torch_file
from medusa_cli.converters.checkpoints.checkpoint import Checkpoint, open_checkpoint
from medusa_cli.converters.checkpoints.strict_json import parse_json
from safetensors.numpy import save
from safetensors.torch import save_file

from medusa_cli.support.errors import MedusaError

HEADS = Path(__file__).parents[1] / "data" / "heads"


VALID = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, np.float16)}, {"k": "v"})

KINDS = {
    "f32": torch.tensor([[1.5, -2.0], [3.0, 1e-20]]),
    "f16": torch.tensor([1.5, -2.0]).half(),
    "bf16": torch.tensor([[1.5, -2.0, 1e30]]).bfloat16(),
    "f64": torch.tensor([0.1], dtype=torch.float64),
    "i64": torch.tensor([2**40, -1]),
    "u8": torch.tensor([255], dtype=torch.uint8),
    "scalar": torch.tensor(2.0),
    "none": torch.zeros(0, 3),
    "turned": torch.arange(6.0).reshape(2, 3),
}


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "pytorch_model.bin"])
def test_both_formats_give_the_same_tensors(tmp_path: Path, name: str) -> None:
    if name.endswith("safetensors"):
        save_file(KINDS, str(tmp_path / name))
    else:
        turned = KINDS["turned"].t().contiguous().t()
        assert not turned.is_contiguous()
        torch.save({**KINDS, "turned": turned}, tmp_path / name)
    for checkpoint in (open_checkpoint(tmp_path), open_checkpoint(tmp_path / name)):
        assert set(checkpoint.tensors) == set(KINDS)
        for key, tensor in KINDS.items():
            loaded = checkpoint.load(key)
            expected = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            assert loaded.dtype == expected.numpy().dtype
            assert loaded.flags.c_contiguous
            assert checkpoint.tensors[key].shape == tuple(tensor.shape)
            np.testing.assert_array_equal(loaded, expected.numpy())
        assert checkpoint.tensors["bf16"].dtype == "BF16"
        assert checkpoint.files == [tmp_path / name]
        assert checkpoint.config == {}


def test_a_mapping_is_renewed_without_changing_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_file, "RENEW_BYTES", 10)
    torch.save(KINDS, tmp_path / "model.pt")
    checkpoint = open_checkpoint(tmp_path / "model.pt")
    for _ in range(2):
        for key in ("f32", "i64", "turned"):  # each is larger than that
            np.testing.assert_array_equal(checkpoint.load(key), KINDS[key].numpy())


def test_loaded_memory_is_ones_own(tmp_path: Path) -> None:
    torch.save(KINDS, tmp_path / "model.pt")
    checkpoint = open_checkpoint(tmp_path / "model.pt")
    checkpoint.load("f32")[:] = 0
    np.testing.assert_array_equal(checkpoint.load("f32"), KINDS["f32"].numpy())


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_pickle_with_a_payload_is_refused_and_not_run(tmp_path: Path) -> None:
    executed = tmp_path / "executed"
    torch.save({"0.0.linear.weight": Payload(executed)}, tmp_path / "medusa_lm_head.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Payload(executed)))
    with pytest.raises(MedusaError) as error:
        open_checkpoint(tmp_path)
    one_line(error, "medusa_lm_head.pt", "refused")
    with pytest.raises(MedusaError, match="not a torch file"):
        open_checkpoint(tmp_path / "plain.pt")
    assert not executed.exists()
    pickle.loads((tmp_path / "plain.pt").read_bytes())
    assert executed.exists()  # the payload works where it is let


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([torch.ones(1)], "instead of named tensors"),
        ({"a": [1]}, "is not a named tensor"),
        ({"state_dict": {"a": torch.ones(1)}}, "is not a named tensor"),
        ({3: torch.ones(1)}, "is not a named tensor"),
        ({"a": torch.ones(2).to_sparse()}, "dense"),
        ({"a": torch.ones(1, dtype=torch.complex64)}, "dtype"),
        ({"a": torch.zeros(0, 2**62)}, "larger than any"),
        ({"a": torch.ones(1).expand(10**6)}, "more values than the file holds"),
    ],
)
def test_other_torch_files_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    torch.save(value, tmp_path / "x.pt")
    with pytest.raises(MedusaError) as error:
        open_checkpoint(tmp_path / "x.pt")
    one_line(error, "x.pt", message)


def test_truncated_and_compressed_torch_files(tmp_path: Path) -> None:
    torch.save(KINDS, tmp_path / "x.pt")
    data = (tmp_path / "x.pt").read_bytes()
    for part in (0, 10, len(data) // 2, len(data) - 30):
        path = write(tmp_path / "cut.pt", data[:part])
        with pytest.raises(MedusaError, match=r"cut\.pt"):
            open_checkpoint(path)
    bomb = tmp_path / "bomb.pt"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", bytes(10**6))
    with pytest.raises(MedusaError, match="compressed"):
        open_checkpoint(bomb)


@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
@settings(max_examples=60)
def test_damaged_torch_files_are_refused_or_harmless(tmp_path: Path, flips: list[tuple[float, int]]) -> None:
    data = bytearray((HEADS / "medusa-v1" / "medusa_lm_head.pt").read_bytes())
    for place, value in flips:
        data[int(place * len(data))] ^= value
    path = write(tmp_path / "x.pt", bytes(data))
    read_or_refuse(path)


@pytest.mark.parametrize(("version", "message"), [("2.9.1+cpu", "install torch 2.10"), (None, "needs torch")])
def test_torch_that_is_missing_or_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str | None, message: str
) -> None:
    torch.save(KINDS, tmp_path / "x.pt")
    if version is None:
        monkeypatch.setitem(__import__("sys").modules, "torch", None)
    else:
        monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(MedusaError, match=message):
        open_checkpoint(tmp_path / "x.pt")


def sharded(folder: Path) -> Path:
    shutil.copytree(HEADS / "medusa-full", folder)
    return folder


def test_shards_are_one_model(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(HEADS / "medusa-full")
    assert [path.name for path in checkpoint.files] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = json.loads((HEADS / "medusa-full" / "model.safetensors.index.json").read_text())
    assert set(checkpoint.tensors) == set(index["weight_map"])
    assert checkpoint.config["architectures"] == ["LlamaForCausalLM"]

    folder = sharded(tmp_path / "x")
    (folder / "model.safetensors.index.json").unlink()
    assert open_checkpoint(folder).tensors == checkpoint.tensors


def test_missing_shards_and_lying_indices(tmp_path: Path) -> None:
    def broken(name: str, change: Any, message: str) -> None:
        folder = sharded(tmp_path / name)
        change(folder)
        with pytest.raises(MedusaError) as error:
            open_checkpoint(folder)
        one_line(error, name, message)

    second, index = "model-00002-of-00002.safetensors", "model.safetensors.index.json"

    def mapped(**names: Any) -> Any:
        def change(folder: Path) -> None:
            where = json.loads((folder / index).read_text())
            where["weight_map"].update({"x": "y"}, **names)
            del where["weight_map"]["x"]
            (folder / index).write_text(json.dumps(where))

        return change

    broken("missing", lambda folder: (folder / second).unlink(), f"{second}: this part of the model is missing")
    broken("both", lambda folder: [(folder / n).unlink() for n in (second, index)], "not the 2 parts")
    broken("absent", mapped(extra=second), "lacks tensor 'extra'")
    broken("up", mapped(extra="../" + second), "not a plain file name")
    broken("absolute", mapped(extra="/etc/passwd"), "not a plain file name")
    broken("no name", mapped(extra=""), "not a plain file name")
    broken("number", mapped(extra=3), "no weight_map")
    broken("other", lambda folder: (folder / index).write_text("{}"), "no weight_map")
    broken("list", lambda folder: (folder / index).write_text("[]"), "not a JSON object")
    broken("cut", lambda folder: write(folder / second, (folder / second).read_bytes()[:-1]), "inside the file")
    broken("config", lambda folder: write(folder / "config.json", b"{" * 100_000), "config.json")
    broken("bytes", lambda folder: write(folder / "config.json", b'{"a": "\xff"}'), "not UTF-8")


def test_the_same_name_in_two_files(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, str(tmp_path / "model.safetensors"))
    save_file({"a": torch.ones(1)}, str(tmp_path / "medusa_lm_head.safetensors"))
    with pytest.raises(MedusaError, match=r"is also in model\.safetensors"):
        open_checkpoint(tmp_path)
    assert open_checkpoint(tmp_path / "medusa_lm_head.safetensors").load("a").tolist() == [1.0]


def test_which_file_of_a_folder_is_read(tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match="no weights"):
        open_checkpoint(tmp_path)
    (tmp_path / "training_args.bin").write_bytes(b"not for us")
    torch.save({"bin": torch.ones(1)}, tmp_path / "heads.pt")
    assert list(open_checkpoint(tmp_path).tensors) == ["bin"]
    save_file({"safe": torch.ones(1)}, str(tmp_path / "heads.safetensors"))
    assert list(open_checkpoint(tmp_path).tensors) == ["safe"]
    save_file({"safe": torch.ones(1)}, str(tmp_path / "more.safetensors"))
    with pytest.raises(MedusaError, match=r"several weight files \(heads.safetensors, more.safetensors\)"):
        open_checkpoint(tmp_path)
    torch.save({"head": torch.ones(1)}, tmp_path / "medusa_lm_head.pt")
    assert list(open_checkpoint(tmp_path).tensors) == ["head"]
    save_file({"safe head": torch.ones(1)}, str(tmp_path / "medusa_lm_head.safetensors"))
    assert list(open_checkpoint(tmp_path).tensors) == ["safe head"]
    torch.save({"base": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    assert list(open_checkpoint(tmp_path).tensors) == ["base", "safe head"]
    with pytest.raises(MedusaError, match="not a weight file"):
        open_checkpoint(write(tmp_path / "x.gguf", b"GGUF"))
    with pytest.raises(MedusaError, match="No such file"):
        open_checkpoint(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(MedusaError, match="regular file"):
        open_checkpoint(tmp_path / "pipe.pt")


def linked(tmp_path: Path, target: Path) -> Path:
    """A folder whose weights are a link to `target`."""
    folder = tmp_path / "folder"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").symlink_to(target)
    return folder


def test_links_may_not_leave_the_folder(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside.safetensors", VALID)
    folder = linked(tmp_path, outside)
    with pytest.raises(MedusaError) as error:
        open_checkpoint(folder)
    one_line(error, "model.safetensors", "leaves the folder")

    (folder / "model.safetensors").unlink()
    (folder / "real.safetensors").write_bytes(VALID)
    (folder / "model.safetensors").symlink_to("real.safetensors")
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}
    assert set(open_checkpoint(folder / "model.safetensors").tensors) == {"a", "b"}

    (folder / "config.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(MedusaError, match="leads nowhere"):
        open_checkpoint(folder)
    (tmp_path / "secret.json").write_text("{}")
    with pytest.raises(MedusaError, match="leaves the folder"):
        open_checkpoint(folder)

    (tmp_path / "other").symlink_to(folder)
    (folder / "config.json").unlink()
    assert set(open_checkpoint(tmp_path / "other").tensors) == {"a", "b"}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(MedusaError, match=r"model\.safetensors"):
        open_checkpoint(folder)


def test_the_cache_of_huggingface_hub_is_known(tmp_path: Path) -> None:
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    write(repository / "blobs" / "123", VALID)
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert set(open_checkpoint(snapshot).tensors) == {"a", "b"}
    write(repository / "secret", b"{}")
    (snapshot / "config.json").symlink_to("../../secret")
    with pytest.raises(MedusaError, match="leaves the folder"):
        open_checkpoint(snapshot)


def test_side_files(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", VALID)
    (tmp_path / "tokenizer.json").write_text("čau", encoding="utf-8")
    (tmp_path / "sub").mkdir()
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.read_text("tokenizer.json") == "čau"
    assert checkpoint.read_text("none.json") is None
    assert checkpoint.path("tokenizer.json") == tmp_path / "tokenizer.json"
    for name in ("../model.safetensors", "sub/x", "", ".", "..", "a\\b", "a\0b"):
        with pytest.raises(MedusaError, match="plain file name"):
            checkpoint.path(name)
    with pytest.raises(MedusaError, match="regular file"):
        checkpoint.path("sub")
    write(tmp_path / "bad.json", b"\xff")
    with pytest.raises(MedusaError, match="UTF-8"):
        checkpoint.read_text("bad.json")


def quantized(tmp_path: Path, **tensors: torch.Tensor) -> Checkpoint:
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(torch.float8_e4m3fn)
    save_file(
        {"w.weight": weight, **{k.replace("__", "."): v for k, v in tensors.items()}}, str(tmp_path / "m.safetensors")
    )
    return open_checkpoint(tmp_path)


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([0.5, 0.5]).reshape(2, 1)])
def test_fp8_scales_are_applied(tmp_path: Path, scale: torch.Tensor) -> None:
    checkpoint = quantized(tmp_path, w__weight_scale=scale, w__input_scale=torch.tensor(9.0))
    assert list(checkpoint.tensors) == ["w.weight"]
    assert checkpoint.load("w.weight").tolist() == [[0.5, 1.0], [1.5, 2.0]]
    with pytest.raises(KeyError):
        checkpoint.load("w.input_scale")


def test_fp8_scales_of_rows_and_none(tmp_path: Path) -> None:
    assert quantized(tmp_path).load("w.weight").tolist() == [[1.0, 2.0], [3.0, 4.0]]
    checkpoint = quantized(tmp_path, w__weight_scale=torch.tensor([1.0, 10.0]).half())
    assert checkpoint.load("w.weight").tolist() == [[1.0, 2.0], [30.0, 40.0]]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"w__weight_scale": torch.ones(2, 2)}, "not one value or one for each row"),
        ({"w__weight_scale": torch.ones(3)}, "not one value or one for each row"),
        ({"w__weight_scale": torch.ones(1, dtype=torch.uint8)}, "not one value or one for each row"),
        ({"w__weight_scale_inv": torch.ones(1)}, "not supported"),
        ({"o__weight": torch.ones(2, 2, dtype=torch.int8), "o__weight_scale": torch.ones(1)}, "not to FP8"),
        ({"o__weight_scale": torch.ones(1)}, "not to FP8"),
        ({"o__qweight": torch.ones(1)}, "not supported"),
    ],
)
def test_other_quantizations_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(MedusaError, match=message):
        quantized(tmp_path, **tensors)


@pytest.mark.parametrize("text", ["", "nul", '{"a": 1} x', '{"a": {"b": 1, "b": 2}}', "3", b"\xff\xfe{\x00}\x00"])
def test_json_that_is_no_object(text: str | bytes) -> None:
    with pytest.raises(MedusaError, match=r"^the label: "):
        parse_json(text, "the label")


def test_no_version_with_known_holes_can_be_installed() -> None:
    root = Path(__file__).parents[2]
    text = (root / "pyproject.toml").read_text("utf-8")
    lowest = {name: set(re.findall(rf'"{name}>=([\d.]+)', text)) for name in ("jinja2", "torch")}
    assert lowest == {"jinja2": {"3.1.6"}, "torch": {".".join(map(str, torch_file.OLDEST_SAFE_TORCH))}}
    assert torch_file.OLDEST_SAFE_TORCH >= (2, 10)  # CVE-2025-32434, CVE-2026-24747
    pinned = re.search(r"^torch==(\d+)\.(\d+)", (root / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert pinned is not None
    assert tuple(map(int, pinned.groups())) >= torch_file.OLDEST_SAFE_TORCH
