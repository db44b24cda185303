"""DFlash drafters that are wrong, or belong to another model: one line each, never a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import TOKENS, Keys
from dflash_models import write_dflash, write_dflash_target
from eagle_models import LAYERS, WIDTH, draft_tokens, write_target
from gguf_edits import edited, tensor_names
from mtp_trials import Outcome, outcomes
from random_models import Tensors

MASK = "tokenizer.ggml.mask_token_id"
KEYS: dict[str, Keys] = {
    "reads the embeddings": {"target_layers": [0, 3]},
    "reads the last state": {"target_layers": [1, LAYERS]},
    "reads beyond": {"target_layers": [1, 2**31 - 1]},
    "reads a negative layer": {"target_layers": [2**32 - 1, 2]},
    "reads more than fc takes": {"target_layers": [1, 2, 3]},
    "no layers": {"block_count": 0},
    "many layers": {"block_count": 600},
    "very many layers": {"block_count": 2**31 - 1},
    "more layers": {"block_count": 3},
    "blocks of one": {"block_size": 1},
    "blocks of none": {"block_size": 0},
    "no heads": {"attention.head_count": 0},
    "no heads of keys": {"attention.head_count_kv": 0},
    "heads that keys do not fit": {"attention.head_count_kv": 3},
    "other values": {"attention.value_length": 32},
    "odd rotation": {"rope.dimension_count": 63},
    "wide rotation": {"rope.dimension_count": 128},
    "another width": {"embedding_length": 512},
    "positions of several sections": {"rope.dimension_sections": [16, 8, 8, 0]},
    "a mask that is no token": {MASK: TOKENS},
}


def _set(name: str, values: Any) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: values})


CHANGES: dict[str, Callable[[Tensors], object]] = {
    "d2t: ids beyond the vocabulary": _set("d2t", draft_tokens() + np.int64(TOKENS)),
    "d2t: negative ids": _set("d2t", -draft_tokens()),
    "d2t: another type": _set("d2t", draft_tokens().astype(np.int32)),
    "d2t: too short": _set("d2t", draft_tokens()[:9]),
    "d2t: no output matrix": lambda tensors: tensors.pop("output.weight"),
    "a selector of DFlash 2": _set("selector_hidden.weight", np.zeros((WIDTH, 8), np.float32)),
    "a Markov head of DSpark": _set("markov_w1.weight", np.zeros((TOKENS, 8), np.float32)),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dflash_target(tmp_path_factory.mktemp("dflash") / "model.gguf", "plain")


def check_refused(model: Path, files: dict[str, Path]) -> None:
    found = dict(zip(files, outcomes([(model, path) for path in files.values()]), strict=True))
    assert {name: one for name, one in found.items() if not is_line(one, files[name])} == {}


def is_line(found: Outcome, path: Path) -> bool:
    return str(path) in found.error and found.error.isprintable()


def test_wrong_keys_are_refused(model: Path, tmp_path: Path) -> None:
    source = write_dflash(tmp_path / "intact.gguf", "plain")
    files = {}
    for number, (name, keys) in enumerate(KEYS.items()):
        full = {key if key == MASK else f"dflash.{key}": value for key, value in keys.items()}
        files[name] = edited(source, tmp_path / f"{number}.gguf", full)
    for name in ("dflash.target_layers", "dflash.embedding_length", MASK):
        files[f"no {name}"] = edited(source, tmp_path / f"no-{name}.gguf", without=[name])
    check_refused(model, files)


def test_wrong_tensors_are_refused(model: Path, tmp_path: Path) -> None:
    files = {
        name: write_dflash(tmp_path / f"{number}.gguf", "d2t" if name.startswith("d2t") else "plain", change=change)
        for number, (name, change) in enumerate(CHANGES.items())
    }
    check_refused(model, files)


def test_each_tensor_is_needed(model: Path, tmp_path: Path) -> None:
    source = write_dflash(tmp_path / "intact.gguf", "plain")
    names = [name for name in tensor_names(source) if "attn_v" not in name]  # keys can serve as values
    check_refused(model, {name: edited(source, tmp_path / f"{name}.gguf", without=[name]) for name in names})


def test_damaged_copies_are_refused_or_work(model: Path, tmp_path: Path) -> None:
    intact = write_dflash(tmp_path / "intact.gguf", "windows").read_bytes()
    rng = np.random.default_rng(1)
    files = []
    for number in range(12):
        damaged = bytearray(intact)
        for at in rng.integers(0, 4000, 3):
            damaged[int(at)] = int(rng.integers(0, 256))
        files.append(tmp_path / f"{number}.gguf")
        files[-1].write_bytes(damaged if number % 3 else damaged[: int(rng.integers(8, len(intact)))])
    found = outcomes([(model, path) for path in files])
    assert [one for one in found if not one.error.isprintable() or (not one.error and not one.same)] == []


@pytest.mark.parametrize("name", ["plain", "windows"])
def test_a_model_of_another_shape(tmp_path: Path, name: str) -> None:
    path = write_dflash(tmp_path / "dflash.gguf", name)
    shapes: dict[str, Keys] = {"few layers": {"block_count": 3}, "wide": {"embedding_length": 512}}
    models = [write_target(tmp_path / f"{what}.gguf", "plain", keys=keys) for what, keys in shapes.items()]
    found = outcomes([(model, path) for model in models])
    assert [one for one in found if not is_line(one, path)] == []
